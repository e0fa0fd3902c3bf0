// SPDX-License-Identifier: Apache-2.0
// Parallel scan over the whole device, one pass over memory: time is cut into tiles that blocks
// take in order, and a tile stays on chip while the state before it is put together. What is
// combined with what depends on positions alone, so that two runs give the same bits.
//
// Tiles of a column form a tree of kFan: a tile publishes its total, the last tile of each group
// the group's, and the last tile of each group of the highest level the state after it. A tile that
// waits, waits for tiles with smaller tickets. Tickets are given out in order to blocks that are
// running, and a block finishes its tiles in the order of their tickets, so the smallest unfinished
// ticket never waits for long.
#pragma once

#include "scanrnn/scan/cuda/device/shape.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

// As walk(), by the steps that the lane has kept.
template <class Op, int kSteps, class Source, class Sink>
__device__ __forceinline__ typename Op::State walk_kept(const Lifted<typename Source::V>* kept,
                                                        Index left, Sink cursor,
                                                        typename Op::State state) {
  using V = typename Source::V;
  const auto advance = [&](int k) {
    const Lifted<V> step = kept[k * kLanes];
    const auto after = Op::advance({step.a, V(0), step.b}, state);
    cursor.store(0, 0, ItemOf<Source>{}, state, after);
    cursor.next();
    state = after;
  };
  if (left >= kSteps) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) advance(k);
  } else {
#pragma unroll 1
    for (int k = 0; k < left; ++k) advance(k);
  }
  return state;
}

