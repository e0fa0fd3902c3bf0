// SPDX-License-Identifier: Apache-2.0
// A dense cell's whole sequence forward in one kernel, for large batches: as
// cuda/kernels/persistent/grid.cuh, but its products are those of warp groups, 64 rows of R by all
// of a block's lines at once.
//
// A block has 16 units of a group of lines, and two warp groups. In a step each of them
//   receives  its half of h, which words that say themselves that they have come bring to shared
//             memory
//   products  multiplies all of the block's rows by it
//   items     steps half of the lines, for which the other one gives it its sums, and sends h of
//             each at once
//   rows      asks for what the next step reads, and stores what this one has left, while the other
//             blocks' words come
// A group of lines has 16 bytes of each line side by side in the exchange, so that they are
// received as they came.
//
// A line of a ragged batch has one sequence or several behind one another, and lines end at
// different steps. Nobody waits for words of a line that has ended, but products are made of all of
// a block's lines until the longest one ends.
#pragma once

#include "cuda/kernels/persistent/large_items.cuh"
#include "cuda/kernels/persistent/weights.cuh"

namespace scanrnn::persistent {

// A cut, and where in shared memory the parts of a block are.
template <int kTile>
struct LargeCut {
  static constexpr dispatch::LargeTile kCut = dispatch::kLargeTiles[kTile];
  static constexpr int kLines = kCut.lines, kKept = kCut.kept;
  static constexpr int kRows = 4 * dispatch::kLargeUnits;  // of R in a block: a unit has four
  static constexpr int kSums = kLines / 2;                 // of a thread
  // Pieces of 16 bytes that a thread waits for at the same time.
  static constexpr int kReceived = (kKept < 16 ? kKept : 16) * kLines / 64;
};

// A group's half of R's columns.
template <class C, class Cut, class T>
__device__ __forceinline__ LargeWeights<Cut::kKept, Cut::kRows> large_weights(
    const CudaDenseArgs<T, float>& a, const LargeForwardShare& share, std::uint32_t at) {
  const int half = static_cast<int>(a.hidden) / dispatch::kLargeGroups;
  const HeadShare head(a);
  // Row r of a warp's 16 is of its unit r % 8 / 2, and the gate 2 (r % 2) + r / 8.
  return {share, half / dispatch::kLargePiece, at, [&](int row, int column) {
            const int unit = share.first_unit + row / 16 * 4 + row % 8 / 2;
            const int gate = row % 2 * 2 + row % 16 / 8;
            return load_word<false>(a, WeightRows<T>::of(a, true), head, gate, unit,
                                    share.group * half + column, gate < C::kGates);
          }};
}

// How a block's words pass. The lines of a group come in the exchange as they are, in shared memory
// those first that the warp group steps itself, so that it has their sums first.
template <class Cut>
struct LargeExchange {
  static constexpr int kApart = kGroupThreads / Cut::kLines;  // pieces of a line to the next one

  const std::uint32_t* from;  // this thread's first piece of 16 bytes
  std::uint32_t* to;          // of this thread's first item
  std::uint32_t state;        // where its first piece goes in shared memory
  int line, count;            // its line; lines
  int first, pieces;          // its first piece along the group's half of h; all of the half
  bool sends;
  Index slot;  // words

  __device__ __forceinline__ LargeExchange(const LargeForwardShare& share, int hidden, Index lines,
                                           std::uint32_t* exchange, std::uint32_t at_state)
      : state(at_state + static_cast<std::uint32_t>(share.thread) * 16),
        line((share.thread + share.first_line) % Cut::kLines),
        count(share.own.count),
        first(share.thread / Cut::kLines),
        pieces(hidden / (8 * dispatch::kLargeGroups)),
        sends(share.thread % 32 < 8),
        slot(lines * hidden / 2) {
    exchange += Index{share.own.first} * hidden / 2;
    from = exchange + (Index{share.group * pieces + first} * count + line) * 4;
    const int unit = share.first_unit + share.unit / 4 * 4;
    to = exchange + (Index{unit / 8} * count + share.line) * 4 + unit % 8 / 2;
  }
  // This group's half of h of so many lines, from the slot of a step.
  __device__ __forceinline__ void receive(int lines) {
    for (int done = first; done < pieces; done += Cut::kReceived * kApart) {
      bool waits[Cut::kReceived];
      uint4 v[Cut::kReceived];
      const std::uint32_t* const at = from + Index{done - first} * count * 4;
#pragma unroll
      for (int i = 0; i < Cut::kReceived; ++i) {
        waits[i] = line < lines && done + i * kApart < pieces;
      }
      persistent::receive(at, kApart * count * 4, waits, v);
#pragma unroll
      for (int i = 0; i < Cut::kReceived; ++i) {
        const int number = (done - first) / kApart + i;
        if (done + i * kApart < pieces) store_shared(state + number * kGroupThreads * 16, v[i]);
      }
    }
    from += slot;
  }
  // h of item j, which the lanes of a warp's four units put together.
  template <class T>
  __device__ __forceinline__ void send(const LargeForwardShare& share, int j, float h) const {
    const std::uint32_t own = Bits<T>::of(h, __shfl_xor_sync(~0u, h, 8));
    const std::uint32_t other = __shfl_xor_sync(~0u, own, 16);
    if (sends && share.item_line(j) < count) persistent::send(to + 8 * j * 4, own, other);
  }
  __device__ __forceinline__ void to_next_slot() { to += slot; }
};

// The halves of the sums that the groups give each other, in two turns, for which no thread has to
// wait for a reader.
template <class Cut>
struct LargeParts {
  static constexpr int kItems = Cut::kLines / 16;
  static constexpr int kOf = kItems * kGroupThreads * 16;  // bytes of a group's in a turn

