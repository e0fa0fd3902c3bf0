// SPDX-License-Identifier: Apache-2.0
// A whole forward step of a dense cell for a few lines, products and all. Weights are read once and
// nothing but the new state is written. Lines of a ragged batch come with their sums, and a step
// that is cut takes nothing that R gives. What a block makes of a step is a struct, ByFragments or
// ByLanes: here is the kernel of one layer, in stack_step.cuh, with kStack, that of a stack.
#pragma once

#include "cuda/kernels/fragment_sums.cuh"
#include "cuda/kernels/project.cuh"
#include "cuda/kernels/step.cuh"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::step {

// What of a step a thread makes itself.
struct Place {
  Index line, unit;
  bool live;
};

// How many of a block's lines have a state: of a ragged batch, whose longest lines are first, those
// that have ended have none, or one that no step has written.
template <bool kStack, class Args>
__device__ __forceinline__ int with_states(const Args& a, Index first_line, int lines) {
  if constexpr (!kStack) {
    while (a.lines && lines > 0 && a.steps_of(first_line + lines - 1) == 0) --lines;
  }
  return lines;
}

// By tensor cores, for kGroups times 8 lines: a block owns kUnits units, a warp a share of the
// inputs, and a thread adds up the sums of one unit of one line and makes its step.
template <class C, class T, bool kVectors, int kGroups, bool kStack>
struct ByFragments {
  using Args = CudaDenseArgs<T, float>;
  using Stack = CudaStackArgs<T, float>;
  using Sums = FragmentSums<T, kVectors, C::kGates, kGroups>;
  using Asked = typename Sums::Asked;
  static constexpr int kThreads = 32 * kWarps, kBlockUnits = kUnits, kBlockLines = 8 * kGroups;
  static constexpr int kResident = 2;  // blocks of a multiprocessor, for which there are registers
  static constexpr int kSums = C::kPreactivations;
  static_assert(kSums <= 4, "a unit's sums are one float4");
  static_assert(kBlockLines * kBlockUnits <= kThreads, "a thread has one item");
  struct Shared {
    float4 parts[kWarps][kBlockLines][kUnits + 1];  // apart, so that quads meet other banks
  };

  Item<C, T, float, kStack> item;
  bool live, left = false;  // whether shared memory has any sums
  Index first_line, row;    // row: a unit's, of the fragments
  int lines;

