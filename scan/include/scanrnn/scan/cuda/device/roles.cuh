// SPDX-License-Identifier: Apache-2.0
// What the warps of a block of the device kernel do: a service warp publishes the totals of tiles
// or resolves the states before them; a worker composes its chunk of a tile and walks it one tile
// later, when the state has come.
#pragma once

#include "scanrnn/scan/cuda/device/shape.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

// The steps of a chunk as the lane has kept them: a state that enters is in them.
template <class Source>
struct KeptSteps {
  using Marked = Source;
  static constexpr bool kMarked = IsMarked<Source>::value, kUnrolls = false, kCuts = false,
                        kBegins = false;
  using V = typename Source::V;
  const Source& source;  // with the chunk's marks
  const Lifted<V>* kept;

  __device__ __forceinline__ auto plain() const {
    return KeptSteps<typename Source::Plain>{source.plain, kept};
  }
  __device__ __forceinline__ ItemOf<Source> item(int, bool) const { return {}; }
  __device__ __forceinline__ StepOf<Source> step(const ItemOf<Source>&, int k, bool) const {
    const Lifted<V> step = kept[k * kLanes];
    return {step.a, V(0), step.b};
  }
  __device__ __forceinline__ std::uint32_t mark(int k) const { return source.marks.at(k); }
  template <class State>
  __device__ __forceinline__ void begin(std::uint32_t mark, const ItemOf<Source>&,
                                        State& state) const {
    if (source.anew(mark)) state = carried(V(0));
  }
};
template <class Source>
KeptSteps(const Source&, const Lifted<typename Source::V>*) -> KeptSteps<Source>;

// Where a ticket's tile is; those beyond the last have `tiles`. Each row of a column is kParts of
// the exchange's.
struct Tickets {
  unsigned tiles, columns, row_blocks;

  __device__ __forceinline__ Place place(unsigned ticket) const {
    const unsigned column = ticket % columns;
    return {ticket < tiles * columns ? ticket / columns : tiles, column / row_blocks,
            column % row_blocks};
  }
  __device__ __forceinline__ unsigned column(const Place& at, int parts, int part) const {
    return (at.line * row_blocks + at.block) * parts + part;
  }
};
__device__ __forceinline__ Index first_row(const Place& place) {
  return Index{place.block} * kLanes;
}

// A service warp, number `part` of kParts: publishes the totals of tiles as they are composed. The
// first takes tickets, too.
template <class Op, bool kJoins, int kParts, int kWarps>
__device__ __forceinline__ void publish_totals(Shared<Op, kParts, kWarps>& shared,
                                               const Exchange<Op>& exchange, const Tickets& tickets,
                                               int workers, int part, int lane) {
  const int row = part * kLanes + lane;  // of the tile
  const bool takes_tickets = part == 0 && lane == 0;
  for (unsigned i = 0;; ++i) {
    const Place now = shared.places[i % kPlaces];
    if (now.tile >= tickets.tiles) return;
    const Place next = tickets.place(takes_tickets ? atomicAdd(exchange.tickets, 1u) : 0);
    shared.composed[i % kRound].wait(i / kRound);
    typename Op::Local total[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total[w] = shared.totals[i % kKept][w][row];
    const auto own = Op::promote(join_all<Op, kWarps>([&](int w) { return total[w]; }));
    if (now.tile + 1 < tickets.tiles) {
      exchange.publish(0, now.tile, tickets.column(now, kParts, part), lane, own);
    }
    if (takes_tickets) shared.places[(i + kStages) % kPlaces] = next;
    shared.own[i % kKept][row] = own;
    shared.published[i % kRound].arrive();
    if constexpr (kJoins) {
      auto preceding = Op::local_identity();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < workers) shared.totals[i % kKept][w][row] = preceding;
        preceding = Op::join(preceding, total[w]);
      }
      shared.joined[i % kRound].arrive();
    }
  }
}

