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

#include "scanrnn/scan/cuda/device/roles.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

// Workers, kWarps at most, compose and walk; the service warps see to what comes before.
template <class Op, class Source, class Sink, class Ends, int kWarps>
__global__ void __launch_bounds__((kWarps + service_warps<Op, Source>()) * kLanes, 1)
    device_kernel(const Extent extent, const unsigned row_blocks, const unsigned tiles,
                  const int workers, const Source source, const Sink sink, const Ends ends,
                  const int copied, const Exchange<Op> exchange) {
  using T = typename Source::T;
  using V = typename Source::V;
  constexpr int kSteps = device_steps<Source>(), kParts = parts<Op, Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  constexpr unsigned kInputs = input_stages<Source, Sink>();
  if (!runs(source)) {
    await_stream();  // what starts behind this kernel may wait for it alone
    return;
  }
  extern __shared__ __align__(kLineBytes) unsigned char dynamic[];
  auto& shared = *reinterpret_cast<Shared<Op, kParts, kWarps>*>(dynamic);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  unsigned char* const mine =
      reinterpret_cast<unsigned char*>(&shared + 1) + warp * worker_shared<Source, Sink>();
  T* const ring = reinterpret_cast<T*>(mine);
  auto* const kept = reinterpret_cast<Lifted<V>*>(mine + kInputs * kTile * sizeof(T)) + lane;
  const Tickets tickets{tiles, exchange.columns / kParts, row_blocks};
  const auto first_step = [&](const Place& place) {
    return (Index{place.tile} * workers + warp) * kSteps;
  };
  const auto ask_for = [&](const Place& place, T* tile) {
    Feed<Source, kSteps> feed{extent, copied};
    if (place.tile < tiles) {
      const auto in = source.line(place.line);
      feed.aim(in, first_row(place), first_step(place));
      feed.copy(in, tile, first_row(place), first_step(place));
    } else {
      commit_copies();
    }
  };
  const auto align = [&](const Place& place, T* tile) {
    const Feed<Source, kSteps> feed{extent, copied};
    feed.align(source.line(place.line), tile, first_row(place), first_step(place));
    return tile;
  };
  prepare(shared, workers, warp, lane);
  // One ticket after another: blocks that start together so take turns. A block with several
  // tickets in a row would make tiles wait for one another's whole stay.
  for (unsigned stage = 0; stage < kStages; ++stage) {
    if (threadIdx.x == 0) shared.places[stage] = tickets.place(atomicAdd(exchange.tickets, 1u));
    __syncthreads();
    if (warp < workers && stage < kInputs) ask_for(shared.places[stage], ring + stage * kTile);
  }
  await_stream();  // not before: see clear_exchange()

  if (warp < workers) {
    work(shared, tiles, extent, source, sink, ends, first_step, ask_for, align, ring, kept, warp,
         lane);
  } else if (warp < workers + kParts) {
    publish_totals<Op, joins_ahead<Source>()>(shared, exchange, tickets, workers, warp - workers,
                                              lane);
  } else {
    resolve_states(shared, exchange, tickets, extent, ends, warp - workers - kParts, lane);
  }
}

// A walk of no steps: states go from one end to the other.
template <class Ends>
__global__ void __launch_bounds__(kLanes)
    pass_kernel(const Extent extent, const Index row_blocks, const Ends ends) {
  await_stream();
  const Index line = blockIdx.x / row_blocks;
  const Index row = blockIdx.x % row_blocks * kLanes + threadIdx.x;
  if (row < extent.rows) ends.last(line, row, ends.first(line, row));
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
  if (count == 0) return cudaSuccess;
  if (extent.steps == 0) {
    return cuda::launch(pass_kernel<Ends>, count, kLanes, 0, launch, extent, row_blocks(extent),
                        ends);
  }
  if (launch.shared < kLeastShared) return cudaErrorInvalidConfiguration;
  const int workers = workers_for<Op, Source, Sink, kWarps>(launch.shared);
  const Index tiles = device_tiles<Source>(extent, workers);
  // Tickets are 32-bit words, and every running block takes a few beyond the last tile.
  if (tiles * count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  Exchange<Op> exchange;
  const std::size_t bytes =
      exchange.place(static_cast<char*>(workspace), count * parts<Op, Source>(), tiles);
  const auto status = clear_exchange(workspace, bytes, launch);
  if (status != cudaSuccess) return status;
  return cuda::launch(device_kernel<Op, Source, Sink, Ends, kWarps>,
                      tiles * count < launch.units ? tiles * count : launch.units,
                      (workers + service_warps<Op, Source>()) * kLanes,
                      device_shared<Op, Source, Sink, kWarps>(workers), launch, extent,
                      static_cast<unsigned>(row_blocks(extent)), static_cast<unsigned>(tiles),
                      workers, source, sink, ends, copied_bytes(extent, source), exchange);
}

}  // namespace scanrnn::scan
