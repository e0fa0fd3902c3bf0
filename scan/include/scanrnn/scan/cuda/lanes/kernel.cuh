// SPDX-License-Identifier: Apache-2.0
// Parallel scan of few rows, or of rows whose steps are adjacent: time lies along lanes.
//
// Either a line is one warp's, which hands itself the state from tile to tile, or a tile is a
// block's and time is split over blocks: tiles of a row form a tree of kLaneGroup, each publishes
// its total, the last of a group the group's, and the last of a group of groups the state after it.
// A tile that waits, waits for tiles with smaller tickets, as in device/kernel.cuh. What is
// combined with what depends on positions alone.
#pragma once

#include "scanrnn/scan/cuda/device/shape.cuh"
#include "scanrnn/scan/cuda/lanes/exchange.cuh"
#include "scanrnn/scan/cuda/lanes/warp.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kLaneServices = 2;  // warps of a block that put states together

// A line is one warp's.
template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kLanes)
    lane_walk_kernel(const Extent extent, const Source source, const Sink sink, const Ends ends,
                     const bool runs) {
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  const LaneWarp<Op, Source, Sink> warp{LaneShape(extent), runs,
                                        reinterpret_cast<typename Source::T*>(shared)};
  await_stream();
  const Index index = blockIdx.x;
  const auto line = source.line(index);
  const auto out = sink.line(index);
  warp.ask(line, 0, 0);
  typename Op::State state = ends.first(index, warp.row);
  unsigned i = 0;
  for (Index t = 0; t < extent.steps; t += warp.steps(), ++i) {
    const int stage = i % kLaneStages;
    warp.ask(line, 1 - stage, t + warp.steps());
    await_copies<1>();
    const auto here = warp.stretch_of(line, stage, t);
    typename LaneWarp<Op, Source, Sink>::Parts parts;
    auto total = warp.compose(line, here, parts);
    const auto before = warp.before(total);
    warp.walk(line, out, ends, index, extent.steps, here, parts, Op::apply(before, state));
    // By the tile's composition, not by the last lane's walk: what rounding takes is kept.
    const int last = (warp.shape.stretches - 1) * warp.shape.rows + warp.row;
    state = Op::apply(cub::ShuffleIndex<kLanes>(total, last, ~0u), state);
    warp.send(line, out, stage, t, extent.steps);
  }
}

// What a block's warps tell one another: of tiles in turn, and of tickets that came in order.
template <class Op>
struct LaneShared {
  typename Op::Local totals[2][kLaneWarps][kLanes];  // of each worker's rows
  typename Op::State before[2][kLanes];              // the tile
  unsigned tickets[4];
};

// The tiles of all lines: columns side by side, then the next tile of time.
struct LaneTickets {
  unsigned tiles, lines;
  __device__ __forceinline__ unsigned count() const { return tiles * lines; }
  __device__ __forceinline__ unsigned tile(unsigned ticket) const { return ticket / lines; }
  __device__ __forceinline__ Index line(unsigned ticket) const { return ticket % lines; }
};

// A service warp: puts together the state before a tile that is composed, and takes the ticket of
// the one after the next. It has two rows at once, and half of its lanes for each.
template <class Op, class Ends>
__device__ __forceinline__ void serve(LaneShared<Op>& shared, const LaneTickets& all, unsigned i,
                                      int service, int rows, const Ends& ends,
                                      const LaneExchange<Op>& exchange) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int half = lane / kLaneGroup;
  const unsigned ticket = shared.tickets[i % 4];
  if (service == 0 && lane == 0) {
    shared.tickets[(i + kLaneStages) % 4] = atomicAdd(exchange.tickets, 1u);
  }
  const Index line = all.line(ticket);
  const auto& totals = shared.totals[i % 2];
  for (int first = 2 * service; first < rows; first += 2 * kLaneServices) {
    const bool exists = first + half < rows;
    const int row = exists ? first + half : first;
    const auto own =
        Op::promote(fold<Op, kLaneWarps>([&](int worker) { return totals[worker][row]; }));
    const auto state = exchange.resolve(all.tile(ticket), all.tiles, line * rows + row, exists, own,
                                        [&] { return ends.first(line, row); });
    if (exists && lane % kLaneGroup == 0) shared.before[i % 2][row] = state;
  }
}

