// SPDX-License-Identifier: Apache-2.0
// A dense cell's whole sequence backward in one kernel, for large batches: as
// cuda/kernels/persistent/large.cuh, but by clusters of two blocks, four warp groups in all.
//
// A block has 32 units of a group of lines. In a step each of the cluster's warp groups
//   receives  a quarter of the cotangents of R h that the step before has left, in chunks
//   products  multiplies them by all columns of R that the cluster has
//   parts     sends each of the other groups what it has of that one's units and lines
//   items     adds up what came, steps its own, and sends their cotangents at once
//   rows      stores what this step has left, and asks for what the next one reads
// In the exchange a unit's cotangents lie side by side by pairs, and what is left of an odd number
// of them by pairs of units: 8 units have as many pieces of 16 bytes as they have cotangents.
//
// Lines of a ragged batch are as forward. What a sequence's last step has sent is multiplied a turn
// later: where another sequence follows in the line, at the turn of that one's first step.
#pragma once

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/persistent/large_back_items.cuh"

namespace scanrnn::persistent {

template <int kTile>
struct LargeBackCut {
  static constexpr dispatch::LargeTile kCut = dispatch::kLargeBackward[kTile];
  static constexpr int kLines = kCut.lines, kKept = kCut.kept;
  static constexpr int kRows = dispatch::kLargeBackUnits * dispatch::kLargeCluster;
  static constexpr int kSums = kLines / 2;   // of a thread
  static constexpr int kItems = kLines / 8;  // of a thread
  static constexpr int kChunk = dispatch::large_chunk(kLines);
  static constexpr int kChunkBytes = kChunk * dispatch::kLargePiece * kLines * 2;
  static constexpr int kApart = kGroupThreads / kLines;  // pieces of a line to the next one
  static constexpr int kReceived =
      2 * kChunk / kApart;  // pieces of 16 bytes of a thread in a chunk
  static constexpr int kChunks = dispatch::large_back_most_chunks(kCut);
  using Part = typename std::conditional<kItems == 4, float4, float2>::type;
};

// Where the cotangents of a unit are among those of its 8 units that are sent.
template <int kGates>
struct SentOrder {
  static constexpr int kPairs = kGates / 2;
  // f(unit of the 8, gate) for both elements of a word.
  template <class F>
  __device__ __forceinline__ static std::uint32_t word(int at, F&& bits) {
    if (at < 8 * kPairs) {
      const int unit = kPairs > 0 ? at / (kPairs > 0 ? kPairs : 1) : 0;
      const int gate = 2 * (at - unit * kPairs);
      return bits(unit, gate) | bits(unit, gate + 1) << 16;
    }
    const int unit = 2 * (at - 8 * kPairs);
    return bits(unit, kGates - 1) | bits(unit + 1, kGates - 1) << 16;
  }
};

// A group's quarter of the sum.
template <class Cut>
struct LargeBackProducts {
  LargeWeights<Cut::kKept, Cut::kRows> weights;
  warp_group::Shared state;
  std::uint32_t at_state;

