// SPDX-License-Identifier: Apache-2.0
// Parallel scan inside a block: lanes are rows, and warps take the chunks of time in turn. Each
// copies and composes its chunk on its own; the state goes round from warp to warp in the order of
// time.
#pragma once

#include "scanrnn/scan/cuda/mbarrier.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

// Chunks of a warp on their way at once: as many as keep some 8 KB in flight.
template <class Source, int kSteps>
constexpr int block_stages() {
  constexpr std::size_t bytes = tile_elements<Source, kSteps>() * sizeof(typename Source::T);
  return bytes >= 4096 ? 2 : bytes >= 2048 ? 4 : 6;
}

// A state is handed over at the receiver's barrier: one warp arrives, the other waits. The barriers
// are the hardware's named ones, one for each warp. racecheck does not follow such a pair;
// docs/architecture.md says why nothing can be overtaken.
template <int kWarps>
struct BarrierTurns {
  __device__ __forceinline__ void init() {}
  __device__ __forceinline__ void hand_over(int receiver) {
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(receiver), "n"(2 * kLanes) : "memory");
  }
  __device__ __forceinline__ void take_over(int receiver, unsigned) {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(receiver), "n"(2 * kLanes) : "memory");
  }
};

// The same by mbarriers, which are slower and which racecheck follows: the tests take it.
template <int kWarps>
struct MbarrierTurns {
  Mbarrier barriers[kWarps];

  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (int warp = 0; warp < kWarps; ++warp) barriers[warp].init(1);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void hand_over(int receiver) { barriers[receiver].arrive(); }
  __device__ __forceinline__ void take_over(int receiver, unsigned round) {
    barriers[receiver].wait(round);
  }
};

// Blocks that a multiprocessor must have registers for, or 0 for as it comes: where a block takes
// just more than these have.
template <class Source>
constexpr int least_blocks() {
  if (Source::kLastDiffers) return Source::kStreams <= 5 ? 2 : 0;
  return Source::kStreams == 3 && sizeof(typename Source::T) == 2 ? 4 : 0;
}

template <class Op, class Source, class Sink, class Ends, int kWarps, template <int> class Turns>
__global__ void __launch_bounds__(kWarps* kLanes, least_blocks<Source>())
    block_kernel(const Extent extent, const Index row_blocks, const Source source, const Sink sink,
                 const Ends ends, const int copied) {
  using T = typename Source::T;
  constexpr int kSteps = steps_per_thread<Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  constexpr int kStages = block_stages<Source, kSteps>();
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  // What each warp leaves for the next. It is read before its writer's turn comes again.
  __shared__ typename Op::State handed[kWarps][kLanes];
  __shared__ Turns<kWarps> turns;
  turns.init();
  await_stream();

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int before = warp == 0 ? kWarps - 1 : warp - 1, after = warp == kWarps - 1 ? 0 : warp + 1;
  const Index line = blockIdx.x / row_blocks, row = blockIdx.x % row_blocks * kLanes;
  const int unit = unit_of(extent, row);
  T* const ring = reinterpret_cast<T*>(shared) + warp * kStages * kTile;

  Feed<Source, kSteps> feed{extent, copied};
  {
    const auto in = source.line(line);
    feed.aim(in, row, warp * kSteps);
    for (int stage = 0; stage < kStages; ++stage) {
      feed.copy(in, ring + stage * kTile, row, (stage * kWarps + warp) * kSteps);
      feed.skip(in, kWarps * kSteps);
    }
  }
  int stage = 0;
  unsigned round = 0;
  for (Index t = warp * kSteps; t < extent.steps; t += kWarps * kSteps) {
    // Anew for each chunk: a call leaves half of the registers to what is kept beyond it.
    const auto in = source.line(fresh(line));
    const auto out = sink.line(fresh(line));
    const auto drawn = draw<kSteps>(in, row + unit, t, extent);
    await_copies<kStages - 1>();
    T* const tile = ring + stage * kTile;
    feed.align(in, tile, row, t);
    Chunk<Op, Source, kSteps> chunk;
    const auto total =
        chunk.compose(staged<kSteps>(in, tile, row, t, drawn),
                      staged_inside<kSteps>(in, tile, row, t, drawn), extent.steps - t, unit);
    const Index next = t + kStages * kWarps * kSteps;
    feed.copy_early(in, tile, row, next);
    feed.skip(in, kWarps * kSteps);

    typename Op::State state;
    if (t == 0) {
      state = ends.first(line, row + unit);
    } else {
      turns.take_over(warp, round++);
      state = handed[before][lane];
    }
    const Index left = extent.steps - t;
    if (left > kSteps) {
      handed[warp][lane] = Op::apply(total, state);
      turns.hand_over(after);
    }
    if (unit == lane) {
      auto cursor = out.from(row + lane, t);
      const auto last = walk<Op, kSteps>(chunk, 0, left, cursor, state);
      if (left <= kSteps) ends.last(line, row + lane, last);
    }
    feed.copy_late(in, tile, row, next);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

}  // namespace cuda

template <class Op, int kWarps, template <int> class Turns = cuda::BarrierTurns, class Source,
          class Sink, class Ends>
cudaError_t launch_block(const Extent& extent, const Source& source, const Sink& sink,
                         const Ends& ends, const Launch& launch) {
  using namespace cuda;
  static_assert(kWarps > 1 && kWarps <= 16, "one hardware barrier a warp");
  constexpr int kSteps = steps_per_thread<Source>();
  const Index count = columns(extent);
  if (count == 0 || extent.steps == 0) {
    return launch_sequential<Op>(extent, source, sink, ends, launch);
  }
  return cuda::launch(block_kernel<Op, Source, Sink, Ends, kWarps, Turns>, count, kWarps * kLanes,
                      kWarps * block_stages<Source, kSteps>() * tile_elements<Source, kSteps>() *
                          sizeof(typename Source::T),
                      launch, extent, row_blocks(extent), source, sink, ends,
                      copied_bytes(extent, source));
}

}  // namespace scanrnn::scan