  static __device__ __forceinline__ Place place(const Args& a, Index first_unit, Index first_line) {
    const int line = threadIdx.x / kUnits;
    Place out{first_line + line, first_unit + threadIdx.x % kUnits, false};
    out.live =
        line < kBlockLines && out.line < a.batch && out.unit < a.hidden && a.steps_of(out.line) > 0;
    return out;
  }
  __device__ __forceinline__ ByFragments(const Args& a, Index first_unit, Index first_line)
      : first_line(first_line),
        row(first_unit + threadIdx.x % 32 / 4),
        lines(a.batch - first_line < kBlockLines ? static_cast<int>(a.batch - first_line)
                                                 : kBlockLines) {
    const Place own = place(a, first_unit, first_line);
    item.line = own.line;
    item.unit = own.unit;
    live = own.live;
    if (live) item.load(a);  // what these loads bring is on its way during the products
  }
  __device__ __forceinline__ UnitRows<T> rows(const Args& a, const T* weight, Index stride,
                                              Index width) const {
    return {row < a.hidden ? weight + row * stride : nullptr, a.hidden * stride, width};
  }
  __device__ __forceinline__ UnitRows<T> input_rows(const Args& a) const {
    return rows(a, a.input_weight, a.input_weight_stride, a.input);
  }
  __device__ __forceinline__ auto tokens(const Args& a) const {
    return Sums::lines(lines, [&](int i) { return a.x.at_line(first_line + i).data; });
  }
  __device__ __forceinline__ void multiply_input(const Args& a, Shared& shared) {
    if (a.sums.data) return;
    Sums sums;
    sums.multiply(input_rows(a), tokens(a), 0, a.input);
    leave<false>(sums, shared);
  }
  __device__ __forceinline__ void ask_input(const Args& a, Asked& asked) const {
    Sums::ask(input_rows(a), asked);
  }
  __device__ __forceinline__ void multiply_input(const Args& a, const Asked& asked,
                                                 Shared& shared) {
    Sums sums;
    sums.multiply(asked, input_rows(a), tokens(a));
    leave<false>(sums, shared);
  }
  // Where the second level cache does not keep R from step to step, the half that a step has read
  // last is read first by the next one. Each half has sums of its own, so that the result does not
  // depend on their order.
  __device__ __forceinline__ void multiply_recurrent(const Args& a, Shared& shared) {
    const int states = a.initial.data ? with_states<kStack>(a, first_line, lines) : 0;
    if (states == 0) return;
    const auto before =
        Sums::lines(states, [&](int i) { return a.template h_before<kStack>(first_line + i); });
    const UnitRows<T> own = rows(a, a.weight, a.weight_stride, a.hidden);
    const Index bytes = C::kGates * a.hidden * a.hidden * static_cast<Index>(sizeof(T));
    const bool halves = bytes > dispatch::kCudaCachedWeights;
    bool upper = halves && a.first_step % 2 != 0;
    const Index middle = halves ? a.hidden / 2 / Sums::kTurn * Sums::kTurn : a.hidden;
#pragma unroll 1
    for (int i = 0; i <= halves; ++i, upper = !upper) {
      Sums sums;
      sums.multiply(own, before, upper ? middle : 0, upper ? a.hidden : middle);
      leave<true>(sums, shared);
    }
  }
  // Adds a lane's sums to those that it has in shared memory, where it has room for more of them.
  template <bool kRecurrent>
  __device__ __forceinline__ void leave(const Sums& sums, Shared& shared) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        auto own = DenseSums<C, float>::zeros();
        const auto of = [&](int i) { return sums.value[group][i / 2][i % 2 * 2 + column]; };
        if (kRecurrent) {
          own.add_recurrent(of);
        } else {
          own.add_input(of);
        }
        float4& at = shared.parts[threadIdx.x / 32][group * 8 + 2 * (lane % 4) + column][lane / 4];
        const float4 before = left ? at : make_float4(0, 0, 0, 0);
        const auto value = [&](int i) { return i < kSums ? own.value[i < kSums ? i : 0] : 0.0f; };
        at = make_float4(before.x + value(0), before.y + value(1), before.z + value(2),
                         before.w + value(3));
      }
    }
    left = true;
  }
  // Every thread of a block calls it.
  __device__ __forceinline__ void finish(const Args& a, Shared& shared) {
    __syncthreads();
    if (!live) return;
    if (left && !item.cut) {
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float4 part = shared.parts[i][threadIdx.x / kUnits][threadIdx.x % kUnits];
        const float sums[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int s = 0; s < kSums; ++s) item.sums.value[s] += sums[s];
      }
    }
    item.walk(a);
  }
};

// Sums of kCount values over the lanes of a warp. A lane sends one half of its values and keeps the
// other until one is left: value number lane / (32 / kCount).
template <int kCount, int kApart = scan::cuda::kLanes / 2, class V>
__device__ __forceinline__ V sums_over_lanes(V* values) {
  if constexpr (kApart == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(~0u, values[0], kApart);
    return sums_over_lanes<1, kApart / 2>(values);
  } else {
    const bool upper = threadIdx.x & kApart;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const V kept = upper ? values[i + kCount / 2] : values[i];
      const V sent = upper ? values[i] : values[i + kCount / 2];
      values[i] = kept + __shfl_xor_sync(~0u, sent, kApart);
    }
    return sums_over_lanes<kCount / 2, kApart / 2>(values);
  }
}

