// SPDX-License-Identifier: Apache-2.0
// The CPU as a backend: conversions and dropout here, layers in cpu/linear.cpp.
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "api/check.h"
#include "cpu/gemm.h"
#include "cpu/kernels/table.h"
#include "cpu/linear.h"
#include "cpu/ragged.h"
#include "cpu/rows.h"
#include "cpu/runtime.h"
#include "cpu/team.h"
#include "cpu/wait.h"
#include "scanrnn/error.h"
#include "stack/line_step.h"

namespace scanrnn {
namespace {

template <class T>
void drop_from(const TensorView& from, const TensorView& to, const Drop& drop) {
  const std::uint64_t seed = drop.seed.value(), threshold = drop.threshold();
  const T scale = static_cast<T>(drop.scale());
  const SequenceBounds* sequences = drop.sequences;
  for (Index i = 0; i < from.sizes[0]; ++i) {
    for (Index j = 0; j < from.sizes[1]; ++j) {
      const T* source =
          static_cast<const T*>(from.data) + i * from.strides[0] + j * from.strides[1];
      T* target = static_cast<T*>(to.data) + i * to.strides[0] + j * to.strides[1];
      const Index row = !sequences          ? (drop.first_step + i) * from.sizes[1] + j
                        : sequences->packed ? sequences->at(i)
                                            : j;
      const auto position = static_cast<std::uint64_t>(row * from.sizes[2]);
      for (Index k = 0; k < from.sizes[2]; ++k) {
        const auto dropped = [&] {
          return mix(seed ^ mix(position + static_cast<std::uint64_t>(k))) < threshold;
        };
        const T value = threshold > 0 && dropped() ? T(0) : source[k] * scale;
        target[k] = drop.adds ? target[k] + value : value;
      }
    }
  }
}

char* at(const TensorView& view, Index offset) {
  return static_cast<char*>(view.data) + offset * static_cast<Index>(size_of(view.dtype));
}

// Sums of many terms are added up in parts, whose rounding grows less.
template <class T>
void multiply(Index threads, Index m, Index n, Index k, const Factor& a, const Factor& b, void* c,
              Index c_stride, bool accumulate) {
  const auto matrix = [](const Factor& of, Index begin, bool along_rows) {
    const auto* data = static_cast<const T*>(of.data);
    return Matrix<T>{data + begin * (along_rows == of.transposed ? 1 : of.stride), of.stride,
                     of.transposed};
  };
  run_team(std::clamp<Index>(m * n * k / dispatch::kCpuThreadWork, 1, threads),
           [&](const scan::Team& team) {
             for (Index first = 0; first == 0 || first < k; first += kSummedTokens) {
               gemm<T>(team, m, n, std::min(kSummedTokens, k - first), matrix(a, first, false),
                       matrix(b, first, true), static_cast<T*>(c), c_stride,
                       accumulate || first > 0);
             }
           });
}

template <class T>
void spread_heads(const TensorView& from, const TensorView& to, bool back) {
  const TensorView &heads = back ? to : from, &whole = back ? from : to;
  const Index units = heads.sizes[1], hidden = whole.sizes[1];
  for (Index row = 0; row < whole.sizes[0]; ++row) {
    T* of_head = static_cast<T*>(heads.data) + row * heads.strides[0];
    T* all = static_cast<T*>(whole.data) + row * whole.strides[0];
    T* own = all + row % hidden / units * units;
    if (back) {
      std::copy_n(own, units, of_head);
    } else {
      std::fill_n(all, hidden, T(0));
      std::copy_n(of_head, units, own);
    }
  }
}

template <class T>
const CpuLineKernels<T>& line_kernels() {
  if constexpr (sizeof(T) == 4) {
    return cpu_kernels().lines.float32;
  } else {
    return cpu_kernels().lines.float64;
  }
}

// Calls use(token, row of a, row of b, row of c, row of d) for this thread's tokens of [T,B,.].
template <class T, class F>
void for_tokens(Index threads, const TensorView& a, const TensorView& b, const TensorView& c,
                const TensorView& d, F&& use) {
  const Index steps = a.sizes[0], lines = a.sizes[1], tokens = steps * lines;
  const Index work = tokens * a.sizes[2] * dispatch::kCpuWalkCost;
  run_team(
      std::clamp<Index>(work / dispatch::kCpuThreadWork, 1, threads), [&](const scan::Team& team) {
        const scan::Range mine = team.share(tokens);
        for (Index i = mine.begin; i < mine.end; ++i) {
          const auto row = [&](const TensorView& v) {
            return static_cast<T*>(v.data) + i / lines * v.strides[0] + i % lines * v.strides[1];
          };
          use(row(a), row(b), row(c), row(d));
        }
      });
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(Index threads) {
    limits_.processor = dispatch::Processor::cpu;
    limits_.units = threads;
    const dispatch::Profile* measured = dispatch::find_profile(cpu_architecture());
    if (measured) profile_ = measured;
  }
  const dispatch::DeviceLimits& limits() const override { return limits_; }
  const dispatch::Profile& default_profile() const override { return *profile_; }
  Dtype inner_type(Dtype dtype) const override { return compute_type(dtype); }

  void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) override {
    (call.is_dense() ? cpu_dense_forward : cpu_forward)(plan, call, workspace);
  }
  void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) override {
    (call.is_dense() ? cpu_dense_backward : cpu_backward)(plan, call, workspace);
  }
  // Each call is a thread's own, whose team has one member.
  void at_once(int calls, Index parts, bool chained,
               const std::function<void(int, Index)>& run) override {
    std::array<std::atomic<Index>, dispatch::kMostAtOnce> done{};
    run_team(std::min<Index>(calls, limits_.units), [&](const scan::Team& team) {
      for (int call = team.rank; call < calls; call += team.size) {
        const auto of = [&](int i) -> auto& { return done[static_cast<std::size_t>(i)]; };
        for (Index part = 0; part < parts; ++part) {
          if (chained && call > 0) {
            wait_until([&] { return of(call - 1).load(std::memory_order_acquire) > part; });
          }
          run(call, part);
          of(call).store(part + 1, std::memory_order_release);
        }
      }
    });
  }
  void chain(const dispatch::Plan&, const std::vector<LayerCall>&, bool, Arena&) override {
    throw value_error(
        "plan: layers are one launch on CUDA alone");  // the planner never asks for it
  }
  void step_stack(const dispatch::Plan&, const std::vector<LayerCall>&,
                  const TensorView&) override {
    throw value_error("plan: a step of layers is one launch on CUDA alone");  // nor this
  }
  void scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& workspace) override {
    cpu_scan(plan, args, workspace);
  }
  void scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args,
                     Arena& workspace) override {
    cpu_scan_backward(plan, args, workspace);
  }
  void copy(const TensorView& from, const TensorView& to) override {
    constexpr Index kOfThread = 1 << 16;  // elements worth waking one for
    const SharedRows rows(from, to);
    run_team(std::clamp<Index>(rows.elements() / kOfThread, 1, limits_.units),
             [&](const scan::Team& team) {
               rows.share(team, [&](Index a, Index b, Index count) {
                 cpu_kernels().convert(at(from, a), from.dtype, at(to, b), to.dtype, count);
               });
             });
  }
  void dropout(const TensorView& from, const TensorView& to, const Drop& drop) override {
    (from.dtype == Dtype::float64 ? drop_from<double> : drop_from<float>)(from, to, drop);
  }
  void product(Dtype dtype, Index m, Index n, Index k, const Factor& a, const Factor& b, void* c,
               Index c_stride, bool accumulate, Arena& workspace, bool) override {
    if (workspace.counting()) return;
    const auto run = dtype == Dtype::float64 ? multiply<double> : multiply<float>;
    run(limits_.units, m, n, k, a, b, c, c_stride, accumulate);
  }
  void sum_tokens(const TensorView& tokens, const TensorView& sums, Arena& workspace) override {
    if (workspace.counting()) return;
    const auto add = [&](auto type) {
      using T = decltype(type);
      const Index count = tokens.sizes[0] * tokens.sizes[1];
      const Index apart = std::min(tokens.strides[0], tokens.strides[1]);
      const Index work = count * tokens.sizes[2];
      run_team(std::clamp<Index>(work / dispatch::kCpuThreadWork, 1, limits_.units),
               [&](const scan::Team& team) {
                 kernels_of<T>().column_sums(team, static_cast<const T*>(tokens.data), count, apart,
                                             tokens.sizes[2], static_cast<T*>(sums.data));
               });
    };
    tokens.dtype == Dtype::float64 ? add(double()) : add(float());
  }
  void norm_tokens(const TensorView& from, const TensorView& scale, const TensorView& bias,
                   const TensorView& to) override {
    const auto run = [&](auto type) {
      using T = decltype(type);
      for_tokens<T>(limits_.units, from, to, to, to, [&](T* row, T* out, T*, T*) {
        line_kernels<T>().norm(row, static_cast<const T*>(scale.data),
                               static_cast<const T*>(bias.data), out, from.sizes[2]);
      });
    };
    from.dtype == Dtype::float64 ? run(double()) : run(float());
  }
  void norm_tokens_vjp(const TensorView& from, const TensorView& scale, const TensorView& d,
                       const TensorView& dfrom, const TensorView& dscale) override {
    const auto run = [&](auto type) {
      using T = decltype(type);
      for_tokens<T>(limits_.units, from, d, dfrom, dscale,
                    [&](T* row, T* drow, T* out, T* out_scale) {
                      line_kernels<T>().norm_vjp(row, static_cast<const T*>(scale.data), drow, out,
                                                 out_scale, from.sizes[2]);
                    });
    };
    from.dtype == Dtype::float64 ? run(double()) : run(float());
  }
  void line_step(const LineStep& step) override {
    const auto run = [&](auto type) {
      using T = decltype(type);
      const LayerCall& call = step.call;
      const auto kernel = line_kernels<T>().line[static_cast<int>(call.cell)][call.variant];
      const auto args = line_args<T, T>(step);
      const Index work = step.lines() * call.width() * dispatch::kCpuWalkCost;
      run_team(std::clamp<Index>(work / dispatch::kCpuThreadWork, 1, limits_.units),
               [&](const scan::Team& team) {
                 const scan::Range mine = team.share(step.lines());
                 for (Index n = mine.begin; n < mine.end; ++n) kernel(step.phase, args, n);
               });
    };
    step.call.y.dtype == Dtype::float64 ? run(double()) : run(float());
  }
  void walk_lines(const dispatch::Plan&, const LineStep&, Index, Index, bool, Arena&) override {
    throw value_error("plan: a walk by whole lines is one launch on CUDA alone");  // nor this
  }
  Index most_steps(const dispatch::Plan&, const LayerCall& call) const override {
    const SequenceSteps steps(call);
    Index most = 0;
    for (Index n = 0; n < steps.all.count; ++n) most = std::max(most, steps.count(n));
    return most;
  }
  void spread_heads(const TensorView& from, const TensorView& to, bool back) override {
    const auto run =
        from.dtype == Dtype::float64 ? scanrnn::spread_heads<double> : scanrnn::spread_heads<float>;
    run(from, to, back);
  }
  void add_to_last(const LayerCall& call, const TensorView& rows,
                   const TensorView& tokens) override {
    const auto add = [&](auto type) {
      using T = decltype(type);
      add_to_edges<T>(scan::Team(), EdgeSteps(call, true),
                      {static_cast<const T*>(rows.data), rows.strides[0], 0}, tokens);
    };
    tokens.dtype == Dtype::float64 ? add(double()) : add(float());
  }
  void take_last(const LayerCall& call, const TensorView& tokens, const TensorView& rows) override {
    const auto take = [&](auto type) {
      using T = decltype(type);
      take_edges<T>(scan::Team(), EdgeSteps(call, true), tokens,
                    {static_cast<T*>(rows.data), rows.strides[0], 0});
    };
    tokens.dtype == Dtype::float64 ? take(double()) : take(float());
  }
  void take_entering(const LayerCall& call, const TensorView& states,
                     const TensorView& rows) override {
    const EdgeSteps edges(call, false);
    const auto bytes = static_cast<std::size_t>(rows.sizes[1]) * size_of(rows.dtype);
    for (Index n = 0; n < edges.count(); ++n) {
      char* own = at(rows, n * rows.strides[0]);
      edges.step(n) < 0 ? std::memset(own, 0, bytes)
                        : std::memcpy(own, at(states, n * states.strides[0]), bytes);
    }
  }
  void pass_states(const SequenceBounds& sequences, const TensorView& from,
                   const TensorView& to) override {
    for (Index n = 0; n < sequences.count; ++n) {
      if (sequences.length(n) > 0) continue;
      const auto bytes = static_cast<std::size_t>(to.sizes[1]) * size_of(to.dtype);
      char* own = at(to, n * to.strides[0]);
      from ? static_cast<void>(std::memcpy(own, at(from, n * from.strides[0]), bytes))
           : static_cast<void>(std::memset(own, 0, bytes));
    }
  }
  void clear_padding(const TensorView& view, const TensorView& lengths) override {
    const auto clear = view.dtype == Dtype::float64 ? scanrnn::clear_padding<double>
                                                    : scanrnn::clear_padding<float>;
    clear(scan::Team(), view, lengths);
  }
  void clear_skipped(const TensorView& view, const TensorView& indices, Index) override {
    const Integers index(indices);
    for (Index line = 0; line < view.sizes[1]; ++line) {
      if (index[line] < 0) clear_row(view, 0, line);
    }
  }
  void take_states(const TensorView& pool, const TensorView& indices,
                   const TensorView& rows) override {
    for_rows(pool, indices, rows, [&](const TensorView& state, const TensorView& row) {
      state ? copy(state, row) : clear_row(row, 0, 0);
    });
  }
  void put_states(const TensorView& rows, const TensorView& indices,
                  const TensorView& pool) override {
    for_rows(pool, indices, rows, [&](const TensorView& state, const TensorView& row) {
      if (state) copy(row, state);
    });
  }

 private:
  static void clear_row(const TensorView& view, Index i, Index j) {
    const auto bytes = static_cast<std::size_t>(view.sizes[2]) * size_of(view.dtype);
    std::memset(at(view, i * view.strides[0] + j * view.strides[1]), 0, bytes);
  }
  // use(state of the pool, row), each [1,1,.]; of the index -1 there is no state.
  template <class F>
  static void for_rows(const TensorView& pool, const TensorView& indices, const TensorView& rows,
                       F&& use) {
    const Integers index(indices);
    const auto one = [](TensorView view, Index i, Index j) {
      view.data = at(view, i * view.strides[0] + j * view.strides[1]);
      view.sizes[0] = view.sizes[1] = 1;
      return view;
    };
    for (Index i = 0; i < rows.sizes[0]; ++i) {
      for (Index j = 0; j < rows.sizes[1]; ++j) {
        use(index[j] < 0 ? TensorView{} : one(pool, i, index[j]), one(rows, i, j));
      }
    }
  }

  dispatch::DeviceLimits limits_;
  const dispatch::Profile* profile_ = &dispatch::generic_cpu_profile();
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const ContextOptions& options) {
  const int available = std::min(omp_get_max_threads(), omp_get_num_procs());
  return std::make_unique<CpuBackend>(options.threads > 0 ? options.threads : available);
}

Backend& cpu_counting_backend() {
  static CpuBackend cpu(1);
  return cpu;
}

}  // namespace scanrnn
