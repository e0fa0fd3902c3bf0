// SPDX-License-Identifier: Apache-2.0
// Parallel scan of few rows, or of rows whose steps are adjacent: time lies along lanes.
//
// Either a line is one warp's or a few warps', which hand themselves the state from tile to tile,
// or a tile is a block's and time is split over blocks: tiles of a row form a tree of kLaneGroup,
// each publishes its total, the last of a group the group's, and the last of a group of groups the
// state after it. A tile that waits, waits for tiles with smaller tickets, as in device/kernel.cuh.
// What is combined with what depends on positions and the number of warps alone.
#pragma once

#include <algorithm>

#include "scanrnn/scan/cuda/device/shape.cuh"
#include "scanrnn/scan/cuda/lanes/exchange.cuh"
#include "scanrnn/scan/cuda/lanes/lines.cuh"
#include "scanrnn/scan/cuda/lanes/warp.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kMostLineWarps = 8;  // of a block whose line is its own

// Warps of a block that put states together, two rows at once each. Eight rows so take the time of
// one exchange; large elements and items that a walk keeps leave no registers for as many warps.
template <class Op, class Sink>
inline constexpr int kLaneServices =
    sizeof(typename Op::Element) <= 16 && !Sink::kReadsItem ? 4 : 2;

// A line is a block's, of one warp or, where kStep is known, a few, which have tiles in turn and
// tell one another what theirs compose to.
template <class Op, class Source, class Sink, class Ends, int kStep>
__global__ void __launch_bounds__(kStep == 0 ? kLanes : kMostLineWarps * kLanes, kStep == 0 ? 1 : 2)
    lane_walk_kernel(const Extent extent, const Source source, const Sink sink, const Ends ends,
                     const bool runs) {
  using Warp =
      LaneWarp<Op, Source, Sink, line_steps<Source>(), kStep, kept_in_registers<Source, Sink>()>;
  using Local = typename Op::Local;
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  __shared__ Local totals[2][kStep == 0 ? 1 : kMostLineWarps];
  const int number = kStep == 0 ? 0 : threadIdx.x / kLanes;
  const int warps = kStep == 0 ? 1 : blockDim.x / kLanes;
  const Warp warp{LaneShape<kStep>(extent), runs,
                  reinterpret_cast<typename Source::T*>(shared) +
                      number * kLaneStages * Source::kStreams * Warp::kTile};
  await_stream();
  const Index index = blockIdx.x;
  const auto line = source.line(index);
  const auto out = sink.line(index);
  const Index round = warps * warp.steps();
  Index t = number * warp.steps();
  warp.ask(line, 0, t);
  typename Op::State state = ends.first(index, warp.row);
  unsigned i = 0;
  for (Index begin = 0; begin < extent.steps; begin += round, t += round, ++i) {
    const int stage = i % kLaneStages;
    warp.ask(line, 1 - stage, t + round);
    await_copies<1>();
    const auto here = warp.stretch_of(line, stage, t);
    typename Warp::Parts parts;
    Local total = warp.compose(line, here, parts);
    Local before = warp.before(total);
    // By the tiles' compositions, not by the last lane's walk: what rounding takes is kept.
    const int last = (warp.shape.stretches - 1) * warp.shape.rows + warp.row;
    Local all = cub::ShuffleIndex<kLanes>(total, last, ~0u);
    if (warps > 1) {
      if (warp.lane == 0) totals[stage][number] = all;
      __syncthreads();
      Local earlier = Op::local_identity();
      all = totals[stage][0];
      for (int w = 1; w < warps; ++w) {
        if (w == number) earlier = all;
        all = Op::join(all, totals[stage][w]);
      }
      before = Op::join(earlier, before);
    }
    const auto start = Op::apply(before, state);
    state = Op::apply(all, state);
    // Lanes without a stretch have composed the first one's, which is written now.
    if constexpr (kStep == 0) __syncwarp();
    warp.walk(line, out, ends, index, extent.steps, here, parts, start);
    warp.send(line, out, stage, t, extent.steps);
  }
}

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
  const int half = lane / kLaneGroup, services = blockDim.x / kLanes - kLaneWarps;
  const unsigned ticket = shared.tickets[i % 4];
  if (service == 0 && lane == 0) {
    shared.tickets[(i + kLaneStages) % 4] = atomicAdd(exchange.tickets, 1u);
  }
  const Index line = all.line(ticket);
  const auto& totals = shared.totals[i % 2];
  for (int first = 2 * service; first < rows; first += 2 * services) {
    const bool exists = first + half < rows;
    const int row = exists ? first + half : first;
    const auto own =
        Op::promote(join_all<Op, kLaneWarps>([&](int worker) { return totals[worker][row]; }));
    const auto state = exchange.resolve(all.tile(ticket), all.tiles, line * rows + row, exists, own,
                                        [&] { return ends.first(line, row); });
    if (exists && lane % kLaneGroup == 0) shared.before[i % 2][row] = state;
  }
}