// A tile is a block's; blocks take them in order. Workers walk a tile after they have composed the
// next one; meanwhile the service warps put together the state before that.
template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__((kLaneWarps + kLaneServices) * kLanes, 2)
    lane_device_kernel(const Extent extent, const LaneTickets all, const Source source,
                       const Sink sink, const Ends ends, const bool runs,
                       const LaneExchange<Op> exchange) {
  using Warp = LaneWarp<Op, Source, Sink>;
  extern __shared__ __align__(kVectorBytes) unsigned char dynamic[];
  __shared__ LaneShared<Op> shared;
  const int number = threadIdx.x / kLanes;
  const Warp warp{LaneShape(extent), runs,
                  reinterpret_cast<typename Source::T*>(dynamic) +
                      number * kLaneStages * Source::kStreams * Warp::kTile};
  const auto first_step = [&](unsigned ticket) {
    return (Index{all.tile(ticket)} * kLaneWarps + number) * warp.steps();
  };
  const auto ask = [&](unsigned i) {
    const unsigned ticket = shared.tickets[i % 4];
    if (ticket < all.count()) {
      warp.ask(source.line(all.line(ticket)), i % 2, first_step(ticket));
    } else {
      commit_copies();
    }
  };
  // One ticket after another: blocks that start together so take turns.
  for (unsigned i = 0; i < kLaneStages; ++i) {
    if (threadIdx.x == 0) shared.tickets[i] = atomicAdd(exchange.tickets, 1u);
    __syncthreads();
    if (number < kLaneWarps) ask(i);
  }
  await_stream();  // not before: see clear_exchange()

  // What a lane keeps of a composed tile: its stretch, and all of the tile before that.
  typename Warp::Parts parts, next_parts;
  typename Op::Local preceding, next_preceding;
  const auto compose = [&](unsigned i) {
    const unsigned ticket = shared.tickets[i % 4];
    if (ticket >= all.count()) return;
    await_copies<0>();
    const auto line = source.line(all.line(ticket));
    auto total = warp.compose(line, warp.stretch_of(line, i % 2, first_step(ticket)), next_parts);
    next_preceding = warp.before(total);
    if (warp.walks && warp.stretch == warp.shape.stretches - 1) {
      shared.totals[i % 2][number][warp.row] = total;
    }
  };
  const auto finish = [&](unsigned i) {
    const unsigned ticket = shared.tickets[i % 4], turn = i % 2;
    const Index index = all.line(ticket), t = first_step(ticket);
    const auto line = source.line(index);
    const auto out = sink.line(index);
    warp.walk(line, out, ends, index, extent.steps, warp.stretch_of(line, turn, t), parts,
              Op::apply(preceding, shared.before[turn][warp.row]));
    warp.send(line, out, turn, t, extent.steps);
  };
  if (number < kLaneWarps) compose(0);
  for (unsigned i = 0;; ++i) {
    // One barrier for both kinds of warps: tile i is composed, and what comes before tile i - 1 is
    // there. All leave after the same one, the first where a block's first ticket is one too many.
    __syncthreads();
    const bool more = shared.tickets[i % 4] < all.count();
    if (number >= kLaneWarps) {
      if (more) serve(shared, all, i, number - kLaneWarps, warp.shape.rows, ends, exchange);
    } else {
      if (i > 0) finish(i - 1);
      if (more) {
        if (i > 0) ask(i + 1);
        parts = next_parts;
        auto earlier = Op::local_identity();
        for (int w = 0; w < number; ++w) {
          earlier = Op::join(earlier, shared.totals[i % 2][w][warp.row]);
        }
        preceding = Op::join(earlier, next_preceding);
        compose(i + 1);
      }
    }
    if (!more) return;
  }
}

