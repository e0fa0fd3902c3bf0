// SPDX-License-Identifier: Apache-2.0
// What a warp group of cuda/kernels/persistent/large_back.cuh steps: half of its block's lines, of
// which a thread has one unit of some. What a step reads and what it leaves pass through shared
// memory, so that global memory is read and written by pieces of 16 bytes. Cotangents of states are
// read and written where a line begins and ends, in a ragged batch where each of its sequences
// does.
#pragma once

#include "cuda/kernels/persistent/large_lines.cuh"

namespace scanrnn::persistent {

// Which lines and units a thread has. Its sums of its unit are those of two adjacent lines, and of
// each eighth one behind them.
struct LargeBackShare : LargeShare {
  int rank;        // the block's of its cluster
  int unit, line;  // of the block's, this thread's first

  __device__ __forceinline__ LargeBackShare(int batch, int slices, int groups, int lines)
      : LargeShare(batch, slices, groups, lines, dispatch::kLargeBackUnits),
        rank(static_cast<int>(blockIdx.x) % dispatch::kLargeCluster),
        unit(thread / 32 * 8 + thread % 32 / 4),
        line(first_line + thread % 4 * 2) {}
  __device__ __forceinline__ int item_line(int j) const { return line + j / 2 * 8 + j % 2; }
  // The unit of row r of those that its cluster multiplies by: a warp's 16 are 8 of this block, and
  // 8 of the other one.
  __device__ __forceinline__ int row_unit(int r) const {
    const int own_block = r % 16 < 8;
    return (own_block ? first_unit : first_unit ^ dispatch::kLargeBackUnits) + r / 16 * 8 + r % 8;
  }
};

// Rows of a block's lines in shared memory: the values of all of its units side by side, first the
// sums, in whose place their cotangents are left, then dy and what is read of the state before, in
// whose place are the vectors' cotangents.
template <class C>
struct LargeBackValues {
  static constexpr int kSums = C::kPreactivations, kFirst = kSums + 1;
  static constexpr int kRead = kFirst + kBeforeBlocks<C>, kLeft = kSums + C::kVectors;
  static constexpr int kAll = kRead > kLeft ? kRead : kLeft;
};
template <class C, class T, int kLines>
struct LargeBackRows : LargeRows<T, kLines, dispatch::kLargeBackUnits, LargeBackValues<C>::kAll>,
                       LargeBackValues<C> {
  using Args = CudaDenseArgs<T, float>;
  using Base = LargeRows<T, kLines, dispatch::kLargeBackUnits, LargeBackValues<C>::kAll>;
  using Base::kPiece;
  using Base::kUnits;
  using Base::of;
  using Values = LargeBackValues<C>;
  using Values::kFirst;
  using Values::kSums;

  __device__ __forceinline__ explicit LargeBackRows(T* rows) : Base{rows} {}
  // Asks for what a step reads.
  __device__ __forceinline__ void fetch(const Args& a, const LargeBackShare& share,
                                        const LargePlace& place) const {
    if (place.exists) {
      T* const row = of(Base::line(share));
      Base::template each_piece<Values::kRead>(share, [&](int value, int unit) {
        const bool is_sum = value < kSums, is_before = value >= kFirst;
        const bool initial = is_before && place.first;
        const Strided<const T>& tensor = is_sum       ? a.sums
                                         : !is_before ? a.dy
                                         : initial    ? a.initial
                                                      : a.before;
        const int block = is_sum ? value : is_before ? value - kFirst : 0;
        T* const to = row + value * kUnits + unit;
        if (!tensor.data) {
          fill(to, is_before ? block : -1);
          return;
        }
        const T* const from = initial ? tensor.at_line(place.sequence).data : place.of(tensor);
        Base::fetch_piece(to, from + block * a.hidden + share.first_unit + unit);
      });
    }
    scan::cuda::commit_copies();
  }
  // Stores what a step has left, once all of the group have left theirs.
  __device__ __forceinline__ void store(const Args& a, const LargeBackShare& share,
                                        const LargePlace& place) const {
    if (!place.exists) return;
    const T* const row = of(Base::line(share));
    Base::template each_piece<Values::kLeft>(share, [&](int value, int unit) {
      const bool is_sum = value < kSums;
      T* const to =
          place.of(is_sum ? a.kept : a.dvectors) + (is_sum ? value : value - kSums) * a.hidden;
      Base::store_piece(to + share.first_unit + unit, row + value * kUnits + unit);
    });
  }

 private:
  // What block `block` of a state is where there is none; of what is not a state, zero.
  __device__ __forceinline__ static void fill(T* to, int block) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kBeforeBlocks<C>; ++i) {
      constexpr int kBehind = C::kStates - kBeforeBlocks<C>;
      if (block == i) value = static_cast<float>(C::fresh(kBehind + i));
    }
    for (int i = 0; i < kPiece; ++i) to[i] = static_cast<T>(value);
  }
};

