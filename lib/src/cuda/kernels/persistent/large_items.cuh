// SPDX-License-Identifier: Apache-2.0
// What a warp group of cuda/kernels/persistent/large.cuh steps: half of its block's lines, of which
// a thread has one unit of some. What a step reads and what it leaves pass through shared memory,
// so that global memory is read and written by pieces of 16 bytes.
#pragma once

#include "cuda/kernels/persistent/large_share.cuh"

namespace scanrnn::persistent {

// Which lines and units a thread has. Sums of a unit of a line lie in two lanes: the one with row
// g = lane / 4 of a fragment has two gates of unit g / 2 for two adjacent lines, and goes on with
// one of them, the first where g is even.
struct LargeForwardShare : LargeShare {
  int unit, line;  // of the block's, this thread's first

  __device__ __forceinline__ LargeForwardShare(int batch, int slices, int groups, int lines)
      : LargeShare(batch, slices, groups, lines, dispatch::kLargeUnits),
        unit(thread / 32 * 4 + thread % 32 / 8),
        line(first_line + thread % 4 * 2 + odd) {}
  __device__ __forceinline__ int item_line(int j) const { return line + 8 * j; }
};

// Rows of a block's lines in shared memory, of two steps in turn: a unit's values side by side with
// those of the other units, first the sums, in whose place are those that are kept, then y, and
// what is behind h.
template <class C, class T, int kLines>
struct LargeForwardRows
    : LargeRows<T, kLines, dispatch::kLargeUnits, C::kPreactivations + C::kStates> {
  using Args = CudaDenseArgs<T, float>;
  using Base = LargeRows<T, kLines, dispatch::kLargeUnits, C::kPreactivations + C::kStates>;
  using Base::kUnits;
  static constexpr int kValues = C::kPreactivations + C::kStates;

  __device__ __forceinline__ T* of(int t, int line) const { return Base::of(line, t % 2); }
  // Asks for what step t reads.
  __device__ __forceinline__ void fetch(const Args& a, const LargeForwardShare& share,
                                        int t) const {
    if (t < a.steps) {
      Base::template each_piece<C::kGates>(share, [&](int value, int line, int unit) {
        const T* const from = a.sums.at_line(share.own.first + line).at(t);
        Base::fetch_piece(of(t, line) + value * kUnits + unit,
                          from + value * a.hidden + share.first_unit + unit);
      });
    }
    scan::cuda::commit_copies();
  }
  // Stores what step t has left, once all of the group have left theirs.
  __device__ __forceinline__ void store(const Args& a, const LargeForwardShare& share,
                                        int t) const {
    Base::template each_piece<kValues>(share, [&](int value, int line, int unit) {
      constexpr int kSums = C::kPreactivations;
      const bool kept = value<kSums, cells = value> kSums;
      if (value != kSums && !a.kept.data) return;
      const Strided<T>& tensor = kept ? a.kept : cells ? a.cells : a.y;
      const int block = kept ? value : cells ? value - kSums - 1 : 0;
      T* const to = tensor.at_line(share.own.first + line).at(t) + block * a.hidden;
      Base::store_piece(to + share.first_unit + unit, of(t, line) + value * kUnits + unit);
    });
  }
};

// A thread's items: its unit of every eighth line from its first one on.
template <class C, class T, int kLines>
struct LargeItems {
  using Args = CudaDenseArgs<T, float>;
  using Memory = scan::Units<T>;
  using Rows = LargeForwardRows<C, T, kLines>;
  static constexpr int kCount = kLines / 16;

  DenseSums<C, float> bias;
  DenseVectors<C, float> vectors;
  DenseState<C, float> state[kCount];

  __device__ __forceinline__ LargeItems(const Args& a, const LargeForwardShare& share) {
    const int unit = share.first_unit + share.unit;
    bias =
        DenseSums<C, float>::template of_biases<Memory>(a.bias, a.recurrent_bias, unit, a.hidden);
    vectors = read_vectors<C, Memory>(a.vectors, unit, a.hidden);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int line = share.item_line(j);
      state[j] = DenseState<C, float>::of([&](int i) {
        const auto absent = static_cast<float>(C::fresh(i));
        return line < share.own.count ? a.from[i].read(share.own.first + line, unit, absent) : 0.0f;
      });
    }
  }
  // Item j's step from the sums that this lane and its neighbour have, in place of the values that
  // it reads.
  __device__ __forceinline__ void step(const Args& a, const LargeForwardShare& share, int j,
                                       const float (&sum)[4], T* row) {
    const float first = __shfl_xor_sync(~0u, share.odd ? sum[0] : sum[1], 4);
    const float second = __shfl_xor_sync(~0u, share.odd ? sum[2] : sum[3], 4);
    const float products[4] = {share.odd ? first : sum[0], share.odd ? second : sum[2],
                               share.odd ? sum[1] : first, share.odd ? sum[3] : second};
    DenseSums<C, float> values = bias;
    values.add_input([&](int i) { return Memory::read(row + i * Rows::kUnits, share.unit, 0); });
    values.add_recurrent([&](int i) { return products[i]; });
    state[j] = dense_step<C, Memory>(values, vectors, state[j], NoDraws(), share.unit);
    T* const y = row + C::kPreactivations * Rows::kUnits;
    const DenseSink<C, Memory> sink{y, a.kept.data ? row : nullptr, y + Rows::kUnits, Rows::kUnits};
    sink.store(share.unit, values, state[j]);
  }
  __device__ __forceinline__ void close(const Args& a, const LargeForwardShare& share) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (share.item_line(j) >= share.own.count) return;
#pragma unroll
      for (int i = 0; i < C::kStates; ++i) {
        a.to[i].write(share.own.first + share.item_line(j), share.first_unit + share.unit,
                      state[j].at(i));
      }
    }
  }
};

}  // namespace scanrnn::persistent