// Without tensor cores: a warp owns a unit and reads its rows of W and R once for kLines lines;
// then lane k makes the step of line k. For what tensor cores would round, and for one line of any
// type, which would leave seven columns of a fragment empty.
template <class C, class T, int kVector, int kLines, bool kStack>
struct ByLanes {
  using V = typename CudaDenseKernels<T>::V;
  using Args = CudaDenseArgs<T, V>;
  using Stack = CudaStackArgs<T, V>;
  using Asked = AskedPieces<T, kVector, C::kGates>;
  static constexpr int kLanes = scan::cuda::kLanes, kSums = C::kPreactivations;
  static constexpr int kBlockUnits = kStack ? kWarps : kProjectWarps,
                       kThreads = kBlockUnits * kLanes;
  static constexpr int kBlockLines = kLines, kResident = 1;
  static constexpr int kApart = kLanes / (kSums * kLines);  // lanes that end with the same sum
  static_assert(kApart * kSums * kLines == kLanes, "sums are halved until a lane has one");
  struct Shared {};
  struct Rows {
    const T* of[C::kGates];
  };

  Item<C, T, V, kStack> item;
  bool live, exists;  // whether there is the warp's unit
  Index first_line;
  int lines;
  V input[kLines][C::kGates] = {}, recurrent[kLines][C::kGates] = {};

  static __device__ __forceinline__ Place place(const Args& a, Index first_unit, Index first_line) {
    const int lane = threadIdx.x % kLanes;
    Place out{first_line + lane, first_unit + threadIdx.x / kLanes, false};
    out.live =
        lane < kLines && out.line < a.batch && out.unit < a.hidden && a.steps_of(out.line) > 0;
    return out;
  }
  __device__ __forceinline__ ByLanes(const Args& a, Index first_unit, Index first_line)
      : first_line(first_line),
        lines(a.batch - first_line < kLines ? static_cast<int>(a.batch - first_line) : kLines) {
    const Place own = place(a, first_unit, first_line);
    item.line = own.line;
    item.unit = own.unit;
    live = own.live;
    exists = own.unit < a.hidden;
    if (live) item.load(a);  // what these loads bring is on its way during the products
  }
  __device__ __forceinline__ Rows rows(const Args& a, const T* weight, Index stride) const {
    Rows out;
#pragma unroll
    for (int i = 0; i < C::kGates; ++i) {
      out.of[i] = weight + (i * a.hidden + item.unit) * stride;
    }
    return out;
  }
  // line_of(i) of each line.
  struct Lines {
    const T* of[kLines];
    template <class LineOf>
    __device__ __forceinline__ Lines(int count, LineOf&& line_of) {
#pragma unroll
      for (int i = 0; i < kLines; ++i) of[i] = i < count ? line_of(i) : nullptr;
    }
    __device__ __forceinline__ const T* operator()(int i) const { return of[i]; }
  };
  __device__ __forceinline__ Lines tokens(const Args& a) const {
    return {lines, [&](int i) { return a.x.at_line(first_line + i).data; }};
  }
  __device__ __forceinline__ void multiply_input(const Args& a, Shared&) {
    if (!exists || a.sums.data) return;
    const Rows own = rows(a, a.input_weight, a.input_weight_stride);
    project<kVector>(own.of, tokens(a), lines, a.input, input);
  }
  __device__ __forceinline__ void ask_input(const Args& a, Asked& asked) const {
    if (exists) asked.ask(rows(a, a.input_weight, a.input_weight_stride).of, a.input);
  }
  __device__ __forceinline__ void multiply_input(const Args& a, const Asked& asked, Shared&) {
    if (!exists) return;
    const Rows own = rows(a, a.input_weight, a.input_weight_stride);
    asked.project(own.of, tokens(a), lines, a.input, input);
  }
  __device__ __forceinline__ void multiply_recurrent(const Args& a, Shared&) {
    if (!exists || !a.initial.data) return;
    const int states = with_states<kStack>(a, first_line, lines);
    if (states == 0) return;
    const Rows own = rows(a, a.weight, a.weight_stride);
    const Lines before(states, [&](int i) { return a.template h_before<kStack>(first_line + i); });
    project<kVector>(own.of, before, states, a.hidden, recurrent);
  }
  __device__ __forceinline__ void finish(const Args& a, Shared&) {
    if (!exists) return;
    V parts[kLines * kSums];
#pragma unroll
    for (int k = 0; k < kLines; ++k) {
      auto part = DenseSums<C, V>::zeros();
      part.add_input([&](int i) { return input[k][i]; });
      part.add_recurrent([&](int i) { return recurrent[k][i]; });
#pragma unroll
      for (int i = 0; i < kSums; ++i) parts[k * kSums + i] = part.value[i];
    }
    const V total = sums_over_lanes<kLines * kSums>(parts);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int lane = (threadIdx.x % kLanes * kSums + i) * kApart;
      const V sum = __shfl_sync(~0u, total, lane);
      if (!item.cut) item.sums.value[i] += sum;
    }
    if (live) item.walk(a);
  }
};

