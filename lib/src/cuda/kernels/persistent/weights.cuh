// SPDX-License-Identifier: Apache-2.0
// How the persistent kernels keep R and its products: pieces of R as fragments of tensor cores, in
// registers, and from a fragment's sums to those of a unit.
//
// A fragment has 16 rows, of which a lane has one of the first 8 and one of the last. The sum may
// be taken in any order, so a lane's words of a chunk are adjacent: each 16 bytes of the other
// operand are its part of two steps, of 32 bytes of the sum.
#pragma once

#include <type_traits>

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/persistent/line_share.cuh"
#include "cuda/kernels/persistent/words.cuh"

namespace scanrnn::persistent {

using fragment::Bits;

// A matrix that a walk multiplies by: R, or of a chain the W between two layers.
template <class T>
struct WeightRows {
  const T* data;
  Index stride;

  __device__ __forceinline__ static WeightRows of(const CudaDenseArgs<T, float>& a,
                                                  bool recurrent) {
    if (recurrent) return {a.weight, a.weight_stride};
    return {a.input_weight, a.input_weight_stride};
  }
};

// The word of it with the elements from `from` on of a head's unit's row of a gate, or, where
// kColumns, of its column in the gate's rows. What does not exist is zero.
template <bool kColumns, class T>
__device__ __forceinline__ std::uint32_t load_word(const CudaDenseArgs<T, float>& a,
                                                   const WeightRows<T>& weights,
                                                   const HeadShare& head, int gate, int unit,
                                                   int from, bool exists) {
  const int first = gate * static_cast<int>(a.hidden) + head.first;  // of its rows
  std::uint32_t bits = 0;
#pragma unroll
  for (int e = 0; e < Bits<T>::kPerWord; ++e) {
    const int other = from + e;
    const Index at = kColumns ? Index{first + other} * weights.stride + unit
                              : Index{first + unit} * weights.stride + other;
    const bool there = exists && other < head.units;
    bits |= (there ? Bits<T>::load(weights.data + at) : 0) << (16 * e);
  }
  return bits;
}

// A lane's part of the fragments of a chunk, both steps: word(half, i) is word i of its four in the
// first or the second 8 rows.
template <class Word>
__device__ __forceinline__ void load_fragments(std::uint32_t (&to)[2][4], const Word& word) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i / 2][i % 2 * 2 + half] = word(half, i);
}

// Leaves what the products gave a unit in one of the lane's two columns: one sum for each of its
// kBlocks row blocks, the first of which is `first`; a float4 has zeros for others.
template <class Part, int kBlocks, int kTiles>
__device__ __forceinline__ void leave_sums(std::uint32_t to, const float (&sum)[kTiles][4],
                                           int first, int column) {
  const auto of = [&](int i) {
    const int block = first + (i < kBlocks ? i : 0);
    return i < kBlocks ? sum[block / 2][block % 2 * 2 + column] : 0.0f;
  };
  if constexpr (std::is_same<Part, float>::value) {
    store_shared(to, of(0));
  } else {
    store_shared(to, make_float4(of(0), of(1), of(2), of(3)));
  }
}

}  // namespace scanrnn::persistent