// A service warp, number `number` of kParts * kResolvers: puts together the states before tiles.
template <class Op, int kParts, int kWarps, class Ends>
__device__ __forceinline__ void resolve_states(Shared<Op, kParts, kWarps>& shared,
                                               const Exchange<Op>& exchange, const Tickets& tickets,
                                               const Extent& extent, const Ends& ends, int number,
                                               int lane) {
  const int part_row = number % kParts * kLanes + lane;
  for (unsigned i = number / kParts;; i += kResolvers) {
    const Place now = shared.places[i % kPlaces];
    if (now.tile >= tickets.tiles) return;
    const auto own_total = [&](typename Op::Element& own) {
      if (!shared.published[i % kRound].test(i / kRound)) return false;
      own = shared.own[i % kKept][part_row];
      return true;
    };
    Resolver<Op, decltype(own_total)> resolver{
        exchange, shared.siblings[number], own_total,
        now.tile, tickets.tiles,           tickets.column(now, kParts, number % kParts),
        lane};
    shared.before[i % kKept][part_row] = resolver.find_state([&] {
      const Index row = first_row(now), left = extent.rows - row - 1;
      const int of = part_row / kParts;
      return part(ends.first(now.line, row + (of < left ? of : left)), part_row % kParts);
    });
    shared.resolved[i % kRound].arrive();
  }
}

// The state before a worker's chunk of tile j. What the workers before it add is put together while
// the state before the tile is on its way. Where a line is only cut, all lanes are at the same
// step, and what comes before the last of these workers whose chunk is cut is not asked for.
template <class Op, class Source, int kParts, int kWarps>
__device__ __forceinline__ auto state_before(Shared<Op, kParts, kWarps>& shared, unsigned j,
                                             int warp, int lane) {
  constexpr bool kKnowsCuts = knows_cuts<Source>();
  using Wide = typename UncutOf<typename Widened<Op, typename Source::V>::Op, kKnowsCuts>::Type;
  auto preceding = Wide::local_identity();
  unsigned cut = 0;  // bit w: the chunk of worker w before this one
  if constexpr (joins_ahead<Source>()) {
    shared.joined[j % kRound].wait(j / kRound);
    join_parts(&shared.totals[j % kKept][warp][lane * kParts], preceding);
  } else {
    shared.composed[j % kRound].wait(j / kRound);
    if constexpr (kKnowsCuts) {
      cut = __ballot_sync(~0u, lane < warp && shared.cut[j % kKept][lane]);
    }
    for (int w = cut ? kLanes - 1 - __clz(cut) : 0; w < warp; ++w) {
      typename Wide::Local total;
      join_parts(&shared.totals[j % kKept][w][lane * kParts], total);
      preceding = Wide::join(preceding, total);
    }
  }
  shared.resolved[j % kRound].wait(j / kRound);
  if constexpr (kKnowsCuts) {
    if (cut) return carried(preceding.b);
  }
  typename Wide::State state;
  join_parts(&shared.before[j % kKept][lane * kParts], state);
  return Wide::apply(preceding, state);
}

// The marks that a lane keeps behind the steps of all lanes.
template <int kSteps, class V>
__device__ __forceinline__ std::uint32_t* kept_marks(Lifted<V>* kept, int lane) {
  return reinterpret_cast<std::uint32_t*>(kept - lane + kSteps * kLanes);
}
// Keeps the steps of a composed chunk, and its marks, until it is walked.
template <class Source, int kSteps, class Marks>
__device__ __forceinline__ void keep(const Lifted<typename Source::V> (&steps)[kSteps],
                                     const Marks& marks, Lifted<typename Source::V>* kept,
                                     int lane) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) kept[k * kLanes] = steps[k];
  if constexpr (keeps_marks<Source>()) {
    __syncwarp();  // every lane has walked
    if (lane < kSteps) kept_marks<kSteps>(kept, lane)[lane] = marks.own;
    __syncwarp();
  }
}

// A worker: composes a chunk of the next tile, then walks that of the tile before.
// first_step(place) is where its chunk begins, ask_for(place, tile) sends for one, align(place,
// tile) puts its rows in their places; `ring` has the tiles of inputs.
template <class Op, class Source, class Sink, class Ends, int kParts, int kWarps, class FirstStep,
          class AskFor, class Align>
