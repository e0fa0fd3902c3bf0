// SPDX-License-Identifier: Apache-2.0
// A dense layer on CUDA: one product with the input for all steps, then the walk, step by step or
// in one launch, and backward the products for the parameters.
#include "backend.h"
#include "cuda_dense.h"
#include "cuda_run.cuh"

namespace scanrnn {
namespace {

template <class T>
const CudaDenseKernels<T>& kernels_of(Cell cell) {
  switch (cell) {
#define SCANRNN_DENSE_CELL(name, ...) \
  case Cell::name:                    \
    return cuda_dense_kernels<Cell::name, T>();
#include "scanrnn/cells.def"
    default:
      break;
  }
  throw value_error("cell: there is no such cell");
}

// The biases of W x and R h, each with the sums that its row blocks add to; either may be null.
template <class T, class V>
__global__ void add_biases(const T* input, const T* recurrent, Index width, Index own, V* sums) {
  for (Index i = pointwise::first_item(); i < width + own; i += pointwise::item_stride()) {
    V sum = V(0);
    if (input && i < width) sum += static_cast<V>(input[i]);
    const Index in_order = width - own;  // the last `own` rows of R h have sums of their own
    const Index j = i < in_order ? i : i >= width ? i - own : width;
    if (recurrent && j < width) sum += static_cast<V>(recurrent[j]);
    sums[i] = sum;
  }
}

// Between a [B,H] tensor and what is carried; an absent one is zeros, or not wanted.
template <class From, class To>
__global__ void convert(const From* from, Index from_line, To* to, Index to_line, Index batch,
                        Index hidden) {
  for (Index i = pointwise::first_item(); i < batch * hidden; i += pointwise::item_stride()) {
    const From* line = from + i / hidden * from_line;
    to[i / hidden * to_line + i % hidden] = from ? static_cast<To>(line[i % hidden]) : To(0.0f);
  }
}

template <class T>
struct DenseRun : CudaRun<T> {
  using Run = CudaRun<T>;
  using V = typename Run::V;
  using Run::arena;
  using Run::pass;
  using Run::plan;
  using Run::stream;

  Index hidden() const { return pass.hidden; }
  Index kept() const { return pass.kept_width(); }
  Index state() const { return pass.batch * pass.hidden; }
  Index own() const { return kept() - this->width(); }  // row blocks of R h with their own sums
  void* gemm_space = nullptr;

  template <class From, class To>
  void to_from(To* to, Index to_line, const From* from, Index from_line) {
    convert<<<pointwise::blocks_for(state()), pointwise::kThreads, 0, stream>>>(
        from, from_line, to, to_line, pass.batch, hidden());
    SCANRNN_CUDA(cudaGetLastError());
  }
  void load(const TensorView& from, V* carry) {
    to_from(carry, hidden(), this->data(from), from.strides[0]);
  }
  void store(const V* carry, const TensorView& to) {
    if (to) to_from(static_cast<T*>(to.data), to.strides[0], carry, hidden());
  }
  TensorView kept_rows(const void* data) const { return this->rows(data, kept()); }

  // Walks lines and steps in as many launches as the shape asks for, each from where the last
  // ended.
  template <class Launch>
  void walk(const CudaDenseArgs<T, V>& args, const dispatch::PersistentShape& shape, bool backward,
            void* exchange, Launch&& launch) {
    for (Index line = 0; line < args.batch; line += shape.lines) {
      for (Index step = 0; step < args.steps; step += shape.steps) {
        CudaDenseArgs<T, V> part = args;
        part.batch = std::min(args.batch - line, shape.lines);
        part.steps = std::min(args.steps - step, shape.steps);
        part.h += line * hidden();
        if (part.c) part.c += line * hidden();
        const auto move = [&](auto& s) {
          if (s.data) s.data += line * s.line + step * s.step;
        };
        move(part.sums), move(part.kept), move(part.y), move(part.cells);
        move(part.before), move(part.dy);
        if (step + part.steps < args.steps) {  // before its last step there is another one
          part.initial = {part.before.at(part.steps - 1), part.before.line, 0};
        } else if (part.initial.data) {
          part.initial.data += line * part.initial.line;
        }
        dispatch::PersistentShape own = shape;
        own.groups = static_cast<int>(std::min<Index>(shape.groups, part.batch));
        const auto bytes = dispatch::exchange_bytes(plan.problem, shape, backward);
        SCANRNN_CUDA(cudaMemsetAsync(exchange, 0xff, static_cast<std::size_t>(bytes), stream));
        SCANRNN_CUDA(launch(part, own, exchange, stream));
      }
    }
  }

