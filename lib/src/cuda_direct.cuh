// SPDX-License-Identifier: Apache-2.0
// Direct on CUDA: projection and recurrence in one launch, for a few tokens. A warp owns one unit
// of one batch entry; the pre-activations never leave its registers.
#pragma once

#include "cuda_kernels.h"
#include "scanrnn/scan/cuda_common.cuh"

namespace scanrnn {

inline constexpr int kDirectWarps = 4;  // of a block
inline constexpr int kDirectTokens =
    4;  // projected together, so that weights are read once for them
inline constexpr Index kDirectLines = 65535;  // as high as a grid may be; the rest is its depth

// Partial products of this lane: sums[token][gate] over its share of the C inputs.
template <int kGates, int kVector, class T, class V>
__device__ __forceinline__ void project(const T* const (&weight)[kGates], const Strided<const T>& x,
                                        Index t, int tokens, Index input,
                                        V (&sums)[kDirectTokens][kGates]) {
  struct alignas(kVector * sizeof(T)) Piece {
    T value[kVector];
  };
  const int lane = threadIdx.x % scan::cuda::kLanes;
#pragma unroll 4
  for (Index c = lane * kVector; c < input; c += scan::cuda::kLanes * kVector) {
    Piece w[kGates];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      w[gate] = *reinterpret_cast<const Piece*>(weight[gate] + c);
    }
#pragma unroll
    for (int k = 0; k < kDirectTokens; ++k) {
      if (k >= tokens) break;
      const Piece in = *reinterpret_cast<const Piece*>(x.at(t + k) + c);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums[k][gate] = scan::fma(static_cast<V>(w[gate].value[i]), static_cast<V>(in.value[i]),
                                    sums[k][gate]);
        }
      }
    }
  }
}

// kRows is the cell's gates, and one more with a projected highway input.
template <class Cell, class T, int kRows, bool kVectors>
__global__ void __launch_bounds__(kDirectWarps* scan::cuda::kLanes)
    direct_kernel(const CudaSchedule s, const DirectKernelArgs<T> a) {
  using Memory = scan::Units<T>;
  using V = typename Memory::V;
  using Op = scan::AffineOp<V>;
  constexpr int kVector = kVectors ? 16 / sizeof(T) : 1;
  scan::cuda::await_stream();
  const Index hidden = s.extent.rows;
  const Index unit = Index{blockIdx.x} * kDirectWarps + threadIdx.x / scan::cuda::kLanes;
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
  const auto x = a.x.at_line(line), skip = a.skip.at_line(line);
  const auto kept = a.preactivations.at_line(line);
  const auto y = a.y.at_line(line), states = a.states.at_line(line);
  const T* initial = static_cast<const T*>(s.initial);
  typename Op::State state =
      scan::carried(initial ? Memory::read(initial + line * s.initial_line, unit, hidden) : V(0));

  for (Index t = 0; t < s.extent.steps; t += kDirectTokens) {
    const Index left = s.extent.steps - t;
    const int tokens = left < kDirectTokens ? static_cast<int>(left) : kDirectTokens;
    V sums[kDirectTokens][kRows] = {};
    project<kRows, kVector>(weight, x, t, tokens, a.input, sums);
#pragma unroll
    for (int k = 0; k < kDirectTokens; ++k) {
      if (k >= tokens) break;
#pragma unroll
      for (int gate = 0; gate < kRows; ++gate) {
#pragma unroll
        for (int apart = scan::cuda::kLanes / 2; apart > 0; apart /= 2) {
          sums[k][gate] += __shfl_xor_sync(~0u, sums[k][gate], apart);
        }
        // A kept pre-activation carries its bias exactly where one from a matrix product does.
        if (writes && kept.data) {
          Memory::write(kept.at(t + k) + gate * hidden, unit, hidden,
                        Memory::kAddsBias ? sums[k][gate] : sums[k][gate] + bias[gate]);
        }
        sums[k][gate] += bias[gate];
      }
      const auto gates = Cell::template gather<V>([&](int gate) { return sums[k][gate]; });
      state = Op::apply(Cell::lift(gates), state);
      if (!writes) continue;
      if constexpr (Cell::kReadout) {
        const V through =
            kRows > Cell::kGates ? sums[k][kRows - 1] : Memory::read(skip.at(t + k), unit, hidden);
        Memory::write(y.at(t + k), unit, hidden, Cell::readout(gates, state.h, through));
        if (states.data) Memory::write(states.at(t + k), unit, hidden, state.h);
      } else {
        Memory::write(y.at(t + k), unit, hidden, state.h);
      }
    }
  }
  T* final = static_cast<T*>(s.final);
  if (writes && final) Memory::write(final + line * s.final_line, unit, hidden, state.h);
}

template <class Cell, class T>
cudaError_t launch_direct(const CudaSchedule& s, const DirectKernelArgs<T>& a) {
  if (s.extent.lines == 0 || s.extent.rows == 0) return cudaSuccess;
  const Index slabs = (s.extent.lines + kDirectLines - 1) / kDirectLines;
  if (slabs > kDirectLines) return cudaErrorInvalidConfiguration;
  const auto fits = [](const void* data, Index stride) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
           stride * static_cast<Index>(sizeof(T)) % 16 == 0;
  };
  const bool vectors = fits(a.weight, a.weight_stride) && fits(a.x.data, a.x.line) &&
                       fits(a.x.data, a.x.step) && fits(nullptr, a.input);
  const dim3 grid(
      static_cast<unsigned>((s.extent.rows + kDirectWarps - 1) / kDirectWarps),
      static_cast<unsigned>(s.extent.lines < kDirectLines ? s.extent.lines : kDirectLines),
      static_cast<unsigned>(slabs));
  const auto run = [&](auto kernel) {
    return scan::cuda::launch_early(kernel, grid, kDirectWarps * scan::cuda::kLanes, 0, s.stream, s,
                                    a);
  };
  if constexpr (Cell::kReadout) {
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