  template <class C, class T>
  __device__ __forceinline__ LargeBackProducts(const CudaDenseArgs<T, float>& a,
                                               const LargeBackShare& share,
                                               std::uint32_t at_weights, std::uint32_t at_state, C)
      : weights(share, static_cast<int>(dispatch::large_back_pieces(a.hidden, C::kGates)),
                at_weights,
                [&](int row, int column) {
                  constexpr int kOf = 8 * C::kGates;  // of eight units
                  const int quarter = share.rank * dispatch::kLargeGroups + share.group;
                  const Index first = quarter * (a.hidden / 4) + column / kOf * 8;
                  return SentOrder<C::kGates>::word(column % kOf / 2, [&](int of, int gate) {
                    const Index other = gate * a.hidden + first + of;
                    return Bits<T>::load(a.weight + other * a.weight_stride + share.row_unit(row));
                  });
                }),
        state(at_state, Cut::kLines),
        at_state(at_state) {}
  // receive(chunk, v) brings a thread's pieces of a chunk.
  template <class T, class Receive>
  __device__ __forceinline__ void multiply(T, const LargeBackShare& share, float (&sum)[Cut::kSums],
                                           Receive&& receive) {
    state.forget();
    weights.shared.forget();
#pragma unroll
    for (float& s : sum) s = 0.0f;
#pragma unroll
    for (int c = 0; c < Cut::kChunks; ++c) {
      constexpr int kOf = Cut::kChunk;
      if (c * kOf >= weights.pieces) break;
      uint4 v[Cut::kReceived];
      receive(c, v);
      if (c >= 2) {  // all have read what lay there
        warp_group::await_but_last();
        warp_group::meet(share.group);
      }
      const std::uint32_t to = at_state + c % 2 * Cut::kChunkBytes + share.thread * 16;
#pragma unroll
      for (int i = 0; i < Cut::kReceived; ++i) store_shared(to + i * kGroupThreads * 16, v[i]);
      warp_group::publish();
      warp_group::meet(share.group);
      weights.begin(T(), sum, c * kOf, kOf, [&](int piece) {
        return state.at(piece - c * kOf + c % 2 * kOf, Cut::kLines);
      });
    }
    warp_group::await(sum);
  }
};

// How words pass.
template <class C, class T, class Cut>
struct LargeBackExchange {
  static constexpr int kGates = C::kGates, kPairs = SentOrder<kGates>::kPairs;
  using Sums = DenseSums<C, float>;

  const std::uint32_t* from;  // this thread's first piece of 16 bytes
  std::uint32_t* to;          // of this thread's units and first line that it sends
  int line, count;            // its line that it receives; lines
  int first, pieces;          // its first piece along the group's quarter; all of that
  int sent_line;              // of two adjacent units' lines
  Index slot;                 // words

  __device__ __forceinline__ LargeBackExchange(const LargeBackShare& share, int hidden, Index lines,
                                               std::uint32_t* exchange)
      : line((share.thread + share.first_line) % Cut::kLines),
        count(share.own.count),
        first(share.thread / Cut::kLines),
        pieces(2 * static_cast<int>(dispatch::large_back_pieces(hidden, kGates))),
        slot(lines * hidden * kGates / 2) {
    exchange += Index{share.own.first} * hidden * kGates / 2;
    const int quarter = share.rank * dispatch::kLargeGroups + share.group;
    from = exchange + (Index{quarter * pieces + first} * count + line) * 4;
    sent_line = share.line + share.odd;
    to = exchange + (Index{(share.first_unit + share.unit) / 8 * kGates} * count + sent_line) * 4;
  }
  // A chunk of so many lines' cotangents.
  __device__ __forceinline__ void receive(int chunk, int lines, uint4 (&v)[Cut::kReceived]) const {
    const int done = chunk * 2 * Cut::kChunk;
    bool waits[Cut::kReceived];
#pragma unroll
    for (int i = 0; i < Cut::kReceived; ++i) {
      waits[i] = line < lines && first + done + i * Cut::kApart < pieces;
    }
    persistent::receive(from + Index{done} * count * 4, Cut::kApart * count * 4, waits, v);
  }
  // The cotangents of R h of items 2m and 2m + 1, which a lane and that of the unit beside its own
  // put together: each sends one line of both units.
  __device__ __forceinline__ void send(const LargeBackShare& share, int m, const Sums& first_line,
                                       const Sums& second_line) const {
    const bool odd = share.odd;  // sends the second line
    // What it sends itself, and what it gives to be sent.
    Sums own, other;
#pragma unroll
    for (int i = 0; i < Sums::kCount; ++i) {
      own.value[i] = odd ? second_line.value[i] : first_line.value[i];
      other.value[i] = odd ? first_line.value[i] : second_line.value[i];
    }
    const bool exists = sent_line + 8 * m < count;
    const int pair = share.unit % 8 / 2;
    std::uint32_t* const at = to + 8 * m * 4;
    if constexpr (kPairs > 0) {
      std::uint32_t words[2 * kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const auto of = [&](const Sums& s) {
          return Bits<T>::of(s.recurrent(2 * i), s.recurrent(2 * i + 1));
        };
        const std::uint32_t mine = of(own), given = __shfl_xor_sync(~0u, of(other), 4);
        words[i] = odd ? given : mine;
        words[kPairs + i] = odd ? mine : given;
      }
      const int word = pair * 2 * kPairs;
      std::uint32_t* const place = at + (word / 4 * count * 4 + word % 4);
      if constexpr (kPairs == 2) {
        if (exists) persistent::send(place, make_uint4(words[0], words[1], words[2], words[3]));
      } else {
        if (exists) persistent::send(place, words[0], words[1]);
      }
    }
    if constexpr (kGates % 2 == 1) {
      const float mine = own.recurrent(kGates - 1);
      const float given = __shfl_xor_sync(~0u, other.recurrent(kGates - 1), 4);
      const std::uint32_t word = odd ? Bits<T>::of(given, mine) : Bits<T>::of(mine, given);
      if (exists) persistent::send(at + (2 * kPairs * count * 4 + pair), word);
    }
  }
};

// What the other three groups have of a thread's sums, in two turns, for which no thread has to
// wait for a reader.
template <class Cut>
struct LargeBackParts {
  using Part = typename Cut::Part;
  static constexpr int kFrom = 3;  // groups: of this block, of the other one the same and the other
  static constexpr int kOf = kGroupThreads * static_cast<int>(sizeof(Part));
  static constexpr int kSent = 2 * dispatch::kLargeGroups * kOf;

