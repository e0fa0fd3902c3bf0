// SPDX-License-Identifier: Apache-2.0
// Fused-sequential on CUDA: each warp walks its 32 rows through time, with the next chunks of steps
// on their way to shared memory. Warps share nothing, so there is no barrier.
#pragma once

#include "scanrnn/scan/cuda_common.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kSequentialWarps = 4;  // of a block
inline constexpr int kSequentialStages = 4;

template <class Source>
constexpr int sequential_steps() {
  return Source::kStreams * sizeof(typename Source::T) <= 8 ? 16 : 8;
}

template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kSequentialWarps* kLanes)
    sequential_kernel(const Extent extent, const Index row_blocks, const Source source,
                      const Sink sink, const Ends ends, const bool vectors) {
  using T = typename Source::T;
  constexpr int kSteps = sequential_steps<Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Index column = Index{blockIdx.x} * kSequentialWarps + warp;
  if (column >= extent.lines * row_blocks) return;
  const Index line = column / row_blocks, row = column % row_blocks * kLanes;
  const auto in = source.line(line);
  const auto out = sink.line(line);
  T* const ring = reinterpret_cast<T*>(shared) + warp * kSequentialStages * kTile;
  const bool inside = row + lane < extent.rows;
  const int unit = unit_of(extent, row);

#pragma unroll
  for (int stage = 0; stage < kSequentialStages; ++stage) {
    fetch<kSteps>(in, ring + stage * kTile, row, extent.rows, stage * kSteps, vectors);
  }
  typename Op::State state = ends.first(line, row + unit);
  int stage = 0;
  for (Index t = 0; t < extent.steps; t += kSteps) {
    await_copies<kSequentialStages - 1>();
    T* const tile = ring + stage * kTile;
    const auto here = staged<kSteps>(in, tile, row, t);
    const int left = static_cast<int>(min(extent.steps - t, Index{kSteps}));
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k < left) {
        const auto item = here.load(unit, k);
        const auto after = Op::apply(here.step(item), state);
        if (inside) out.store(row + lane, t + k, item, state, after);
        state = after;
      }
    }
    __syncwarp();  // the tile has been read by every lane: it can be filled again
    fetch<kSteps>(in, tile, row, extent.rows, t + kSequentialStages * kSteps, vectors);
    stage = stage + 1 == kSequentialStages ? 0 : stage + 1;
  }
  if (inside) ends.last(line, row + lane, state);
}

}  // namespace cuda

template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_sequential(const Extent& extent, const Source& source, const Sink& sink,
                              const Ends& ends, const Launch& launch) {
  using namespace cuda;
  constexpr int kSteps = sequential_steps<Source>();
  const Index count = columns(extent);
  if (count == 0) return cudaSuccess;
  return cuda::launch(
      sequential_kernel<Op, Source, Sink, Ends>, (count + kSequentialWarps - 1) / kSequentialWarps,
      kSequentialWarps * kLanes,
      kSequentialWarps * kSequentialStages * tile_elements<Source, kSteps>() *
          sizeof(typename Source::T),
      launch.stream, extent, row_blocks(extent), source, sink, ends, vectors_fit(extent, source));
}

}  // namespace scanrnn::scan
