// SPDX-License-Identifier: Apache-2.0
// Products of a few tokens with some rows of a matrix by one warp: what kernels for one step are
// made of. The rows are read once for all of the tokens, and nothing but the sums is left.
#pragma once

#include "recurrence/linear.h"
#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn {

inline constexpr int kProjectWarps = 4;  // of a block

// Adds this lane's share of `width` inputs to sums[token][row]: the tokens are those of x from t
// on, kTokens at most. With kVector > 1 all rows and tokens are aligned to 16 bytes.
template <int kVector, int kTokens, int kRows, class T, class V>
__device__ __forceinline__ void project(const T* const (&rows)[kRows], const Strided<const T>& x,
                                        Index t, int tokens, Index width,
                                        V (&sums)[kTokens][kRows]) {
  struct alignas(kVector * sizeof(T)) Piece {
    T value[kVector];
  };
  const int lane = threadIdx.x % scan::cuda::kLanes;
#pragma unroll 4
  for (Index c = lane * kVector; c < width; c += scan::cuda::kLanes * kVector) {
    Piece w[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) w[row] = *reinterpret_cast<const Piece*>(rows[row] + c);
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      if (k >= tokens) break;
      const Piece in = *reinterpret_cast<const Piece*>(x.at(t + k) + c);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums[k][row] =
              scan::fma(static_cast<V>(w[row].value[i]), static_cast<V>(in.value[i]), sums[k][row]);
        }
      }
    }
  }
}

// The sum over the lanes of a warp, in all of them.
template <class V>
__device__ __forceinline__ V sum_of_lanes(V part) {
#pragma unroll
  for (int apart = scan::cuda::kLanes / 2; apart > 0; apart /= 2) {
    part += __shfl_xor_sync(~0u, part, apart);
  }
  return part;
}

// Whether rows that are `stride` apart can be read by vectors of 16 bytes.
template <class T>
bool reads_by_vectors(const T* data, Index stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
         stride * static_cast<Index>(sizeof(T)) % 16 == 0;
}
template <class T>
inline constexpr int kVectorOf = static_cast<int>(16 / sizeof(T));

}  // namespace scanrnn