  std::uint32_t at, away;   // of this thread, here and in the other block
  cluster::Inbox* inboxes;  // of two turns
  std::uint32_t away_inboxes;

  __device__ __forceinline__ LargeBackParts(const LargeBackShare& share,
                                            const LargeMemoryAt& memory)
      : at(memory.parts + 16 + share.thread * static_cast<int>(sizeof(Part))),
        away(cluster::of_block(at, 1 - share.rank)),
        inboxes(reinterpret_cast<cluster::Inbox*>(memory.parts_pointer)),
        away_inboxes(cluster::of_block(memory.parts, 1 - share.rank)) {}
  __device__ __forceinline__ static int place(int t, int group, int from) {
    return ((t % 2 * dispatch::kLargeGroups + group) * kFrom + from) * kOf;
  }
  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) {
      inboxes[0].open();
      inboxes[1].open();
    }
    __syncthreads();
    cluster::meet();
  }
  __device__ __forceinline__ static Part part(const float (&sum)[Cut::kSums], int lines, int unit) {
    const float* const of = sum + lines * Cut::kSums / 2 + unit * 2;
    if constexpr (Cut::kItems == 4) {
      return make_float4(of[0], of[1], of[4], of[5]);
    } else {
      return make_float2(of[0], of[1]);
    }
  }
  __device__ __forceinline__ void give(int t, const LargeBackShare& share,
                                       const float (&sum)[Cut::kSums]) const {
    const int group = share.group;
    const std::uint32_t inbox = away_inboxes + t % 2 * sizeof(cluster::Inbox);
    cluster::send(away + place(t, group, 1), inbox, part(sum, 0, 1));
    cluster::send(away + place(t, 1 - group, 2), inbox, part(sum, 1, 1));
    store_shared(at + place(t, 1 - group, 0), part(sum, 1, 0));
    if (threadIdx.x == 0) inboxes[t % 2].expect(kSent);
  }
  // Once all of the block have given.
  __device__ __forceinline__ void take(int t, const LargeBackShare& share,
                                       const float (&sum)[Cut::kSums],
                                       float (&total)[Cut::kItems]) const {
    inboxes[t % 2].wait(static_cast<unsigned>(t / 2));
    Part from[kFrom];
#pragma unroll
    for (int i = 0; i < kFrom; ++i) load_shared(at + place(t, share.group, i), from[i]);
    const Part own = part(sum, 0, 0);
    const auto all = [&](float mine, float here, float there, float other) {
      return (mine + here) + (there + other);
    };
    total[0] = all(own.x, from[0].x, from[1].x, from[2].x);
    total[1] = all(own.y, from[0].y, from[1].y, from[2].y);
    if constexpr (Cut::kItems == 4) {
      total[2] = all(own.z, from[0].z, from[1].z, from[2].z);
      total[3] = all(own.w, from[0].w, from[1].w, from[2].w);
    }
  }
};

