// SPDX-License-Identifier: Apache-2.0
// Parallel scan inside a block: lanes are rows, warps are consecutive chunks of time, and the block
// carries the state from tile to tile. A state is always walked in the order of time.
#pragma once

#include "scanrnn/scan/cuda_sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

// A warp's chunk of a tile: its items in registers, composed when they are there and walked when
// the state before them is known.
template <class Op, class Source, int kSteps>
struct Chunk {
  ItemOf<Source> item[kSteps];
  typename Op::Step step[kSteps];

  __device__ __forceinline__ typename Op::Local compose(const Source& here, int unit) {
    auto local = Op::local_identity();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) item[k] = here.load(unit, k);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      step[k] = here.step(item[k]);
      local = Op::then(local, step[k]);
    }
    return local;
  }

  // Steps from t on; the first `left` of them exist, and the state after the last is for `ends`
  // where nothing follows it.
  template <class Sink, class Ends>
  __device__ __forceinline__ void walk(const Extent& extent, const Sink& out, const Ends& ends,
                                       Index line, Index row, Index t,
                                       typename Op::State state) const {
    const Index left = extent.steps - t;
    const int count = row >= extent.rows ? 0 : left < kSteps ? static_cast<int>(left) : kSteps;
    if (left <= kSteps && count > 0) {  // these are the last
      auto last = state;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        if (k < count) last = Op::advance(step[k], last);
      }
      ends.last(line, row, last);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const auto after = Op::advance(step[k], state);
      if (k < count) out.store(row, t + k, item[k], state, after);
      state = after;
    }
  }
};

// Two stages of a block's tile: one is read while the other is on its way.
inline constexpr int kBlockStages = 2;

template <class Op, class Source, class Sink, class Ends, int kWarps>
__global__ void __launch_bounds__(kWarps* kLanes)
    block_kernel(const Extent extent, const Index row_blocks, const Source source, const Sink sink,
                 const Ends ends, const bool vectors) {
  using T = typename Source::T;
  constexpr int kSteps = steps_per_thread<Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  // Of two tiles in turn, so that one barrier a tile is enough.
  __shared__ typename Op::Local totals[2][kWarps][kLanes];
  __shared__ typename Op::State carry[2][kLanes];

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Index line = blockIdx.x / row_blocks, row = blockIdx.x % row_blocks * kLanes;
  const int unit = unit_of(extent, row);
  const auto in = source.line(line);
  const auto out = sink.line(line);
  T* const ring = reinterpret_cast<T*>(shared) + warp * kBlockStages * kTile;

#pragma unroll
  for (int stage = 0; stage < kBlockStages; ++stage) {
    fetch<kSteps>(in, ring + stage * kTile, row, extent.rows, (stage * kWarps + warp) * kSteps,
                  vectors);
  }
  if (warp == 0) carry[0][lane] = ends.first(line, row + unit);
  int parity = 0;
  for (Index begin = 0; begin < extent.steps; begin += kWarps * kSteps) {
    const Index t = begin + warp * kSteps;
    await_copies<kBlockStages - 1>();
    T* const tile = ring + parity * kTile;
    const auto here = staged<kSteps>(in, tile, row, t);
    Chunk<Op, Source, kSteps> chunk;
    const auto total = chunk.compose(here, unit);
    __syncwarp();  // the tile has been read by every lane: it can be filled again
    fetch<kSteps>(in, tile, row, extent.rows, t + kBlockStages * kWarps * kSteps, vectors);

    totals[parity][warp][lane] = total;
    __syncthreads();
    auto state = carry[parity][lane];
    for (int before = 0; before < warp; ++before) {
      state = Op::apply(totals[parity][before][lane], state);
    }
    if (warp == kWarps - 1) carry[parity ^ 1][lane] = Op::apply(total, state);
    if (t < extent.steps) chunk.walk(extent, out, ends, line, row + lane, t, state);
    parity ^= 1;
  }
}

}  // namespace cuda

template <class Op, int kWarps, class Source, class Sink, class Ends>
cudaError_t launch_block(const Extent& extent, const Source& source, const Sink& sink,
                         const Ends& ends, const Launch& launch) {
  using namespace cuda;
  static_assert(kBlockStages == 2, "a stage and the totals share a parity");
  constexpr int kSteps = steps_per_thread<Source>();
  const Index count = columns(extent);
  if (count == 0 || extent.steps == 0) {
    return launch_sequential<Op>(extent, source, sink, ends, launch);
  }
  return cuda::launch(block_kernel<Op, Source, Sink, Ends, kWarps>, count, kWarps * kLanes,
                      kWarps * kBlockStages * tile_elements<Source, kSteps>() *
                          sizeof(typename Source::T),
                      launch.stream, extent, row_blocks(extent), source, sink, ends,
                      vectors_fit(extent, source));
}

}  // namespace scanrnn::scan
