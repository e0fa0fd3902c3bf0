// SPDX-License-Identifier: Apache-2.0
// A dense layer on CUDA: one product with the input for all steps, then the walk, step by step or
// in one launch, and backward the products for the parameters.
#include <optional>
#include <vector>

#include "cuda/dense_products.cuh"
#include "stack/backend.h"

namespace scanrnn {
namespace {

template <class T>
struct DenseRun : DenseProducts<T> {
  using Products = DenseProducts<T>;
  using Walk = CudaWalk<T>;
  using Args = typename Walk::Args;
  using V = typename Walk::V;
  using Products::before;
  using Products::dsums;
  using Products::dvectors;
  using Products::first;
  using Products::gemm_space;
  using Products::kept;
  using Products::kept_rows;
  using Products::parts;
  using Walk::arena;
  using Walk::call;
  using Walk::copy;
  using Walk::h_carry;
  using Walk::hidden;
  using Walk::plan;
  using Walk::stream;
  using Walk::walk;

  // A layer of a chain that is one launch: where its share of each launch goes, and the layer
  // before it in the walk.
  struct Link {
    std::vector<Args>* launches;
    const LayerCall* before;
  };
  std::optional<Link> link = {};

  void* exchange = nullptr;

  // Whether the layer's blocks make W x (backward dx) of this layer, step by step.
  bool fed() const { return link && link->before; }