  std::uint32_t at;  // of this thread

  __device__ __forceinline__ std::uint32_t of(int t, int group) const {
    return at + static_cast<std::uint32_t>((t % 2 * dispatch::kLargeGroups + group) * kOf);
  }
  // What the other group steps.
  __device__ __forceinline__ void give(int t, int group, const float (&sum)[Cut::kSums]) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const float* const given = sum + Cut::kSums / 2 + 4 * j;
      store_shared(of(t, 1 - group) + j * kGroupThreads * 16,
                   make_float4(given[0], given[1], given[2], given[3]));
    }
  }
  // All sums of item j: two gates of a unit for two lines.
  __device__ __forceinline__ void take(int t, int group, int j, const float (&sum)[Cut::kSums],
                                       float (&all)[4]) const {
    float4 part;
    load_shared(of(t, group) + j * kGroupThreads * 16, part);
    const float* const own = sum + 4 * j;
    all[0] = own[0] + part.x, all[1] = own[1] + part.y;
    all[2] = own[2] + part.z, all[3] = own[3] + part.w;
  }
};

template <class C, class T, int kTile, Lines kLines>
__global__ void __launch_bounds__(dispatch::kLargeThreads, 1)
    large_kernel(const __grid_constant__ CudaDenseArgs<T, float> a, const int slices,
                 const int groups, std::uint32_t* const exchange) {
  if constexpr (warp_group::kExists) {
    using Cut = LargeCut<kTile>;
    using Items = LargeItems<C, T, Cut::kLines>;
    constexpr bool kRagged = kLines == Lines::ragged;
    extern __shared__ float4 memory[];
    const LargeForwardShare share(static_cast<int>(a.batch), slices, groups, Cut::kLines);
    const int group = share.group, hidden = static_cast<int>(a.hidden);
    const LargeMemoryAt at(memory, dispatch::large_memory(Cut::kCut, a.hidden), group);
    const LargeParts<Cut> parts{at.parts + share.thread * 16};
    const LargeForwardRows<C, T, Cut::kLines> rows{at.template rows<T>()};
    const LargeTurns<kLines, Cut::kLines> turns{at.turns(), share.own,
                                                rows.is_first(share) ? rows.line(share) : -1};
    if constexpr (kRagged) {
      if (a.steps_of(share.own.template line<true>(0)) == 0) return;
    }

    const auto weights = large_weights<C, Cut>(a, share, at.weights);
    warp_group::Shared state(at.state, Cut::kLines);
    LargeExchange<Cut> words(share, hidden, a.batch, exchange, at.state);
    LargeLine<kLines> line(a, share.own, rows.line(share));
    turns.post(0, line);
    __syncthreads();  // R is in shared memory
    Items items(a, share, turns);
#pragma unroll
    for (int j = 0; j < Items::kCount; ++j) words.template send<T>(share, j, items.state[j].h);
    rows.fetch(a, share, line.place(a, 0), 0);
    const int steps = static_cast<int>(a.steps);
    [[maybe_unused]] ActiveLines<false> active(a, share.own);
    for (int t = 0; t < steps; ++t) {
      int lines = share.own.count;
      if constexpr (kRagged) {
        active.drop_ended(a, share.own, t);
        if (active.count == 0) return;
        lines = active.count;
      }
      words.receive(lines);
      words.to_next_slot();
      warp_group::publish();
      warp_group::meet(group);
      state.forget();
      float sum[Cut::kSums] = {};
      weights.begin(T(), sum, 0, weights.kAll,
                    [&](int piece) { return state.at(piece, Cut::kLines); });
      warp_group::await(sum);
      parts.give(t, group, sum);
      if (t > 0) turns.post(t, line);
      scan::cuda::await_copies<0>();
      __syncthreads();
#pragma unroll
      for (int j = 0; j < Items::kCount; ++j) {
        float all[4];
        parts.take(t, group, j, sum, all);
        const int item = share.item_line(j);
        items.step(a, share, j, all, rows.of(t, item), turns.cut(t, item));
        if constexpr (kRagged) items.pass(a, share, j, t, turns.at(t, item));
        if (t + 1 < steps) words.template send<T>(share, j, items.state[j].h);
      }
      const LargePlace left = line.place(a, t);
      line.move_to(a, t + 1);
      rows.fetch(a, share, line.place(a, t + 1), t + 1);
      warp_group::meet(group);
      rows.store(a, share, left, t);
    }
    if constexpr (!kRagged) items.close(a, share);
  } else {
    __trap();  // no planner gives a device without them this kernel
  }
}

template <class C, class T, int kTile>
cudaError_t launch_large_forward(const CudaDenseArgs<T, float>& args,
                                 const dispatch::PersistentShape& shape, void* exchange,
                                 cudaStream_t stream) {
  const auto bytes = dispatch::large_memory(dispatch::kLargeTiles[kTile], args.hidden).all();
  const auto kernel =
      by_kind_of_lines(args, [](auto kind) { return large_kernel<C, T, kTile, kind>; });
  return launch_large<T>(kernel, args, shape, bytes, 1, exchange, stream);
}

}  // namespace scanrnn::persistent