template <class C, class T, int kTile, Lines kLines>
__global__ void __launch_bounds__(dispatch::kLargeThreads, 1)
    large_back_kernel(const __grid_constant__ CudaDenseArgs<T, float> a, const int slices,
                      const int groups, std::uint32_t* const exchange) {
  if constexpr (warp_group::kExists) {
    using Cut = LargeBackCut<kTile>;
    using Items = LargeBackItems<C, T, Cut::kLines>;
    constexpr bool kRagged = kLines == Lines::ragged;
    extern __shared__ float4 memory[];
    const LargeBackShare share(static_cast<int>(a.batch), slices, groups, Cut::kLines);
    const int hidden = static_cast<int>(a.hidden);
    const LargeMemoryAt at(memory, dispatch::large_back_memory(Cut::kCut, a.hidden, C::kGates),
                           share.group);
    const LargeBackParts<Cut> parts(share, at);
    const LargeBackRows<C, T, Cut::kLines> rows(at.template rows<T>());
    const LargeTurns<kLines, Cut::kLines> turns{at.turns(), share.own,
                                                rows.is_first(share) ? rows.line(share) : -1};
    if constexpr (kRagged) {
      if (a.steps_of(share.own.template line<true>(0)) == 0) return;
    }

    parts.open();
    LargeBackProducts<Cut> products(a, share, at.weights, at.state, C());
    LargeBackExchange<C, T, Cut> words(share, hidden, a.batch, exchange);
    LargeLine<kLines> line(a, share.own, rows.line(share));
    Items items(a, share);
    if constexpr (!kRagged) items.open(a, share);
    rows.fetch(a, share, line.place(a, 0));
    const int steps = static_cast<int>(a.steps);
    [[maybe_unused]] ActiveLines<true> active(a, share.own);
    float total[Cut::kItems] = {};
    for (int t = 0; t <= steps; ++t) {
      int lines = share.own.count;
      if constexpr (kRagged) {
        active.drop_ended(a, share.own, t);
        if (active.count == 0) return;
        lines = active.count;
      }
      const auto meet_all = [&] {
        turns.post(t, line);
        scan::cuda::await_copies<0>();
        __syncthreads();
      };
      if (t > 0) {
        float sum[Cut::kSums];
        products.multiply(T(), share, sum,
                          [&](int chunk, auto& v) { words.receive(chunk, lines, v); });
        words.from += words.slot;
        parts.give(t - 1, share, sum);
        meet_all();
        parts.take(t - 1, share, sum, total);
      } else {
        meet_all();
      }
      if constexpr (kRagged) {
#pragma unroll
        for (int j = 0; j < Cut::kItems; ++j) items.pass(a, share, j, turns, t, total[j]);
      }
      if (t == steps) break;
#pragma unroll
      for (int m = 0; m < Cut::kItems / 2; ++m) {
        const auto step = [&](int j) {
          const int item = share.item_line(j);
          return items.step(share, j, total[j], rows.of(item), turns.cut(t, item));
        };
        const auto first = step(2 * m), second = step(2 * m + 1);
        words.send(share, m, first, second);
      }
      words.to += words.slot;
      warp_group::meet(share.group);
      rows.store(a, share, line.place(a, t));
      warp_group::meet(share.group);
      line.move_to(a, t + 1);
      rows.fetch(a, share, line.place(a, t + 1));
    }
    if constexpr (!kRagged) items.close(a, share, total);
  } else {
    __trap();  // no planner gives a device without them this kernel
  }
}

template <class C, class T, int kTile>
cudaError_t launch_large_back(const CudaDenseArgs<T, float>& args,
                              const dispatch::PersistentShape& shape, void* exchange,
                              cudaStream_t stream) {
  const auto bytes =
      dispatch::large_back_memory(dispatch::kLargeBackward[kTile], args.hidden, C::kGates).all();
  const auto kernel =
      by_kind_of_lines(args, [](auto kind) { return large_back_kernel<C, T, kTile, kind>; });
  return launch_large<T>(kernel, args, shape, bytes, dispatch::kLargeCluster, exchange, stream);
}

}  // namespace scanrnn::persistent