  void forward() {
    const auto& kernels = cuda_dense_kernels<T>(call.cell, call.variant);
    const bool whole = dispatch::is_persistent(plan, false);
    const bool fused = !whole && plan.fused_steps;
    const bool ragged = call.is_ragged(), lined = this->has_lines(false);
    // The step's kernel reads W, too.
    const bool projects = (fused && call.steps == 1 && !ragged && !call.feeds_first()) || fed();
    const bool keep = call.preactivations != nullptr || (arena.counting() && plan.problem.training);
    const Index stride = keep ? kept() : this->width();
    Args args;
    this->take_carries();
    T* projected = static_cast<T*>(call.preactivations);
    if (!keep && !projects) projected = this->take(this->tokens() * this->width());
    if (!projects) gemm_space = arena.take(CudaGemm::kWorkspace);
    T* first = call.feeds_first() ? this->take(this->lines() * this->width()) : nullptr;
    V* products = nullptr;
    if (whole) {
      exchange = take_exchange(plan.persistent, false);
    } else if (!fused) {
      products = this->template take<V>(this->lines() * this->width());
    }
    // What a step's product reads of a ragged batch, and what it leaves for the next one.
    T* states[2] = {};
    if (ragged && !whole) {
      for (T*& rows : states) rows = this->take(this->lines() * hidden());
    }
    if (arena.counting() || this->lines() == 0) return;

    const auto walked_here = [&](const TensorView& v) { return this->in_order(v, false); };
    begin_forward(args, states[0]);
    if (keep) args.kept = walked_here(kept_rows(projected));
    if (keep && call.more_states() > 0) {
      args.cells = walked_here(this->rows(call.states, this->more_width()));
    }
    if (call.steps == 0 && !lined) {
      this->copy_states(call.h0, call.more0, call.hn, call.moren, false);
      return;
    }
    if (projects) {
      read_input(args);
    } else if (call.steps > 0) {
      args.sums = as_const(walked_here(this->rows(projected, stride)));
      project(projected, stride);
      if (call.first) add_first(first, this->rows(projected, stride));
    }
    if (link) {
      link_up(args, plan.persistent, false);
    } else if (whole) {
      this->walk_persistent(args, plan.persistent, false, exchange,
                            whole_walk(&Kernels::persistent, &Large::persistent, plan.persistent));
    } else {
      // Other blocks still read h_0 when the first of them has made its step.
      const bool in_place = fused && call.steps == 1 && !ragged && replaces_state();
      if (in_place) args.to[0] = {};
      walk(args, this->lines(), 1, false, [&](Args part) {
        if (ragged) {
          part.initial = {states[part.first_step % 2], hidden(), 0};
          part.to[0].tensor = states[(part.first_step + 1) % 2];
        }
        step(kernels, part, fused, products);
      });
      if (in_place) {
        copy(this->data(call.y), call.y.strides[1], static_cast<T*>(call.hn.data),
             call.hn.strides[0], hidden());
      }
    }
    if (lined) this->end_ragged(call.hn, call.moren);
  }
  // The launcher of a walk in one launch, by warp groups where the shape says so.
  using Kernels = CudaDenseKernels<T>;
  using Large = CudaLargeKernels<T>;
  template <class Launch, class LargeLaunch>
  auto whole_walk(Launch Kernels::* launch, LargeLaunch Large::* large,
                  const dispatch::PersistentShape& shape) const {
    auto out = cuda_dense_kernels<T>(call.cell, call.variant).*launch;
    if constexpr (sizeof(T) == 2) {
      if (shape.large) out = cuda_large_kernels<T>(call.cell)[call.variant].*large;
    }
    return out;
  }
  // What a walk reads and leaves, but for its sums and what is kept.
  void begin_forward(Args& args, T* rounded) {
    this->begin(args, call.h0, call.more0, false, rounded);
    args.bias = this->data(call.bias);
    args.recurrent_bias = this->data(call.recurrent_bias);
    args.exact_products = plan.problem.split_products || call.y.dtype == Dtype::float64;
    this->end_at(args, call.hn, call.moren);
    args.y = this->in_order(call.y, false);
    args.before = as_const(args.y);
    args.before.data -= args.before.step;
    args.initial = {this->data(call.h0), call.h0.strides[0], 0};
  }
  // A step's kernel that reads W, too.
  void read_input(Args& args) const {
    input_weight(args, call);
    args.input = call.input;
    args.x = as_const(this->in_order(call.x, false));
  }
  bool replaces_state() const { return call.h0 && call.h0.data == call.hn.data; }
  // A step of a layer of a stack, behind those that are there.
  void add_step(CudaStackArgs<T, V>& stack, const TensorView& indices) {
    Args& args = stack.layer[stack.layers];
    begin_forward(args, nullptr);
    if (indices) args.pool = {Integers(indices), call.h0.sizes[0]};
    if (args.pool && args.pool.states == 0) args.initial = {};  // which nobody reads
    read_input(args);
    if (replaces_state()) {
      stack.replaced[stack.layers] = {args.to[0].tensor, args.to[0].line, 0};
      stack.replaces = true;
      args.to[0] = {};
    }
    ++stack.layers;
  }
  void input_weight(Args& args, const LayerCall& of) const {
    args.input_weight = this->data(of.weight);
    args.input_weight_stride = of.weight.strides[0];
  }
  // Memory that blocks of a launch exchange in; a chain has one for all of its layers.
  void* take_exchange(const dispatch::PersistentShape& shape, bool backward) const {
    if (fed()) return nullptr;
    const auto bytes = dispatch::exchange_bytes(plan.problem, shape, backward);
    return arena.take(static_cast<std::size_t>(bytes));
  }
  void link_up(const Args& args, const dispatch::PersistentShape& shape, bool backward) {
    walk(args, shape.lines, shape.steps, backward, [&](const Args& launch) {
      link->launches->push_back(launch);
      link->launches->back().head_lines = launch.batch;
    });
  }
  // W x for the tokens of the call's part, to rows that are `stride` apart.
  void project(T* projected, Index stride) {
    const Tile part = part_of(call);
    T* const to = projected + first_token(call, part) * stride;
    for_runs<T>(call, part, call.x, [&](const T* from, Index spacing, Index first, Index count) {
      this->product(count, this->width(), call.input, {from, spacing},
                    {call.weight.data, call.weight.strides[0], true}, to + first * stride, stride,
                    false, nullptr, gemm_space);
    });
  }
  // What is fed to the first steps, whose sums lie in [T,B,.].
  void add_first(T* rows, const TensorView& sums) {
    this->product(this->lines(), this->width(), call.first.sizes[1],
                  {call.first.data, call.first.strides[0]},
                  {call.first_weight.data, call.first_weight.strides[0], true}, rows, this->width(),
                  false, nullptr, gemm_space);
    ragged::add_to_edges<T>
        <<<ragged::blocks_for_rows(this->lines()), pointwise::kThreads, 0, stream>>>(
            EdgeSteps(call, false), Strided<const T>{rows, this->width(), 0}, ragged::Cube<T>(sums),
            this->width());
    SCANRNN_CUDA(cudaGetLastError());
  }
  // A forward step: in one launch, or a product and what follows it.
  void step(const CudaDenseKernels<T>& kernels, Args& args, bool fused, V* products) {
    if (fused) {
      SCANRNN_CUDA(kernels.fused_step(args, stream));
      return;
    }
    if (args.initial.data) {
      this->product(args.batch, this->width(), hidden(),
                    {args.initial.data, std::max(args.initial.line, hidden())},
                    {args.weight, args.weight_stride, true}, products, this->width(), false,
                    nullptr, gemm_space, true);
      args.products = products;
    }
    SCANRNN_CUDA(kernels.step(args, stream));
  }