// Workers, kWarps at most, compose and walk; the service warps see to what comes before.
template <class Op, class Source, class Sink, class Ends, int kWarps>
__global__ void __launch_bounds__((kWarps + service_warps<Op, Source>()) * kLanes, 1)
    device_kernel(const Extent extent, const unsigned row_blocks, const unsigned tiles,
                  const int workers, const Source source, const Sink sink, const Ends ends,
                  const bool vectors, const Exchange<Op> exchange) {
  using T = typename Source::T;
  constexpr int kSteps = device_steps<Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  extern __shared__ __align__(kLineBytes) unsigned char dynamic[];
  constexpr int kParts = parts<Op, Source>();
  using Wide = typename Widened<Op, typename Source::V>::Op;  // of a worker's lane
  auto& shared = *reinterpret_cast<Shared<Op, kParts, kWarps>*>(dynamic);

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  using V = typename Source::V;
  constexpr bool kKeepsSteps = keeps_steps<Source, Sink>();
  constexpr unsigned kInputs = input_stages<Source, Sink>();
  unsigned char* const mine =
      reinterpret_cast<unsigned char*>(&shared + 1) + warp * worker_shared<Source, Sink>();
  T* const ring = reinterpret_cast<T*>(mine);
  auto* const kept = reinterpret_cast<Lifted<V>*>(mine + kInputs * kTile * sizeof(T)) + lane;
  const auto place_of = [&](unsigned ticket) -> Place {
    const unsigned columns = exchange.columns / kParts, column = ticket % columns;
    return {ticket < tiles * columns ? ticket / columns : tiles, column / row_blocks,
            column % row_blocks};
  };
  const auto first_row = [](const Place& place) { return Index{place.block} * kLanes; };
  const auto first_step = [&](const Place& place) {
    return (Index{place.tile} * workers + warp) * kSteps;
  };
  const auto ask_for = [&](const Place& place, T* tile) {
    Feed<Source, kSteps> feed{extent, vectors};
    if (place.tile < tiles) {
      const auto in = source.line(place.line);
      feed.aim(in, first_row(place), first_step(place));
      feed.copy(in, tile, first_row(place), first_step(place));
    } else {
      commit_copies();
    }
  };
  // Where there are fewer workers, the others add nothing.
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
  // One ticket after another: blocks that start together so take turns. A block with several
  // tickets in a row would make tiles wait for one another's whole stay.
  for (unsigned stage = 0; stage < kStages; ++stage) {
    if (threadIdx.x == 0) shared.places[stage] = place_of(atomicAdd(exchange.tickets, 1u));
    __syncthreads();
    if (warp < workers && stage < kInputs) ask_for(shared.places[stage], ring + stage * kTile);
  }
  await_stream();  // not before: see Exchange::clear()

  if (warp >= workers) {
    // Service warps: of rows part, part + kLanes ... of the tile.
    const int part_row = (warp - workers) % kParts * kLanes + lane;
    const auto column_of = [&](const Place& place) {
      return (place.line * row_blocks + place.block) * kParts + (warp - workers) % kParts;
    };
    if (warp < workers + kParts) {
      const bool takes_tickets = warp == workers && lane == 0;
      for (unsigned i = 0;; ++i) {
        const Place now = shared.places[i % kPlaces];
        if (now.tile >= tiles) return;
        const Place next = place_of(takes_tickets ? atomicAdd(exchange.tickets, 1u) : 0);
        shared.composed[i % kRound].wait(i / kRound);
        typename Op::Local total[kWarps];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total[w] = shared.totals[i % kKept][w][part_row];
        const auto own = Op::promote(fold<Op, kWarps>([&](int w) { return total[w]; }));
        if (now.tile + 1 < tiles) exchange.publish(0, now.tile, column_of(now), lane, own);
        if (takes_tickets) shared.places[(i + kStages) % kPlaces] = next;
        shared.own[i % kKept][part_row] = own;
        shared.published[i % kRound].arrive();
        if constexpr (joins_ahead<Source>()) {
          auto preceding = Op::local_identity();
#pragma unroll
          for (int w = 0; w < kWarps; ++w) {
            if (w < workers) shared.totals[i % kKept][w][part_row] = preceding;
            preceding = Op::join(preceding, total[w]);
          }
          shared.joined[i % kRound].arrive();
        }
      }
    }
    const int resolver_warp = warp - workers - kParts;
    for (unsigned i = resolver_warp / kParts;; i += kResolvers) {
      const Place now = shared.places[i % kPlaces];
      if (now.tile >= tiles) return;
      const auto own_total = [&](typename Op::Element& own) {
        if (!shared.published[i % kRound].test(i / kRound)) return false;
        own = shared.own[i % kKept][part_row];
        return true;
      };
      Resolver<Op, decltype(own_total)> resolver{
          exchange, shared.siblings[resolver_warp], own_total, now.tile, tiles, column_of(now),
          lane};
      shared.before[i % kKept][part_row] = resolver.find_state([&] {
        const Index row = first_row(now), left = extent.rows - row - 1;
        const int of = part_row / kParts;
        return part(ends.first(now.line, row + (of < left ? of : left)), part_row % kParts);
      });
      shared.resolved[i % kRound].arrive();
    }
  }

  for (unsigned i = 0;; ++i) {
    const Place ahead = shared.places[i % kPlaces];
    [[maybe_unused]] Lifted<V> fresh_steps[kKeepsSteps ? kSteps : 1];
    if (ahead.tile < tiles) {
      await_copies<1>();
      const Index row = first_row(ahead);
      const int unit = unit_of(extent, row);
      T* const tile = ring + i % kInputs * kTile;
      const auto here = staged<kSteps>(source.line(ahead.line), tile, row, first_step(ahead));
      typename Wide::Local total;
      if constexpr (kKeepsSteps) {
        total = Wide::local_identity();
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const auto step = here.step(here.load(unit, k));
          fresh_steps[k] = {step.a, step.b};
          total = Wide::then(total, step);
        }
      } else {
        total = compose<Wide, kSteps>(here, unit);
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        shared.totals[i % kKept][warp][lane * kParts + p] = part(total, p);
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
      T* const tile = ring + j % kInputs * kTile;
      // What the workers before this one add, while the state before the tile is on its way.
      auto preceding = Wide::local_identity();
      if constexpr (joins_ahead<Source>()) {
        shared.joined[j % kRound].wait(j / kRound);
        join_parts(&shared.totals[j % kKept][warp][lane * kParts], preceding);
      } else {
        shared.composed[j % kRound].wait(j / kRound);
        for (int w = 0; w < warp; ++w) {
          typename Wide::Local total;
          join_parts(&shared.totals[j % kKept][w][lane * kParts], total);
          preceding = Wide::join(preceding, total);
        }
      }
      shared.resolved[j % kRound].wait(j / kRound);
      typename Wide::State state;
      join_parts(&shared.before[j % kKept][lane * kParts], state);
      state = Wide::apply(preceding, state);
      if (unit == lane && left > 0) {
        auto cursor = sink.line(now.line).from(row + lane, t);
        typename Wide::State last;
        if constexpr (kKeepsSteps) {
          last = walk_kept<Wide, kSteps, Source>(kept, left, cursor, state);
        } else {
          const auto in = source.line(now.line);
          last = walk<Wide, kSteps>(staged<kSteps>(in, tile, row, t),
                                    staged_inside<kSteps>(in, tile, row, t), unit, left, cursor,
                                    state);
        }
        if (left <= kSteps) ends.last(now.line, row + lane, last);
      }
      if constexpr (!kKeepsSteps) {
        __syncwarp();  // the tile has been read by every lane: it can be filled again
        ask_for(shared.places[(j + kStages) % kPlaces], tile);
      }
    }
    if constexpr (kKeepsSteps) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) kept[k * kLanes] = fresh_steps[k];
    }
  }
}

