// SPDX-License-Identifier: Apache-2.0
// Direct on CUDA: projection and recurrence in one launch, for a few tokens. A warp owns one unit
// of one batch entry; the pre-activations never leave its registers.
#pragma once

#include "cuda/kernels/linear.h"
#include "cuda/kernels/project.cuh"

namespace scanrnn {

inline constexpr int kDirectTokens = 4;       // projected together
inline constexpr Index kDirectLines = 65535;  // as high as a grid may be; the rest is its depth

// kRows is the cell's gates, and one more with a projected highway input.
template <class Cell, class T, int kRows, bool kVectors>
__global__ void __launch_bounds__(kProjectWarps* scan::cuda::kLanes)
    direct_kernel(const CudaSchedule s, const DirectKernelArgs<T> a) {
  using Memory = LayerUnits<T>;
  using V = typename Memory::V;
  constexpr int kVector = kVectors ? kVectorOf<T> : 1;
  scan::cuda::await_stream();
  const Index hidden = s.extent.rows;
  const Index unit = Index{blockIdx.x} * kProjectWarps + threadIdx.x / scan::cuda::kLanes;
  const Index line = Index{blockIdx.z} * kDirectLines + blockIdx.y;
  if (unit >= hidden || line >= s.extent.lines) return;
  const bool writes = threadIdx.x % scan::cuda::kLanes == 0;

  const T* weight[kRows];
  V bias[kRows];
#pragma unroll
  for (int gate = 0; gate < kRows; ++gate) {
    weight[gate] = a.weight + (gate * hidden + unit) * a.weight_stride;
    const bool has = a.bias && gate >= a.first_bias && gate < a.last_bias;
    bias[gate] = has ? Memory::read(a.bias + (gate - a.first_bias) * hidden, unit, hidden) : V(0);
  }
  Unit<Cell, V, true> item{{}, {}, {V(0)}};
  read_vectors<Cell, Memory>(a.vectors, unit, hidden, item.own);
  const auto x = a.x.at_line(line), skip = a.skip.at_line(line);
  const auto kept = a.preactivations.at_line(line);
  const auto sink = ForwardSink<Cell, Memory>{a.y, a.states, hidden}.line(line);
  const StateEnds<Memory> ends = ends_of<Memory>(s);
  const Marks marks = s.marks.at_line(line);
  const Masks masks = a.masks.at_line(line);
  scan::Carried<V> state = s.ragged ? scan::carried(V(0)) : ends.first(line, unit);

  for (Index t = 0; t < s.extent.steps; t += kDirectTokens) {
    const Index left = s.extent.steps - t;
    const int tokens = left < kDirectTokens ? static_cast<int>(left) : kDirectTokens;
    V sums[kDirectTokens][kRows] = {};
    const auto token = [&](int k) { return x.at(t + k); };
    project<kVector>(weight, token, tokens, a.input, sums);
#pragma unroll
    for (int k = 0; k < kDirectTokens; ++k) {
      if (k >= tokens) break;
#pragma unroll
      for (int gate = 0; gate < kRows; ++gate) {
        sums[k][gate] = sum_of_lanes(sums[k][gate]);
        // A kept pre-activation carries its bias exactly where one from a matrix product does.
        if (writes && kept.data) {
          Memory::write(kept.at(t + k) + gate * hidden, unit, hidden,
                        Memory::kAddsBias ? sums[k][gate] : sums[k][gate] + bias[gate]);
        }
        sums[k][gate] += bias[gate];
      }
      item.gates = Cell::template gather<V>([&](int gate) { return sums[k][gate]; });
      if constexpr (kReadsX<Cell>) {
        item.own.x =
            kRows > Cell::kGates ? sums[k][kRows - 1] : Memory::read(skip.at(t + k), unit, hidden);
      }
      const std::uint32_t mark = s.ragged ? marks.at(t + k) : 0;
      if (Marks::absent(mark)) continue;
      if (marks.enters(mark)) state = ends.first(Marks::sequence(mark), unit);
      if (marks.cut(mark)) state = scan::carried(V(0));
      if (masks) static_cast<Drawn<V, true>&>(item) = masks.at<Memory>(unit, t + k);
      const auto before = state;
      using scan::apply;
      state = apply(step_of(item), before);
      if (writes) sink.store(unit, t + k, item, before, state);
      if (writes && marks.leaves(mark)) ends.last(Marks::sequence(mark), unit, state);
    }
  }
  if (writes && !s.ragged) ends.last(line, unit, state);
}

template <class Cell, class T>
cudaError_t launch_direct(const CudaSchedule& s, const DirectKernelArgs<T>& a) {
  if (s.extent.lines == 0 || s.extent.rows == 0) return cudaSuccess;
  const Index slabs = (s.extent.lines + kDirectLines - 1) / kDirectLines;
  if (slabs > kDirectLines) return cudaErrorInvalidConfiguration;
  const bool vectors = reads_by_vectors(a.weight, a.weight_stride) &&
                       reads_by_vectors(a.x.data, a.x.line) &&
                       reads_by_vectors(a.x.data, a.x.step) && a.input % kVectorOf<T> == 0;
  const dim3 grid(
      static_cast<unsigned>((s.extent.rows + kProjectWarps - 1) / kProjectWarps),
      static_cast<unsigned>(s.extent.lines < kDirectLines ? s.extent.lines : kDirectLines),
      static_cast<unsigned>(slabs));
  const auto run = [&](auto kernel) {
    return scan::cuda::launch_early(kernel, grid, kProjectWarps * scan::cuda::kLanes, 0, s.stream,
                                    s, a);
  };
  if constexpr (Cell::kHighway) {
    if (!a.skip.data) {
      constexpr int kRows = Cell::kGates + 1;
      return vectors ? run(direct_kernel<Cell, T, kRows, true>)
                     : run(direct_kernel<Cell, T, kRows, false>);
    }
  }
  return vectors ? run(direct_kernel<Cell, T, Cell::kGates, true>)
                 : run(direct_kernel<Cell, T, Cell::kGates, false>);
}

}  // namespace scanrnn
