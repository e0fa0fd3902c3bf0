// SPDX-License-Identifier: Apache-2.0
// The lines of a dense cell's walk over a ragged batch: the order of the sequences by length, and
// which of them share a line, one behind another.
//
// Both passes walk shared lines, where the plan says so (dispatch::shares_lines): backward prepares
// lines of its own, since its kernel may have room for more or fewer. A walk by whole lines and a
// loop of steps have a line for each sequence, in both passes.
#pragma once

#include "cuda/pointwise.cuh"
#include "recurrence/ragged.h"
#include "scanrnn/dispatch/ragged.h"

namespace scanrnn::ragged {

using pointwise::kThreads;
using scan::cuda::kLanes;

// A line for each sequence, the longest first; of two as long, the one that comes first.
static __global__ void __launch_bounds__(kThreads)
    order_lines(const SequenceBounds all, RaggedLine* lines) {
  const bool alike = !all.packed && !all.lengths;
  for (Index n = pointwise::first_item(); n < all.count; n += pointwise::item_stride()) {
    const Index length = all.length(n);
    Index place = alike ? n : 0;
    for (Index other = 0; other < all.count && !alike; ++other) {
      const Index its = all.length(other);
      place += its > length || (its == length && other < n);
    }
    const auto steps = static_cast<std::int32_t>(length);
    lines[place] = {static_cast<std::int32_t>(n),
                    static_cast<std::int32_t>(all.packed ? 0 : n),
                    static_cast<std::int32_t>(all.first(n)),
                    steps,
                    0,
                    steps};
  }
}

// How a block fills the lines that sequences share. By length, the first sequences begin a line
// each; the shortest of all are behind the first line, as many as it has room for, the next ones
// behind the second line, and so on until each sequence is in a line. Room is what the longest
// sequence takes or, up to kMostMore times, a sixteenth of that more: a warp fills the lines of
// each room. What a warp asks of the next lines, or sequences, its lanes ask all at once.
struct LineFill {
  static constexpr int kEach = static_cast<int>(dispatch::kMostSharing) / kThreads;
  static constexpr int kMostMore = 4, kRooms = kMostMore + 1;
  static_assert(kEach * kThreads == dispatch::kMostSharing, "a thread has as many as any other");
  static_assert(kThreads >= kRooms * kLanes, "each room has a warp");
  static_assert(dispatch::kMostSharing < 1 << 16, "a place fits");

  // Steps of all sequences before a place.
  Index sums[dispatch::kMostSharing + 1];
  // For a line of each room: the sequences from this place on are behind it or a line before it.
  std::uint16_t behind[kRooms][dispatch::kMostSharing];

  // use(place, k) for the places of this thread.
  template <class F>
  __device__ __forceinline__ static void for_own(Index count, F&& use) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const Index place = Index{threadIdx.x} + k * kThreads;
      if (place < count) use(place, k);
    }
  }
  __device__ __forceinline__ Index steps(Index place) const {
    return sums[place + 1] - sums[place];
  }

  // By all threads: the steps before each place.
  __device__ __forceinline__ void sum(const RaggedLine* sequences, Index count) {
    if (threadIdx.x == 0) sums[0] = 0;
    for_own(count, [&](Index n, int) { sums[n + 1] = sequences[n].count; });
    for (Index apart = 1; apart < count; apart *= 2) {
      Index before[kEach];
      __syncthreads();
      for_own(count, [&](Index n, int k) { before[k] = n >= apart ? sums[n + 1 - apart] : 0; });
      __syncthreads();
      for_own(count, [&](Index n, int k) { sums[n + 1] += before[k]; });
    }
    __syncthreads();
  }

  // By a warp: the first line from this one on that has room for sequence `last`, or `last`.
  __device__ __forceinline__ Index first_with_room(Index line, Index last, Index room) const {
    const Index most = room - steps(last);
    for (; line < last; line += kLanes) {
      const Index own = line + threadIdx.x % kLanes;
      const unsigned fits = __ballot_sync(~0u, own >= last || steps(own) <= most);
      if (fits != 0) return min(last, line + __ffs(static_cast<int>(fits)) - 1);
    }
    return last;
  }
  // By a warp: how many of the sequences in front of place `end`, and not in front of the line,
  // have at most so many steps together, the shortest first.
  __device__ __forceinline__ Index count_fitting(Index line, Index end, Index most) const {
    for (Index from = end;; from -= kLanes) {
      const Index own = from - 1 - threadIdx.x % kLanes;
      const unsigned fits = __ballot_sync(~0u, own > line && sums[end] - sums[own] <= most);
      if (fits != ~0u) return end - from + __popc(fits);
    }
  }
  // By a warp: fills lines, whose number it returns.
  __device__ __forceinline__ Index fill(Index count, int more) {
    const Index room = steps(0) + steps(0) * more / 16, lane = threadIdx.x % kLanes;
    std::uint16_t* const own = behind[more];
    Index line = 0, end = count;
    while (line < end) {
      const Index found = first_with_room(line, end - 1, room);
      const Index next = found < end - 1 ? found : end;
      for (Index i = line + lane; i < next; i += kLanes) own[i] = static_cast<std::uint16_t>(end);
      line = next;
      if (line == end) break;
      end -= count_fitting(line, end, room - steps(line));
      if (lane == 0) own[line] = static_cast<std::uint16_t>(end);
      ++line;
    }
    return end;
  }
};