template <class Source>
Index device_tiles(const Extent& extent, int workers) {
  const Index tile = Index{workers} * device_steps<Source>();
  return (extent.steps + tile - 1) / tile;
}

}  // namespace cuda

// Bytes of workspace that launch_device needs on any device; their contents do not matter.
template <class Op, int kMostWarps, class Source, class Sink>
std::size_t device_workspace(const Extent& extent) {
  using namespace cuda;
  constexpr int kWarps = device_warps<Op, Source, Sink, kMostWarps>();
  const int workers = workers_for<Op, Source, Sink, kWarps>(kLeastShared);
  Exchange<Op> exchange;
  return exchange.place(nullptr, columns(extent) * parts<Op, Source>(),
                        device_tiles<Source>(extent, workers));
}

template <class Op, int kMostWarps, class Source, class Sink, class Ends>
cudaError_t launch_device(const Extent& extent, const Source& source, const Sink& sink,
                          const Ends& ends, void* workspace, const Launch& launch) {
  using namespace cuda;
  constexpr int kWarps = device_warps<Op, Source, Sink, kMostWarps>();
  const Index count = columns(extent);
  if (count == 0 || extent.steps == 0) {
    using Wide = typename Widened<Op, typename Source::V>::Op;
    return launch_sequential<Wide>(extent, source, sink, ends, launch);
  }
  if (launch.shared < kLeastShared) return cudaErrorInvalidConfiguration;
  const int workers = workers_for<Op, Source, Sink, kWarps>(launch.shared);
  const Index tiles = device_tiles<Source>(extent, workers);
  // Tickets are 32-bit words, and every running block takes a few beyond the last tile.
  if (tiles * count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  Exchange<Op> exchange;
  const std::size_t bytes =
      exchange.place(static_cast<char*>(workspace), count * parts<Op, Source>(), tiles);
  const auto status = exchange.clear(bytes, launch);
  if (status != cudaSuccess) return status;
  return cuda::launch(device_kernel<Op, Source, Sink, Ends, kWarps>,
                      tiles * count < launch.units ? tiles * count : launch.units,
                      (workers + service_warps<Op, Source>()) * kLanes,
                      device_shared<Op, Source, Sink, kWarps>(workers), launch.stream, extent,
                      static_cast<unsigned>(row_blocks(extent)), static_cast<unsigned>(tiles),
                      workers, source, sink, ends, vectors_fit(extent, source), exchange);
}

}  // namespace scanrnn::scan