  void forward() {
    const auto& kernels = kernels_of<T>(pass.cell);
    const bool whole = plan.strategy == dispatch::Strategy::persistent;
    const bool keep = pass.preactivations != nullptr || (arena.counting() && plan.problem.training);
    CudaDenseArgs<T, V> args;
    V* bias = this->template take<V>(kept());
    args.h = this->template take<V>(state());
    args.c = pass.pair() ? this->template take<V>(state()) : nullptr;
    T* projected =
        keep ? static_cast<T*>(pass.preactivations) : this->take(this->tokens() * this->width());
    const Index stride = keep ? kept() : this->width();
    gemm_space = arena.take(CudaGemm::kWorkspace);
    void* exchange = nullptr;
    V* products = nullptr;
    if (whole) {
      exchange = arena.take(
          static_cast<std::size_t>(dispatch::exchange_bytes(plan.problem, plan.persistent, false)));
    } else {
      products = this->template take<V>(pass.batch * this->width());
      args.fed = this->take(state());
    }
    if (arena.counting() || pass.batch == 0) return;

    add_biases<<<pointwise::blocks_for(kept()), pointwise::kThreads, 0, stream>>>(
        this->data(pass.bias), this->data(pass.recurrent_bias), this->width(), own(), bias);
    SCANRNN_CUDA(cudaGetLastError());
    load(pass.h0, args.h);
    if (args.c) load(pass.c0, args.c);
    for_runs<T>(pass, this->all(), pass.x,
                [&](const T* from, Index spacing, Index first, Index count) {
                  this->product(count, this->width(), pass.input, {from, spacing},
                                {pass.weight.data, pass.weight.strides[0], true},
                                projected + first * stride, stride, false, nullptr, gemm_space);
                });
    const auto walked_here = [&](const TensorView& v) {
      return walked<T>(v, this->all(), pass.reverse);
    };
    args.batch = pass.batch;
    args.hidden = hidden();
    args.steps = pass.steps;
    args.weight = this->data(pass.recurrent_weight);
    args.weight_stride = pass.recurrent_weight.strides[0];
    args.bias = bias;
    args.sums = as_const(walked_here(this->rows(projected, stride)));
    if (keep) args.kept = walked_here(kept_rows(projected));
    args.y = walked_here(pass.y);
    if (keep && args.c) args.cells = walked_here(this->rows(pass.states, hidden()));
    args.products = products;
    if (whole) {
      walk(args, plan.persistent, false, exchange, kernels.persistent);
    } else {
      to_from(args.fed, hidden(), args.h, hidden());
      for (Index t = 0; t < pass.steps; ++t) {
        this->product(pass.batch, this->width(), hidden(), {args.fed, hidden()},
                      {args.weight, args.weight_stride, true}, products, this->width(), false,
                      nullptr, gemm_space, true);
        SCANRNN_CUDA(kernels.step(args, t, stream));
      }
    }
    store(args.h, pass.hn);
    if (args.c) store(args.c, pass.cn);
  }

  void backward() {
    const auto& kernels = kernels_of<T>(pass.cell);
    const bool whole =
        plan.strategy == dispatch::Strategy::persistent && plan.persistent_vjp.tile >= 0;
    CudaDenseArgs<T, V> args;
    args.h = this->template take<V>(state());
    args.c = pass.pair() ? this->template take<V>(state()) : nullptr;
    T* dsums = this->take(this->tokens() * kept());
    V* parts = this->template take<V>(pointwise::kParts * kept());
    gemm_space = arena.take(CudaGemm::kWorkspace);
    void* exchange = nullptr;
    if (whole) {
      exchange = arena.take(static_cast<std::size_t>(
          dispatch::exchange_bytes(plan.problem, plan.persistent_vjp, true)));
    } else {
      args.fed = this->take(pass.batch * this->width());
    }
    if (arena.counting()) return;

    if (pass.batch > 0) {
      load(pass.dhn, args.h);
      if (args.c) load(pass.dcn, args.c);
      const auto against = [&](const TensorView& v) {
        return walked<T>(v, this->all(), !pass.reverse);
      };
      args.batch = pass.batch;
      args.hidden = hidden();
      args.steps = pass.steps;
      args.weight = this->data(pass.recurrent_weight);
      args.weight_stride = pass.recurrent_weight.strides[0];
      args.sums = as_const(against(kept_rows(pass.preactivations)));
      args.kept = against(kept_rows(dsums));
      args.before = as_const(against(args.c ? this->rows(pass.states, hidden()) : pass.y));
      args.before.data += args.before.step;  // from a step to the one before it
      const TensorView& initial = args.c ? pass.c0 : pass.h0;
      args.initial = {this->data(initial), initial.strides[0], 0};
      if (pass.dy) args.dy = as_const(against(pass.dy));
      if (whole) {
        walk(args, plan.persistent_vjp, true, exchange, kernels.persistent_vjp);
      } else {
        for (Index t = 0; t < pass.steps; ++t) {
          SCANRNN_CUDA(kernels.step_vjp(args, t, stream));
          this->product(pass.batch, hidden(), this->width(), {args.fed, this->width()},
                        {args.weight, args.weight_stride}, args.h, hidden(), true, nullptr,
                        gemm_space, true);
        }
      }
      store(args.h, pass.dh0);
      if (args.c) store(args.c, pass.dc0);
    }
    if (pass.dx && this->tokens() > 0) {
      this->input_cotangent(dsums, kept(), pass.accumulate_dx, gemm_space);
    }
    if (pass.dweight) this->weight_cotangent(dsums, kept(), gemm_space);
    if (pass.dbias) this->sum_tokens(dsums, kept(), this->width(), parts, pass.dbias.data);
    if (pass.drecurrent_bias) {
      const Index in_order = this->width() - own();
      auto* out = static_cast<T*>(pass.drecurrent_bias.data);
      this->sum_tokens(dsums, kept(), in_order, parts, out);
      if (own() > 0) {
        this->sum_tokens(dsums + this->width(), kept(), own(), parts, out + in_order);
      }
    }
    if (pass.drecurrent_weight) recurrent_cotangent(dsums);
  }