// A thread's items: its unit of its lines. Their state is a cotangent; that of h lacks what comes
// back through R.
template <class C, class T, int kLines>
struct LargeBackItems {
  using Args = CudaDenseArgs<T, float>;
  using Memory = scan::Units<T>;
  using Rows = LargeBackRows<C, T, kLines>;
  using Sums = DenseSums<C, float>;
  static constexpr int kCount = kLines / 8;

  DenseVectors<C, float> vectors;
  DenseState<C, float> state[kCount];

  __device__ __forceinline__ LargeBackItems(const Args& a, const LargeBackShare& share) {
    vectors = read_vectors<C, Memory>(a.vectors, share.first_unit + share.unit, a.hidden);
  }
  __device__ __forceinline__ static DenseState<C, float> zeros() {
    return DenseState<C, float>::of([](int) { return 0.0f; });
  }
  // The cotangent that a line, or a sequence, begins with; and that it ends with, with what the
  // product behind its last step has given.
  __device__ __forceinline__ void enter(const Args& a, const LargeBackShare& share, int j,
                                        int line) {
    state[j] = DenseState<C, float>::of(
        [&](int i) { return a.from[i].read(line, share.first_unit + share.unit); });
  }
  __device__ __forceinline__ void leave(const Args& a, const LargeBackShare& share, int j, int line,
                                        float total) {
    state[j].h += total;
#pragma unroll
    for (int i = 0; i < C::kStates; ++i) {
      a.to[i].write(line, share.first_unit + share.unit, state[j].at(i));
    }
  }
  __device__ __forceinline__ void open(const Args& a, const LargeBackShare& share) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int line = share.item_line(j);
      state[j] = zeros();
      if (line < share.own.count) enter(a, share, j, share.own.first + line);
    }
  }
  // Before turn t of a ragged batch, to which a product has given `total`.
  template <class Turns>
  __device__ __forceinline__ void pass(const Args& a, const LargeBackShare& share, int j,
                                       const Turns& turns, int t, float& total) {
    const int line = share.item_line(j);
    const std::uint32_t word = turns.at(t, line);
    if (word & turn::kCloses) {
      leave(a, share, j, turns.state_of(turns.at(t - 1, line), line), total);
    }
    if (word & turn::kOpens) {
      enter(a, share, j, turns.state_of(word, line));
      total = 0.0f;
    }
  }
  // Item j's step, from what comes back through R, with what it leaves in place of what it reads;
  // `cut`: no state comes into it. What it gives is that of R h.
  __device__ __forceinline__ Sums step(const LargeBackShare& share, int j, float total, T* row,
                                       bool cut) {
    const auto read = [&](int value) {
      return Memory::read(row + value * Rows::kUnits, share.unit, 0);
    };
    const auto sums = Sums::of(read);
    auto after = state[j];
    after.h = read(Rows::kSums) + (total + state[j].h);
    const auto before = state_before<C, float>(!cut, [&](int i) { return read(Rows::kFirst + i); });
    const auto d = dense_step_vjp<C, Memory>(sums, vectors, before, after, NoDraws(), share.unit);
    state[j] = cut ? zeros() : d.before;
    d.sums.template write<Memory>(row, share.unit, Rows::kUnits);
    write_vectors<C, Memory>(d.vectors, row + Rows::kSums * Rows::kUnits, share.unit, Rows::kUnits);
    return cut ? Sums::zeros() : d.sums;
  }
  __device__ __forceinline__ void close(const Args& a, const LargeBackShare& share,
                                        const float (&total)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int line = share.item_line(j);
      if (line < share.own.count) leave(a, share, j, share.own.first + line, total[j]);
    }
  }
};

}  // namespace scanrnn::persistent