  void backward() {
    walk_back();
    if (!arena.counting()) this->products_back();
  }
  void walk_back() {
    const auto& kernels = cuda_dense_kernels<T>(call.cell, call.variant);
    const bool whole = dispatch::is_persistent(plan, true);
    Args args;
    this->take_carries();
    dsums = this->take(this->tokens() * kept());
    const Index vector_values = call.vector_values();
    if (vector_values > 0) dvectors = this->take(this->tokens() * vector_values);
    parts = this->template take<V>(pointwise::kParts * std::max(kept(), vector_values));
    gemm_space = arena.take(CudaGemm::kWorkspace);
    if (whole) {
      exchange = take_exchange(plan.persistent_vjp, true);
    } else {
      args.fed = this->take(this->lines() * this->width());
    }
    const bool ragged = call.is_ragged(), lined = this->has_lines(true);
    if (ragged) before = this->take(this->tokens() * hidden());
    if (call.feeds_first()) first = this->take(this->lines() * this->width());
    T* initial = call.more_states() > 1 ? this->take(this->lines() * this->more_width()) : nullptr;
    if (arena.counting()) return;

    if (ragged && this->tokens() > 0) this->prepare_tokens();
    if (call.batch > 0 && call.steps == 0 && !lined) {
      this->copy_states(call.dhn, call.dmoren, call.dh0, call.dmore0, true);
    } else if (this->lines() > 0) {
      const auto against = [&](const TensorView& v) { return this->in_order(v, true); };
      this->begin(args, call.dhn, call.dmoren, true, nullptr);
      this->end_at(args, call.dh0, call.dmore0);
      args.sums = as_const(against(kept_rows(call.preactivations)));
      args.kept = against(kept_rows(dsums));
      if (dvectors) args.dvectors = against(this->rows(dvectors, vector_values));
      const bool more = call.more_states() > 0;
      args.before = as_const(against(more ? this->rows(call.states, this->more_width()) : call.y));
      // From a step to the one before it, which a walk against the layer's comes to next.
      const Index back = lined && !call.reverse ? -args.before.step : args.before.step;
      args.before.data += back;
      args.initial = initial_rows(initial);
      if (fed()) {
        input_weight(args, *link->before);
      } else if (call.dy) {
        args.dy = as_const(against(call.dy));
      }
      if (link) {
        link_up(args, plan.persistent_vjp, true);
      } else if (whole) {
        this->walk_persistent(
            args, plan.persistent_vjp, true, exchange,
            whole_walk(&Kernels::persistent_vjp, &Large::persistent_vjp, plan.persistent_vjp));
      } else {
        args.to[0] = {h_carry, nullptr, hidden()};  // to which each step's product adds
        walk(args, this->lines(), 1, true, [&](const Args& part) {
          SCANRNN_CUDA(kernels.step_vjp(part, stream));
          // What is left is the cotangent of the initial state, for which nobody may ask.
          if (!lined && !call.dh0 && part.first_step + 1 == call.steps) return;
          this->product(this->lines(), hidden(), this->width(), {args.fed, this->width()},
                        {args.weight, args.weight_stride}, h_carry, hidden(), true, nullptr,
                        gemm_space, true);
        });
        if (call.dh0 && !lined && call.begins()) {
          copy(static_cast<const V*>(h_carry), hidden(), static_cast<T*>(call.dh0.data),
               call.dh0.strides[0], hidden());
        }
      }
      if (lined) this->end_ragged(call.dh0, call.dmore0);
    }
  }
  // What a step that is the first in time reads of the state before it: h_0, or what is behind it,
  // which goes to `rows`, [B,more_width()], where it is several tensors.
  Strided<const T> initial_rows(T* rows) {
    const TensorView& first = call.more_states() > 0 ? call.more0[0] : call.h0;
    if (!rows || !first) return {this->data(first), first.strides[0], 0};
    for (int i = 0; i < call.more_states(); ++i) {
      const TensorView& from = call.more0[static_cast<std::size_t>(i)];
      convert<<<pointwise::blocks_for(this->lines() * hidden()), pointwise::kThreads, 0, stream>>>(
          this->data(from), from.strides[0], rows + i * hidden(), this->more_width(), this->lines(),
          hidden(), 0.0f);
      SCANRNN_CUDA(cudaGetLastError());
    }
    return {rows, this->more_width(), 0};
  }
};

// A chain's layers, in the order of the walk, in launches that have all of them.
template <class T>
void run_chain(const dispatch::Plan& plan, const std::vector<LayerCall>& calls, bool backward,
               Arena& arena, CudaGemm* gemm, cudaStream_t stream) {
  using Args = typename DenseRun<T>::Args;
  std::vector<std::vector<Args>> launches(calls.size());
  std::vector<DenseRun<T>> runs;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    runs.push_back({{plan, calls[i], arena, gemm, stream}});
    runs.back().link = {&launches[i], i > 0 ? &calls[i - 1] : nullptr};
    backward ? runs.back().walk_back() : runs.back().forward();
  }
  if (arena.counting()) return;
  const auto& kernels = cuda_dense_kernels<T>(calls.front().cell, calls.front().variant);
  const auto& shape = backward ? plan.persistent_vjp : plan.persistent;
  const auto bytes = dispatch::exchange_bytes(plan.problem, shape, backward);
  for (std::size_t launch = 0; launch < launches.front().size(); ++launch) {
    std::vector<Args> layers;
    for (const auto& own : launches) layers.push_back(own[launch]);
    void* const exchange = runs.front().exchange;
    SCANRNN_CUDA(cudaMemsetAsync(exchange, 0xff, static_cast<std::size_t>(bytes), stream));
    SCANRNN_CUDA((backward ? kernels.chain_vjp : kernels.chain)(
        layers.data(), static_cast<int>(layers.size()), shape, exchange, stream));
  }
  if (!backward) return;
  for (DenseRun<T>& run : runs) run.products_back();
}

}  // namespace

