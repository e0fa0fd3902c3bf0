// SPDX-License-Identifier: Apache-2.0
// What a warp group of cuda/kernels/persistent/large.cuh steps: half of its block's lines, of which
// a thread has one unit of some. What a step reads and what it leaves pass through shared memory,
// so that global memory is read and written by pieces of 16 bytes.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/persistent/line_share.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "scanrnn/dispatch/large.h"
#include "scanrnn/scan/cuda/feed.cuh"

namespace scanrnn::persistent {

using fragment::Bits;
inline constexpr int kGroupThreads = dispatch::kLargeThreads / dispatch::kLargeGroups;

// Which lines and units a thread has. Sums of a unit of a line lie in two lanes: the one with row
// g = lane / 4 of a fragment has two gates of unit g / 2 for two adjacent lines, and goes on with
// one of them, the first where g is even.
struct LargeShare {
  LineShare own;
  int group, thread;  // of the block, of the group
  int first_unit, unit;
  int first_line, line;  // of the block's lines: the group's first, and this thread's first
  bool odd;

  __device__ __forceinline__ LargeShare(int batch, int slices, int groups, int lines)
      : own(batch, static_cast<int>(blockIdx.x) / slices, groups),
        group(static_cast<int>(threadIdx.x) / kGroupThreads),
        thread(static_cast<int>(threadIdx.x) % kGroupThreads),
        first_unit(static_cast<int>(blockIdx.x) % slices * dispatch::kLargeUnits),
        unit(thread / 32 * 4 + thread % 32 / 8),
        first_line(group * lines / 2),
        line(first_line + thread % 4 * 2 + thread / 4 % 2),
        odd(thread / 4 % 2 != 0) {}
  __device__ __forceinline__ int item_line(int j) const { return line + 8 * j; }
};

// Rows of a block's lines in shared memory, of two steps in turn: a unit's values side by side with
// those of the other units, first the sums, in whose place are those that are kept, then y, and
// what is behind h.
template <class C, class T, int kLines>
struct LargeRows {
  using Args = CudaDenseArgs<T, float>;
  static constexpr int kUnits = dispatch::kLargeUnits, kPiece = 16 / sizeof(T);
  static constexpr int kValues = C::kPreactivations + C::kStates;
  static constexpr int kRow = dispatch::large_row(kValues);
  static constexpr int kCopied = kGroupThreads / kLines;  // values that a group copies at once
  static_assert(kValues <= dispatch::kLargeValues, "the planner counts what the kernel takes");

  T* rows;

  __device__ __forceinline__ T* of(int t, int line) const {
    return rows + (t % 2 * kLines + line) * kRow;
  }
  // f(value, line, unit): this thread's pieces of so many values of the group's lines.
  template <int kCount, class F>
  __device__ __forceinline__ static void each_piece(const LargeShare& share, F&& f) {
    const int line = share.first_line + share.thread / 2 % (kLines / 2);
    if (line >= share.own.count) return;
#pragma unroll
    for (int i = 0; i < kCount; i += kCopied) {
      const int value = i + share.thread / kLines;
      if (value < kCount) f(value, line, share.thread % 2 * kPiece);
    }
  }
  // Asks for what step t reads.
  __device__ __forceinline__ void fetch(const Args& a, const LargeShare& share, int t) const {
    if (t < a.steps) {
      each_piece<C::kGates>(share, [&](int value, int line, int unit) {
        const T* const from = a.sums.at_line(share.own.first + line).at(t);
        scan::cuda::copy_async<16>(of(t, line) + value * kUnits + unit,
                                   from + value * a.hidden + share.first_unit + unit);
      });
    }
    scan::cuda::commit_copies();
  }
  // Stores what step t has left, once all of the group have left theirs.
  __device__ __forceinline__ void store(const Args& a, const LargeShare& share, int t) const {
    each_piece<kValues>(share, [&](int value, int line, int unit) {
      constexpr int kSums = C::kPreactivations;
      const bool kept = value<kSums, cells = value> kSums;
      if (value != kSums && !a.kept.data) return;
      const Strided<T>& tensor = kept ? a.kept : cells ? a.cells : a.y;
      const int block = kept ? value : cells ? value - kSums - 1 : 0;
      T* const to = tensor.at_line(share.own.first + line).at(t) + block * a.hidden;
      store_piece(to + share.first_unit + unit, of(t, line) + value * kUnits + unit);
    });
  }

 private:
  // The caller's y may lie anywhere.
  __device__ __forceinline__ static void store_piece(T* to, const T* from) {
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      return;
    }
    for (int i = 0; i < kPiece; ++i) to[i] = from[i];
  }
};

// Nothing is drawn for a step.
struct NoDraws {
  __device__ explicit operator bool() const { return false; }
  template <class Memory>
  __device__ cell::StepState<float, 2> updates(Index) const {
    return {1.0f, 1.0f};
  }
};

// A thread's items: its unit of every eighth line from its first one on.
template <class C, class T, int kLines>
struct LargeItems {
  using Args = CudaDenseArgs<T, float>;
  using Memory = scan::Units<T>;
  using Rows = LargeRows<C, T, kLines>;
  static constexpr int kCount = kLines / 16;

  DenseSums<C, float> bias;
  DenseVectors<C, float> vectors;
  DenseState<C, float> state[kCount];

  __device__ __forceinline__ LargeItems(const Args& a, const LargeShare& share) {
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
  __device__ __forceinline__ void step(const Args& a, const LargeShare& share, int j,
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
  __device__ __forceinline__ void close(const Args& a, const LargeShare& share) const {
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