// A tile is a block's; blocks take them in order. Workers walk a tile after they have composed the
// next one; meanwhile the service warps put together the state before that.
template <class Op, class Source, class Sink, class Ends, int kStep>
__global__ void __launch_bounds__((kLaneWarps + kLaneServices<Op, Sink>)*kLanes, 2)
    lane_device_kernel(const Extent extent, const LaneTickets all, const Source source,
                       const Sink sink, const Ends ends, const bool runs,
                       const LaneExchange<Op> exchange) {
  using Warp =
      LaneWarp<Op, Source, Sink, lane_steps<Op, Source>(), kStep, kept_in_tile<Source, Sink>()>;
  extern __shared__ __align__(kVectorBytes) unsigned char dynamic[];
  __shared__ LaneShared<Op> shared;
  const int number = threadIdx.x / kLanes;
  const Warp warp{LaneShape<kStep>(extent), runs,
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

// The step from step to step that most lines of one row have: time goes on, or back where a Source
// has a last step of its own, the first in time.
template <class Source>
constexpr int line_step() {
  return Source::kLastDiffers ? -1 : 1;
}
// Warps of a line's block: where lines are few, so many that a multiprocessor has sixteen, but no
// more than there are tiles or than a block has room for on every device. Two warps of a long line
// of 32 bits read it from memory faster than one.
template <class Source>
int line_warps(const Extent& extent, int units) {
  constexpr int kRoom = static_cast<int>(kLeastShared) - 1024;
  constexpr int kMost = kRoom / lane_shared<Source>(line_steps<Source>());
  const Index tiles = (extent.steps - 1) / (line_steps<Source>() * kLanes) + 1;
  int warps = sizeof(typename Source::T) == 4 && tiles >= 4 ? 2 : 1;
  while (2 * warps <= std::min<Index>({kMost, kMostLineWarps, tiles}) &&
         extent.lines * warps < Index{14} * units) {
    warps *= 2;
  }
  return warps;
}

template <class Op, class Source>
Index lane_tiles(const Extent& extent) {
  const Index tile = Index{kLaneWarps} * lane_steps<Op, Source>() * (kLanes / extent.rows);
  return (extent.steps + tile - 1) / tile;
}

}  // namespace cuda

// Bytes of workspace that launch_lanes needs where it splits time over blocks; their contents do
// not matter.
template <class Op, class Source>
std::size_t lanes_workspace(const Extent& extent) {
  if (extent.rows == 0 || extent.rows > cuda::kLanes) return 0;
  cuda::LaneExchange<Op> exchange;
  return exchange.place(nullptr, extent.lines * extent.rows, cuda::lane_tiles<Op, Source>(extent));
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

namespace cuda {

// launch_lanes() where kStep is known, or is not.
template <class Walk, class Op, int kStep, class Source, class Sink, class Ends>
cudaError_t launch_lanes_by(const Extent& extent, const Source& source, const Sink& sink,
                            const Ends& ends, bool across_blocks, void* workspace,
                            const Launch& on) {
  const bool runs = lanes_run(extent, source);
  if (!across_blocks) {
    const int warps = kStep == 0 ? 1 : line_warps<Source>(extent, on.units);
    return cuda::launch(lane_walk_kernel<Walk, Source, Sink, Ends, kStep>, extent.lines,
                        warps * kLanes, warps * lane_shared<Source>(line_steps<Source>()), on,
                        extent, source, sink, ends, runs);
  }
  const Index tiles = lane_tiles<Op, Source>(extent), count = tiles * extent.lines;
  // Tickets are 32-bit words, and every running block takes a few beyond the last tile.
  if (count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  LaneExchange<Op> exchange;
  const std::size_t bytes =
      exchange.place(static_cast<char*>(workspace), extent.lines * extent.rows, tiles);
  const auto status = clear_exchange(workspace, bytes, on);
  if (status != cudaSuccess) return status;
  const LaneTickets all{static_cast<unsigned>(tiles), static_cast<unsigned>(extent.lines)};
  return cuda::launch(lane_device_kernel<Op, Source, Sink, Ends, kStep>,
                      std::min<Index>(count, 2 * on.units),
                      (kLaneWarps + kLaneServices<Op, Sink>)*kLanes,
                      kLaneWarps * lane_shared<Source>(lane_steps<Op, Source>()), on, extent, all,
                      source, sink, ends, runs, exchange);
}

}  // namespace cuda

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
  const auto by = all_step(extent, source, sink, line_step<Source>())
                      ? launch_lanes_by<Walk, Op, line_step<Source>(), Source, Sink, Ends>
                      : launch_lanes_by<Walk, Op, 0, Source, Sink, Ends>;
  return by(extent, source, sink, ends, across_blocks, workspace, launch);
}

}  // namespace scanrnn::scan