void cuda_dense_chain(const dispatch::Plan& plan, const std::vector<LayerCall>& calls,
                      bool backward, Arena& arena, CudaGemm* gemm, cudaStream_t stream) {
  with_type(calls.front().y.dtype, [&](auto type) {
    run_chain<decltype(type)>(plan, calls, backward, arena, gemm, stream);
  });
}
void cuda_dense_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena,
                        CudaGemm* gemm, cudaStream_t stream) {
  with_type(call.y.dtype, [&](auto type) {
    DenseRun<decltype(type)>{{plan, call, arena, gemm, stream}}.forward();
  });
}
void cuda_dense_step_stack(const dispatch::Plan& plan, const std::vector<LayerCall>& calls,
                           const TensorView& indices, cudaStream_t stream) {
  const LayerCall& first = calls.front();
  Arena none(nullptr);
  with_type(first.y.dtype, [&](auto type) {
    using T = decltype(type);
    CudaStackArgs<T, typename DenseRun<T>::V> args;
    for (const LayerCall& call : calls) {
      DenseRun<T>{{plan, call, none, nullptr, stream}}.add_step(args, indices);
    }
    SCANRNN_CUDA(cuda_dense_kernels<T>(first.cell, first.variant)
                     .stack_step(args, plan.device.units, stream));
  });
}
void cuda_dense_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena,
                         CudaGemm* gemm, cudaStream_t stream) {
  with_type(call.y.dtype, [&](auto type) {
    DenseRun<decltype(type)>{{plan, call, arena, gemm, stream}}.backward();
  });
}

}  // namespace scanrnn