__device__ __forceinline__ void work(Shared<Op, kParts, kWarps>& shared, unsigned tiles,
                                     const Extent& extent, const Source& source, const Sink& sink,
                                     const Ends& ends, const FirstStep& first_step,
                                     const AskFor& ask_for, const Align& align,
                                     typename Source::T* ring, Lifted<typename Source::V>* kept,
                                     int warp, int lane) {
  using V = typename Source::V;
  using Wide = typename Widened<Op, V>::Op;
  constexpr int kSteps = device_steps<Source>(), kTile = tile_elements<Source, kSteps>();
  constexpr bool kKeepsSteps = keeps_steps<Source, Sink>();
  constexpr unsigned kInputs = input_stages<Source, Sink>();
  decltype(marks_of<kSteps>(source)) marks;  // of the chunk that is walked next
  [[maybe_unused]] DrawnOf<Source> drawn;
  for (unsigned i = 0;; ++i) {
    const Place ahead = shared.places[i % kPlaces];
    [[maybe_unused]] Lifted<V> fresh_steps[kKeepsSteps ? kSteps : 1];
    decltype(marks) fresh_marks;
    DrawnOf<Source> fresh_drawn;
    if (ahead.tile < tiles) {
      const Index row = first_row(ahead), t = first_step(ahead);
      const int unit = unit_of(extent, row);
      const auto in = source.line(ahead.line);
      fresh_drawn = draw<kSteps>(in, row + unit, t, extent);  // while copies are on their way
      await_copies<1>();
      auto* const tile = align(ahead, ring + i % kInputs * kTile);
      const auto here = staged<kSteps>(in, tile, row, t, fresh_drawn);
      fresh_marks = marks_of<kSteps>(here);
      const auto total =
          compose<Wide, kSteps>(here, unit, fresh_marks, [&](int k, const auto& step) {
            if constexpr (kKeepsSteps) fresh_steps[k] = {step.a, step.b};
          });
      split_parts<kParts>(total, &shared.totals[i % kKept][warp][lane * kParts]);
      if constexpr (knows_cuts<Source>()) {
        if (lane == 0) shared.cut[i % kKept][warp] = static_cast<bool>(fresh_marks);
      }
      shared.composed[i % kRound].arrive();
      if constexpr (kKeepsSteps) {
        // The place was told before the tile before was published.
        if (i > 0) shared.published[(i - 1) % kRound].wait((i - 1) / kRound);
        __syncwarp();  // the tile has been read by every lane: it can be filled again
        ask_for(shared.places[(i + kInputs) % kPlaces], tile);
      }
    }
    if (i > 0) {
      const unsigned j = i - 1;
      const Place now = shared.places[j % kPlaces];
      if (now.tile >= tiles) return;
      const Index row = first_row(now), t = first_step(now), left = extent.steps - t;
      const int unit = unit_of(extent, row);
      auto* const tile = ring + j % kInputs * kTile;
      const auto state = state_before<Op, Source>(shared, j, warp, lane);
      if (unit == lane && left > 0) {
        auto cursor = sink.line(now.line).from(row + lane, t);
        typename Wide::State last;
        if constexpr (kKeepsSteps) {
          auto here = source.line(now.line);
          if constexpr (keeps_marks<Source>()) {
            here.marks = here.marks.staged(kept_marks<kSteps>(kept, lane));
          }
          last = walk<Wide, kSteps>(KeptSteps{here, kept}, marks, left, cursor, state);
        } else {
          const auto in = source.line(now.line);
          const auto here = staged<kSteps>(in, tile, row, t, drawn);
          const auto inside = staged_inside<kSteps>(in, tile, row, t, drawn);
          last = walk<Wide, kSteps>(TileSteps{here, inside, unit}, marks, left, cursor, state);
        }
        if (left <= kSteps) ends.last(now.line, row + lane, last);
      }
      if constexpr (!kKeepsSteps) {
        __syncwarp();  // the tile has been read by every lane: it can be filled again
        ask_for(shared.places[(j + kStages) % kPlaces], tile);
      }
    }
    if constexpr (kKeepsSteps) keep<Source>(fresh_steps, fresh_marks, kept, lane);
    marks = fresh_marks;
    drawn = fresh_drawn;
  }
}

// Before the first tile: barriers, and where there are fewer workers, the others add nothing.
template <class Op, int kParts, int kWarps>
__device__ __forceinline__ void prepare(Shared<Op, kParts, kWarps>& shared, int workers, int warp,
                                        int lane) {
  for (int w = workers + warp; warp < workers && w < kWarps; w += workers) {
    for (int p = 0; p < kParts; ++p) {
      for (auto& totals : shared.totals) totals[w][lane * kParts + p] = Op::local_identity();
    }
  }
  if (threadIdx.x == 0) {
    for (unsigned k = 0; k < kRound; ++k) {
      shared.composed[k].init(workers);
      shared.published[k].init(kParts);
      shared.joined[k].init(kParts);
      shared.resolved[k].init(kParts);
    }
  }
}

}  // namespace cuda
}  // namespace scanrnn::scan