template <class Step>
__global__ void __launch_bounds__(Step::kThreads, Step::kResident)
    fused(const __grid_constant__ typename Step::Args a) {
  __shared__ typename Step::Shared shared;
  scan::cuda::await_stream();
  Step step(a, Index{blockIdx.x} * Step::kBlockUnits, Index{blockIdx.y} * Step::kBlockLines);
  step.multiply_recurrent(a, shared);
  step.multiply_input(a, shared);
  step.finish(a, shared);
}

// Whether all that a layer's products read can be read by vectors.
template <class T, class V>
bool products_by_vectors(const CudaDenseArgs<T, V>& a) {
  constexpr int kPiece = kVectorOf<T>;
  return reads_by_vectors(a.weight, a.weight_stride) &&
         reads_by_vectors(a.initial.data, a.initial.line) && a.hidden % kPiece == 0 &&
         (a.sums.data || (reads_by_vectors(a.input_weight, a.input_weight_stride) &&
                          reads_by_vectors(a.x.data, a.x.line) && a.input % kPiece == 0));
}

// use(Named<Step>()) with what makes a step of these lines.
template <class Step>
struct Named {
  using type = Step;
};
template <class C, class T, bool kStack, class Use>
cudaError_t with_step(Index batch, bool exact_products, bool vectors, Use&& use) {
  constexpr int kPiece = kVectorOf<T>;
  if (vectors && batch == 1) return use(Named<ByLanes<C, T, kPiece, 1, kStack>>());
  if constexpr (sizeof(T) >= 4) {
    if (exact_products) {
      return vectors ? use(Named<ByLanes<C, T, kPiece, 4, kStack>>())
                     : use(Named<ByLanes<C, T, 1, 4, kStack>>());
    }
  }
  if constexpr (sizeof(T) <= 4) {
    if (!vectors) return use(Named<ByFragments<C, T, false, 1, kStack>>());
    if constexpr (!kStack && sizeof(T) == 4) {
      if (batch > 16) return use(Named<ByFragments<C, T, true, 4, kStack>>());
    }
    if (batch > 8) return use(Named<ByFragments<C, T, true, 2, kStack>>());
    return use(Named<ByFragments<C, T, true, 1, kStack>>());
  }
  return cudaErrorInvalidConfiguration;  // float64 without exact products, which nobody asks for
}

template <class C, class T>
cudaError_t launch_fused(const CudaDenseArgs<T, typename CudaDenseKernels<T>::V>& a,
                         cudaStream_t stream) {
  const bool vectors = products_by_vectors(a);
  return with_step<C, T, false>(a.batch, a.exact_products, vectors, [&](auto named) {
    using Step = typename decltype(named)::type;
    const dim3 grid(static_cast<unsigned>((a.hidden + Step::kBlockUnits - 1) / Step::kBlockUnits),
                    static_cast<unsigned>((a.batch + Step::kBlockLines - 1) / Step::kBlockLines));
    return scan::cuda::launch_early(fused<Step>, grid, Step::kThreads, {}, stream, a);
  });
}

}  // namespace scanrnn::step