// Whether every input is one run of memory, so that tiles may lie as memory does.
template <class Source>
bool lanes_run(const Extent& extent, const Source& source) {
  bool all = true;
  for (int i = 0; i < Source::kStreams; ++i) {
    const auto stream = source.line(0).stream(i);
    if (!stream.data) continue;
    all = all && stream.step == source.line(0).stream(0).step &&
          (stream.step == extent.rows || stream.step == -extent.rows);
  }
  return all;
}

template <class Source>
Index lane_tiles(const Extent& extent) {
  const Index tile = Index{kLaneWarps} * lane_steps<Source>() * (kLanes / extent.rows);
  return (extent.steps + tile - 1) / tile;
}

}  // namespace cuda

// Bytes of workspace that launch_lanes needs where it splits time over blocks; their contents do
// not matter.
template <class Op, class Source>
std::size_t lanes_workspace(const Extent& extent) {
  if (extent.rows == 0 || extent.rows > cuda::kLanes) return 0;
  cuda::LaneExchange<Op> exchange;
  return exchange.place(nullptr, extent.lines * extent.rows, cuda::lane_tiles<Source>(extent));
}

// Whether lanes can lie along time: lines of up to 32 rows, which are adjacent.
template <class Source, class Sink>
bool lanes_fit(const Extent& extent, const Source& source, const Sink& sink) {
  if (extent.rows > cuda::kLanes) return false;
  if (extent.rows <= 1 || extent.lines == 0) return true;
  const auto in = source.line(0);
  const auto out = sink.line(0);
  bool adjacent = true;
  for (int i = 0; i < Source::kStreams; ++i) {
    adjacent = adjacent && (!in.stream(i).data || in.stream(i).row == 1);
  }
  for (int i = 0; i < Sink::kStreams; ++i) {
    adjacent = adjacent && (!out.stream(i).data || out.stream(i).row == 1);
  }
  return adjacent;
}

// For what lanes_fit(). `Walk` is the operator of one warp's line, `Op` that of tiles over
// blocks.
template <class Walk, class Op, class Source, class Sink, class Ends>
cudaError_t launch_lanes(const Extent& extent, const Source& source, const Sink& sink,
                         const Ends& ends, bool across_blocks, void* workspace,
                         const Launch& launch) {
  using namespace cuda;
  if (extent.lines == 0 || extent.rows == 0) return cudaSuccess;
  if (!lanes_fit(extent, source, sink)) return cudaErrorInvalidConfiguration;
  if (extent.steps == 0) return launch_sequential<Walk>(extent, source, sink, ends, launch);
  constexpr int kTiles = lane_shared<Source>(lane_steps<Source>());
  const bool runs = lanes_run(extent, source);
  if (!across_blocks) {
    return cuda::launch(lane_walk_kernel<Walk, Source, Sink, Ends>, extent.lines, kLanes, kTiles,
                        launch.stream, extent, source, sink, ends, runs);
  }
  const Index tiles = lane_tiles<Source>(extent), count = tiles * extent.lines;
  // Tickets are 32-bit words, and every running block takes a few beyond the last tile.
  if (count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  LaneExchange<Op> exchange;
  const std::size_t bytes =
      exchange.place(static_cast<char*>(workspace), extent.lines * extent.rows, tiles);
  const auto status = clear_exchange(workspace, bytes, launch);
  if (status != cudaSuccess) return status;
  const LaneTickets all{static_cast<unsigned>(tiles), static_cast<unsigned>(extent.lines)};
  return cuda::launch(lane_device_kernel<Op, Source, Sink, Ends>,
                      std::min<Index>(count, 2 * launch.units),
                      (kLaneWarps + kLaneServices) * kLanes, kLaneWarps * kTiles, launch.stream,
                      extent, all, source, sink, ends, runs, exchange);
}

}  // namespace scanrnn::scan
