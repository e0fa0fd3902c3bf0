// SPDX-License-Identifier: Apache-2.0
// What a warp group of cuda/kernels/persistent/large.cuh steps: half of its block's lines, of which
// a thread has one unit of some. What a step reads and what it leaves pass through shared memory,
// so that global memory is read and written by pieces of 16 bytes. States are read and written
// where a line begins and ends, in a ragged batch where each of its sequences does.
#pragma once

#include "cuda/kernels/persistent/large_lines.cuh"

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
                                        const LargePlace& place, int t) const {
    if (place.exists) {
      T* const to = of(t, Base::line(share));
      const T* const from = place.of(a.sums) + share.first_unit;
      Base::template each_piece<C::kGates>(share, [&](int value, int unit) {
        Base::fetch_piece(to + value * kUnits + unit, from + value * a.hidden + unit);
      });
    }
    scan::cuda::commit_copies();
  }
  // Stores what step t has left, once all of the group have left theirs.
  __device__ __forceinline__ void store(const Args& a, const LargeForwardShare& share,
                                        const LargePlace& place, int t) const {
    if (!place.exists) return;
    const T* const from = of(t, Base::line(share));
    Base::template each_piece<kValues>(share, [&](int value, int unit) {
      constexpr int kSums = C::kPreactivations;
      const bool kept = value<kSums, cells = value> kSums;
      if (value != kSums && !a.kept.data) return;
      const Strided<T>& tensor = kept ? a.kept : cells ? a.cells : a.y;
      const int block = kept ? value : cells ? value - kSums - 1 : 0;
      Base::store_piece(place.of(tensor) + block * a.hidden + share.first_unit + unit,
                        from + value * kUnits + unit);
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

  // At turn 0.
  template <class Turns>
  __device__ __forceinline__ LargeItems(const Args& a, const LargeForwardShare& share,
                                        const Turns& turns) {
    const int unit = share.first_unit + share.unit;
    bias =
        DenseSums<C, float>::template of_biases<Memory>(a.bias, a.recurrent_bias, unit, a.hidden);
    vectors = read_vectors<C, Memory>(a.vectors, unit, a.hidden);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int line = share.item_line(j);
      const std::uint32_t word = turns.at(0, line);
      if (turns.lives(word, line)) {
        enter(a, share, j, turns.state_of(word, line));
      } else {
        state[j] = DenseState<C, float>::of([](int) { return 0.0f; });
      }
    }
  }
  // The state that a line, or a sequence, begins with, and that it ends with.
  __device__ __forceinline__ void enter(const Args& a, const LargeForwardShare& share, int j,
                                        int line) {
    state[j] = DenseState<C, float>::of([&](int i) {
      return a.from[i].read(line, share.first_unit + share.unit, static_cast<float>(C::fresh(i)));
    });
  }
  __device__ __forceinline__ void leave(const Args& a, const LargeForwardShare& share, int j,
                                        int line) const {
#pragma unroll
    for (int i = 0; i < C::kStates; ++i) {
      a.to[i].write(line, share.first_unit + share.unit, state[j].at(i));
    }
  }
  // Item j's step from the sums that this lane and its neighbour have, in place of the values that
  // it reads; `cut`: no state comes into it.
  __device__ __forceinline__ void step(const Args& a, const LargeForwardShare& share, int j,
                                       const float (&sum)[4], T* row, bool cut) {
    const float first = __shfl_xor_sync(~0u, share.odd ? sum[0] : sum[1], 4);
    const float second = __shfl_xor_sync(~0u, share.odd ? sum[2] : sum[3], 4);
    const float products[4] = {share.odd ? first : sum[0], share.odd ? second : sum[2],
                               share.odd ? sum[1] : first, share.odd ? sum[3] : second};
    DenseSums<C, float> values = bias;
    values.add_input([&](int i) { return Memory::read(row + i * Rows::kUnits, share.unit, 0); });
    values.add_recurrent([&](int i) { return cut ? 0.0f : products[i]; });
    if (cut) state[j] = fresh_state<C, float>();
    state[j] = dense_step<C, Memory>(values, vectors, state[j], NoDraws(), share.unit);
    T* const y = row + C::kPreactivations * Rows::kUnits;
    const DenseSink<C, Memory> sink{y, a.kept.data ? row : nullptr, y + Rows::kUnits, Rows::kUnits};
    sink.store(share.unit, values, state[j]);
  }
  // Behind turn t, of which a line of a ragged batch has that word: a sequence that ends is left,
  // and the one that follows is entered.
  __device__ __forceinline__ void pass(const Args& a, const LargeForwardShare& share, int j, int t,
                                       std::uint32_t word) {
    if (!(word & turn::kEnds)) return;
    const LineCursor own{static_cast<int>(word >> turn::kLineBit)};
    leave(a, share, j, own.line);
    if (own.passes_on(a, t + 1)) enter(a, share, j, own.next_line(a));
  }
  __device__ __forceinline__ void close(const Args& a, const LargeForwardShare& share) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int line = share.item_line(j);
      if (line < share.own.count) leave(a, share, j, share.own.first + line);
    }
  }
};

}  // namespace scanrnn::persistent
