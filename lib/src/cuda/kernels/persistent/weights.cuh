// SPDX-License-Identifier: Apache-2.0
// How the persistent kernels keep R and its products: pieces of R as fragments of tensor cores, in
// registers and shared memory, and from a fragment's sums to those of a unit.
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
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

using fragment::Bits;
inline constexpr int kThreads = 32 * dispatch::kPersistentWarps;

// A matrix that a walk multiplies by: R, or of a chain the W between two layers.
template <class T>
struct WeightRows {
  const T* data;
  Index stride;

  __device__ __forceinline__ static WeightRows of(const CudaRecurrent<T>& a, bool recurrent) {
    if (recurrent) return {a.weight, a.weight_stride};
    return {a.input_weight, a.input_weight_stride};
  }
};

// The word of it with the elements from `from` on of a head's unit's row of a gate, or, where
// kColumns, of its column in the gate's rows. What does not exist is zero.
template <bool kColumns, class T>
__device__ __forceinline__ std::uint32_t load_word(const CudaRecurrent<T>& a,
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

// A thread's words of all fragments that its block multiplies by: of the first kKept chunks of the
// sum in its registers, of the rest in shared memory, where thread after thread has 16 bytes.
template <int kKept, int kShared, int kTiles>
struct Pieces {
  static constexpr int kBytes = kShared * kTiles * 2 * kThreads * static_cast<int>(sizeof(uint4));

  std::uint32_t kept[kKept][kTiles][2][4];
  std::uint32_t at;  // of this thread's words of the first fragment in shared memory

  __device__ __forceinline__ explicit Pieces(std::uint32_t shared)
      : at(shared + threadIdx.x * static_cast<int>(sizeof(uint4))) {
    // Or it would be computed again in every step.
    if constexpr (kShared > 0) asm volatile("" : "+r"(at));
  }
  // The address of a step of a fragment whose chunk has no room in registers.
  __device__ __forceinline__ std::uint32_t address(int chunk, int tile, int step) const {
    const int number = ((chunk - kKept) * kTiles + tile) * 2 + step;
    return at + number * kThreads * static_cast<int>(sizeof(uint4));
  }
  __device__ __forceinline__ void put(int chunk, int tile, const std::uint32_t (&words)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const auto& w = words[step];
      if (chunk < kKept) {
#pragma unroll
        for (int i = 0; i < 4; ++i) kept[chunk < kKept ? chunk : 0][tile][step][i] = w[i];
      } else {
        store_shared(address(chunk, tile, step), make_uint4(w[0], w[1], w[2], w[3]));
      }
    }
  }
  __device__ __forceinline__ void get(int chunk, int tile, int step, std::uint32_t (&to)[4]) const {
    uint4 w;
    if (chunk < kKept) {
      const auto& words = kept[chunk < kKept ? chunk : 0][tile][step];
      w = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      load_shared(address(chunk, tile, step), w);
    }
    to[0] = w.x;
    to[1] = w.y;
    to[2] = w.z;
    to[3] = w.w;
  }
};

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