  // dR = sum over tokens of d(R h)^T and the h before; the rows of R h as their sums lie. It may
  // clear dsums where there is no step before.
  void recurrent_cotangent(T* dsums) {
    auto* d = static_cast<T*>(pass.drecurrent_weight.data);
    const Index stride = pass.drecurrent_weight.strides[0];
    this->clear(d, stride, hidden());
    if (this->tokens() == 0) return;
    const Index in_order = this->width() - own();
    const auto add = [&](const TensorView& a, const TensorView& h) {
      for_pairs<const T, const T>(
          pass, a, h, [&](const T* from, Index spacing, const T* with, Index along, Index count) {
            this->product(in_order, hidden(), count, {from, spacing, true}, {with, along}, d,
                          stride, true, nullptr, gemm_space);
            this->product(own(), hidden(), count, {from + this->width(), spacing, true},
                          {with, along}, d + in_order * stride, stride, true, nullptr, gemm_space);
          });
    };
    const auto steps_from = [](TensorView view, Index first, Index count) {
      view.data = static_cast<T*>(view.data) + first * view.strides[0];
      view.sizes[0] = count;
      return view;
    };
    const TensorView all = kept_rows(dsums);
    const Index last = pass.steps - 1, after = pass.reverse ? 0 : 1;
    const Index first = pass.reverse ? last : 0;  // of the walk
    if (pass.h0) {
      TensorView h0 = pass.h0;  // [B,H] as [1,B,H]
      h0.rank = 3;
      h0.sizes = {1, pass.batch, hidden()};
      h0.strides = {pass.h0.strides[0], pass.h0.strides[0], 1};
      add(steps_from(all, first, 1), h0);
    }
    if (last == 0) return;
    const bool adjacent = pass.y.strides[1] == pass.steps * pass.y.strides[0];
    if (!pass.batch_major || pass.batch == 1 || !adjacent) {
      add(steps_from(all, after, last), steps_from(pass.y, 1 - after, last));
      return;
    }
    // Lines that follow one another in memory are one long line, a single product, in which the
    // first step of each has nothing before it: a product for each line would round dR each time.
    convert<<<pointwise::blocks_for(pass.batch * kept()), pointwise::kThreads, 0, stream>>>(
        static_cast<const T*>(nullptr), Index{0}, dsums + first * kept(), pass.steps * kept(),
        pass.batch, kept());
    SCANRNN_CUDA(cudaGetLastError());
    const auto long_line = [&](TensorView view, Index from) {
      view.sizes[1] = 1;
      return steps_from(view, from, this->tokens() - 1);
    };
    add(long_line(all, after), long_line(pass.y, 1 - after));
  }
};

}  // namespace

void cuda_dense_forward(const dispatch::Plan& plan, const Pass& pass, Arena& arena, CudaGemm* gemm,
                        cudaStream_t stream) {
  with_type(pass.y.dtype, [&](auto type) {
    DenseRun<decltype(type)>{{plan, pass, arena, gemm, stream}}.forward();
  });
}
void cuda_dense_backward(const dispatch::Plan& plan, const Pass& pass, Arena& arena, CudaGemm* gemm,
                         cudaStream_t stream) {
  with_type(pass.y.dtype, [&](auto type) {
    DenseRun<decltype(type)>{{plan, pass, arena, gemm, stream}}.backward();
  });
}

}  // namespace scanrnn
