// SPDX-License-Identifier: Apache-2.0
// Products of a few tokens with some rows of a matrix by one warp: what kernels for one step are
// made of. The rows are read once for all of the tokens, and nothing but the sums is left.
#pragma once

#include "recurrence/linear.h"
#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn {

inline constexpr int kProjectWarps = 4;  // of a block

// Adjacent elements of a row; all rows and tokens begin where such pieces do.
template <class T, int kVector>
struct alignas(kVector * sizeof(T)) Piece {
  T value[kVector];
};
template <class T, int kVector, int kRows>
__device__ __forceinline__ void load_pieces(const T* const (&rows)[kRows], Index c,
                                            Piece<T, kVector> (&w)[kRows]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    w[row] = *reinterpret_cast<const Piece<T, kVector>*>(rows[row] + c);
  }
}
// Adds the products of such pieces with that of a token to sums[row].
template <class T, int kVector, int kRows, class V>
__device__ __forceinline__ void add_products(const Piece<T, kVector> (&w)[kRows],
                                             const Piece<T, kVector>& in, V (&sums)[kRows]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sums[row] =
          scan::fma(static_cast<V>(w[row].value[i]), static_cast<V>(in.value[i]), sums[row]);
    }
  }
}
// The same of the tokens, token(k) each, to sums[token][row].
template <class T, int kVector, int kTokens, int kRows, class V, class Token>
__device__ __forceinline__ void add_products(const Piece<T, kVector> (&w)[kRows], Token&& token,
                                             int tokens, Index c, V (&sums)[kTokens][kRows]) {
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
    if (k >= tokens) break;
    const auto in = *reinterpret_cast<const Piece<T, kVector>*>(token(k) + c);
    add_products(w, in, sums[k]);
  }
}

// Adds this lane's share of `width` inputs, from its piece number `first` on, to sums[token][row]:
// of so many tokens, kTokens at most.
template <int kVector, int kTokens, int kRows, class T, class V, class Token>
__device__ __forceinline__ void project(const T* const (&rows)[kRows], Token&& token, int tokens,
                                        Index width, V (&sums)[kTokens][kRows], int first = 0) {
  const int lane = threadIdx.x % scan::cuda::kLanes + first * scan::cuda::kLanes;
#pragma unroll 4
  for (Index c = lane * kVector; c < width; c += scan::cuda::kLanes * kVector) {
    Piece<T, kVector> w[kRows];
    load_pieces(rows, c, w);
    add_products(w, token, tokens, c, sums);
  }
}

// The first pieces of some rows, asked for before the tokens are there.
template <class T, int kVector, int kRows>
struct AskedPieces {
  static constexpr int kCount = 4;
  Piece<T, kVector> w[kCount][kRows];

  static __device__ __forceinline__ Index place(int i) {
    return (threadIdx.x % scan::cuda::kLanes + i * scan::cuda::kLanes) * kVector;
  }
  __device__ __forceinline__ void ask(const T* const (&rows)[kRows], Index width) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (place(i) < width) load_pieces(rows, place(i), w[i]);
    }
  }
  // As project(), which does the rest.
  template <int kTokens, class V, class Token>
  __device__ __forceinline__ void project(const T* const (&rows)[kRows], Token&& token, int tokens,
                                          Index width, V (&sums)[kTokens][kRows]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (place(i) < width) add_products(w[i], token, tokens, place(i), sums);
    }
    scanrnn::project<kVector>(rows, token, tokens, width, sums, kCount);
  }
};

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