// A line that shares sequences: what comes first is longer, or was first by the length of the
// sequence that begins it. `next` is the place, counted from the end, of the sequence that follows.
struct LineKey {
  static constexpr int kBits = 12;
  static constexpr std::uint64_t kPlace = (1 << kBits) - 1;
  static_assert(dispatch::kMostSharing <= kPlace, "a place fits");
  std::uint64_t value;

  __device__ __forceinline__ static LineKey of(Index steps, Index place, Index next) {
    return {static_cast<std::uint64_t>(steps) << 2 * kBits |
            (kPlace - static_cast<std::uint64_t>(place)) << kBits |
            static_cast<std::uint64_t>(next)};
  }
  __device__ __forceinline__ std::int32_t steps() const {
    return static_cast<std::int32_t>(value >> 2 * kBits);
  }
  __device__ __forceinline__ Index place() const {
    return static_cast<Index>(kPlace - (value >> kBits & kPlace));
  }
  __device__ __forceinline__ Index next() const { return static_cast<Index>(value & kPlace); }
};

// By a block: the largest first. `size` is a power of two.
__device__ __forceinline__ void sort_lines(LineKey* keys, Index size) {
  for (Index sorted = 2; sorted <= size; sorted *= 2) {
    for (Index apart = sorted / 2; apart > 0; apart /= 2) {
      for (Index i = threadIdx.x; i < size / 2; i += kThreads) {
        const Index low = (i & ~(apart - 1)) * 2 + (i & (apart - 1)), high = low + apart;
        const bool falls = (low & sorted) == 0;
        const LineKey a = keys[low], b = keys[high];
        if ((a.value < b.value) != falls) continue;
        keys[low] = b;
        keys[high] = a;
      }
      __syncthreads();
    }
  }
}

// From a line for each sequence, in the order of order_lines, those that sequences share, `most` of
// them if that can be. The longest lines come first, behind them the sequences that follow in a
// line, the shortest of all first: so those of a line lie one behind another. By one block.
static __global__ void __launch_bounds__(kThreads)
    share_lines(const RaggedLine* sequences, Index count, Index most, RaggedLine* lines) {
  __shared__ union {
    LineFill filled;
    LineKey keys[dispatch::kMostSharing];
  } memory;
  __shared__ Index made[LineFill::kRooms];
  const LineFill& filled = memory.filled;
  memory.filled.sum(sequences, count);
  const int warp = threadIdx.x / kLanes;
  if (warp < LineFill::kRooms) {
    const Index all = memory.filled.fill(count, warp);
    if (threadIdx.x % kLanes == 0) made[warp] = all;
  }
  __syncthreads();
  int more = 0;
  while (more < LineFill::kMostMore && made[more] > most) ++more;
  if (made[more] > most) more = 0;
  const Index all = made[more];

  LineKey own_keys[LineFill::kEach];
  const auto begin_of = [&](Index line) { return Index{filled.behind[more][line]}; };
  const auto end_of = [&](Index line) { return line == 0 ? count : begin_of(line - 1); };
  LineFill::for_own(count, [&](Index n, int k) {
    if (n >= all) {
      RaggedLine own = sequences[n];
      own.next = 1;
      own.steps = 0;
      lines[all + count - 1 - n] = own;
    } else {
      const Index begin = begin_of(n), end = end_of(n);
      const Index steps = filled.steps(n) + filled.sums[end] - filled.sums[begin];
      own_keys[k] = LineKey::of(steps, n, begin < end ? count - end + 1 : 0);
    }
  });
  __syncthreads();
  LineFill::for_own(all, [&](Index n, int) {
    if (begin_of(n) < end_of(n)) lines[all + count - 1 - begin_of(n)].next = 0;
  });
  __syncthreads();
  Index size = 1;
  while (size < all) size *= 2;
  LineFill::for_own(size,
                    [&](Index n, int k) { memory.keys[n] = n < all ? own_keys[k] : LineKey{0}; });
  __syncthreads();
  sort_lines(memory.keys, size);
  LineFill::for_own(all, [&](Index place, int) {
    const LineKey key = memory.keys[place];
    RaggedLine own = sequences[key.place()];
    own.next = static_cast<std::int32_t>(key.next() == 0 ? 0 : all + key.next() - 1 - place);
    own.steps = key.steps();
    lines[place] = own;
  });
}

}  // namespace scanrnn::ragged
