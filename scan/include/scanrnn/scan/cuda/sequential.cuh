// SPDX-License-Identifier: Apache-2.0
// Fused-sequential on CUDA: each warp walks its 32 rows through time, with the next chunks of steps
// on their way to shared memory. Warps share nothing, so there is no barrier.
#pragma once

#include "scanrnn/scan/cuda/chunk.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kSequentialWarps = 4;  // of a block
inline constexpr int kSequentialStages = 4;

// Walks the chunks that say something by apply(), as nothing else carries what rounding takes from
// one to the next.
template <class Op>
struct Carrying {
  using State = typename Op::State;
  struct Uncut : Op::Uncut {
    template <class Step>
    SCANRNN_HD static State advance(const Step& f, const State& s) {
      return Op::Uncut::apply(f, s);
    }
  };
};

template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kSequentialWarps* kLanes)
    sequential_kernel(const Extent all, const Index row_blocks, const Source source,
                      const Sink sink, const Ends ends, const bool vectors) {
  using Line = LineOf<Source>;
  using T = typename Line::T;
  constexpr int kSteps = steps_per_thread<Line>();
  constexpr int kTile = tile_elements<Line, kSteps>();
  constexpr bool kMarked = IsMarked<Line>::value;
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];

  await_stream();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Index column = Index{blockIdx.x} * kSequentialWarps + warp;
  if (column >= all.lines * row_blocks || !runs(source)) return;
  const Index line = column / row_blocks, row = column % row_blocks * kLanes;
  Extent extent = all;
  if constexpr (HasOwnSteps<Source>::value) extent.steps = source.steps_of(line);
  const Line in = source.line(line);
  const auto out = sink.line(line);
  T* const ring = reinterpret_cast<T*>(shared) + warp * kSequentialStages * kTile;
  const int unit = unit_of(extent, row);
  const bool inside = unit == lane;

  Feed<Line, kSteps> feed{extent, vectors};
  feed.aim(in, row, 0);
  for (int stage = 0; stage < kSequentialStages; ++stage) {
    feed.copy(in, ring + stage * kTile, row, stage * kSteps);
    feed.skip(in, kSteps);
  }
  typename Op::State state = ends.first(line, row + unit);
  auto cursor = out.from(row + lane, 0);
  int stage = 0;
  for (Index t = 0; t < extent.steps; t += kSteps) {
    const auto drawn = draw<kSteps>(in, row + unit, t, extent);
    await_copies<kSequentialStages - 1>();
    T* const tile = ring + stage * kTile;
    const Index left = extent.steps - t;
    const Line here = staged<kSteps>(in, tile, row, t, drawn);
    const Line within = staged_inside<kSteps>(in, tile, row, t, drawn);
    const auto fill_again = [&] {
      __syncwarp();  // the tile has been read by every lane
      feed.copy(in, tile, row, t + kSequentialStages * kSteps);
      feed.skip(in, kSteps);
    };
    const auto walk_chunk = [&](const auto& here, const auto& within, auto& cursor, auto op) {
      using Steps = decltype(op);
      Chunk<Steps, std::decay_t<decltype(here)>, kSteps> chunk;
      const auto total = chunk.compose(here, within, left, unit);
      if constexpr (!kMarked) fill_again();
      if (inside) {
        const auto last = walk<Steps, kSteps>(chunk, 0, left, cursor, state);
        if constexpr (std::is_empty<typename Steps::Local>::value) {
          state = last;
        } else {
          state = left >= kSteps ? Steps::apply(total, state) : last;
        }
      }
    };
    if constexpr (kMarked) {
      const unsigned said = marks_of<kSteps>(here).said;
      if (!said) {
        walk_chunk(here.plain, within.plain, cursor.plain, typename Op::Uncut());
      } else if (inside) {
        state =
            walk<Carrying<Op>, kSteps>(TileSteps{here, within, unit}, said, left, cursor, state);
      }
      fill_again();
    } else {
      walk_chunk(here, within, cursor, Op());
    }
    stage = stage + 1 == kSequentialStages ? 0 : stage + 1;
  }
  if (inside) ends.last(line, row + lane, state);
}

}  // namespace cuda

template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_sequential(const Extent& extent, const Source& source, const Sink& sink,
                              const Ends& ends, const Launch& launch) {
  using namespace cuda;
  using Line = LineOf<Source>;
  constexpr int kSteps = steps_per_thread<Line>();
  const Index count = columns(extent);
  if (count == 0) return cudaSuccess;
  return cuda::launch(sequential_kernel<Op, Source, Sink, Ends>,
                      (count + kSequentialWarps - 1) / kSequentialWarps, kSequentialWarps * kLanes,
                      kSequentialWarps * kSequentialStages * tile_elements<Line, kSteps>() *
                          sizeof(typename Line::T),
                      launch.stream, extent, row_blocks(extent), source, sink, ends,
                      vectors_fit(extent, source));
}

}  // namespace scanrnn::scan
