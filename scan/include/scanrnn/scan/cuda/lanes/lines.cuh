// SPDX-License-Identifier: Apache-2.0
// Lines of one row whose steps are adjacent, and which are too short, or too many, to lie along a
// warp: a lane walks a line of its own. The warp copies a few steps of its lines to shared memory,
// lanes side by side along a line (line_tile.cuh), while it walks those before; results go back the
// same way.
//
// A Source and a Sink are those of warp.cuh.
#pragma once

#include <algorithm>

#include "scanrnn/scan/cuda/lanes/line_tile.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kLinesWarps = 2;  // of a block
// Most blocks of a multiprocessor: so few that a Source has registers enough.
template <class Source>
inline constexpr int kLinesBlocks = Source::kStreams > 3   ? 6
                                    : Source::kStreams > 2 ? 10
                                                           : 16;
inline constexpr int kLinesAhead = 8;  // steps that are read before the first of them is walked

// What a warp does with its tiles.
template <class Op, class Source, class Sink, class Ends>
struct LineWarp {
  using T = typename Source::T;
  // Results lie in place of every other input, where there is one, since inputs begin as they do:
  // backward the second one is a step behind.
  static_assert(2 * Sink::kStreams <= Source::kStreams + 1);

  const Extent& extent;
  const LineTile<Source>& tile;
  const Source& source;
  const Sink& sink;
  const Ends& ends;
  T* const tiles;                                                      // [kLaneStages][kStreams]
  const Dealing whole{tile.whole_vectors()}, touched{tile.vectors()};  // of a line's vectors
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  typename Op::State state{};

  __device__ __forceinline__ T* tile_of(int stage, int stream) const {
    return tiles + (stage * Source::kStreams + stream) * tile.stream();
  }
  // The input whose place a result takes.
  __device__ __forceinline__ int stream_for(int result) const {
    return source.stream(2 * result).data ? 2 * result : result;
  }

  // This lane's line in a turn of the warp, the last one where it has none: the steps of tile
  // `number`, of `count` that the warp's lines have.
  struct Turn {
    Index first;  // of the warp's lines
    Index number, count;
    Index index;
    Source line;
    Index t;
    int late;  // how many steps fewer the first tile has, so that the others begin with a sector
    int steps;

    __device__ __forceinline__ auto piece(int i) const {
      const auto stream = line.stream(i);
      return LinePiece<const T>(stream.data, stream.step, stream.steps, t, steps);
    }
  };
  __device__ __forceinline__ Turn begin(Index first) const {
    const Index index = min(first + lane, extent.lines - 1);
    Turn out{first, 0, 1, index, source.line(index), 0, 0, 0};
    if (extent.steps > tile.steps) {
      const auto stream = out.line.stream(0);
      const int in = static_cast<int>(reinterpret_cast<std::uintptr_t>(stream.data) / sizeof(T));
      out.late = (stream.step < 0 ? ~in : in) & (LineTile<Source>::kSector - 1);
      const int latest = __reduce_max_sync(~0u, out.late);
      out.count = (extent.steps + latest + tile.steps - 1) / tile.steps;
    }
    set_steps(out);
    return out;
  }
  __device__ __forceinline__ Turn after(const Turn& turn, Index apart) const {
    if (turn.number + 1 == turn.count) return begin(turn.first + apart);
    Turn out = turn;
    ++out.number;
    out.t = out.number * tile.steps - out.late;
    set_steps(out);
    return out;
  }
  __device__ __forceinline__ void set_steps(Turn& turn) const {
    const Index end = min((turn.number + 1) * tile.steps - turn.late, extent.steps);
    const bool exists = turn.first + lane < extent.lines;
    turn.steps = exists ? static_cast<int>(max(end - turn.t, Index(0))) : 0;
  }

  // Asks for a turn's tile, where there is one, as one group of copies.
  __device__ __forceinline__ void ask(int stage, const Turn& turn) const {
    if (turn.first < extent.lines) {
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) {
        if (!turn.line.stream(i).data) continue;
        const auto piece = turn.piece(i);
        const bool few = __all_sync(~0u, piece.vectors() <= whole.most);
        copy_lines_in(Dealing(few, whole, touched), tile_of(stage, i), tile.line, piece,
                      tile.low[i], tile.high[i]);
      }
    }
    commit_copies();
  }
  // Walks the line, of which a step is kStep from the one before it, results in place of inputs.
  template <int kStep>
  __device__ __forceinline__ void walk(int stage, const Turn& turn, const Sink& out) {
    const int steps = turn.steps;
    if (steps == 0) return;
    LaneTiles<T, Source::kStreams> at;
    LaneTiles<T, std::max(Sink::kStreams, 1)> to_at;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      at.first[i] = tile_of(stage, i) + lane * tile.line + turn.piece(i).origin(kStep);
    }
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      to_at.first[i] = stream_for(i) == i ? at.first[i] : at.first[2 * i];
    }
    const Source from = turn.line.staged(at, kStep, 0, turn.t);
    const Sink to = out.staged(to_at, kStep, 0, turn.t);
    if (turn.t == 0) state = ends.first(turn.index, 0);
    const auto advance = [&](int k, const ItemOf<Source>& item) {
      const auto after = Op::advance(from.step(item), state);
      to.store(0, k, item, state, after);
      state = after;
    };
    int k = 0;
    for (; k + kLinesAhead <= steps; k += kLinesAhead) {
      // All are read before the first result takes its input's place.
      ItemOf<Source> item[kLinesAhead];
#pragma unroll
      for (int i = 0; i < kLinesAhead; ++i) item[i] = from.load(0, k + i);
#pragma unroll
      for (int i = 0; i < kLinesAhead; ++i) advance(k + i, item[i]);
    }
#pragma unroll 1
    for (; k < steps; ++k) advance(k, from.load(0, k));
    if (turn.t + steps == extent.steps) ends.last(turn.index, 0, state);
  }
  // Sends the tile's results to memory.
  __device__ __forceinline__ void send(int stage, const Turn& turn, const Sink& out) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      const auto stream = out.stream(i);
      if (!stream.data) continue;
      const LinePiece<T> piece(stream.data, stream.step, stream.steps, turn.t, turn.steps);
      const int in = stream_for(i);
      copy_lines_out(whole, tile_of(stage, in), tile.line, piece, turn.piece(in).at);
    }
    __syncwarp();  // the tile has been read by every lane: it can be filled again
  }
};

template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kLinesWarps* kLanes, kLinesBlocks<Source>)
    lane_lines_kernel(const Extent extent, const __grid_constant__ LineTile<Source> tile,
                      const Source source, const Sink sink, const Ends ends) {
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  const int number = static_cast<int>(threadIdx.x) / kLanes;
  LineWarp<Op, Source, Sink, Ends> warp{
      extent, tile, source,
      sink,   ends, reinterpret_cast<typename Source::T*>(shared) + number * tile.warp()};
  await_stream();
  const Index apart = Index{gridDim.x} * kLinesWarps * kLanes;
  auto turn = warp.begin((Index{blockIdx.x} * kLinesWarps + number) * kLanes);
  warp.ask(0, turn);
  for (int stage = 0; turn.first < extent.lines; stage = 1 - stage) {
    const auto next = warp.after(turn, apart);
    warp.ask(1 - stage, next);
    await_copies<1>();
    const auto out = sink.line(turn.index);
    if (turn.line.stream(0).step < 0) {
      warp.template walk<-1>(stage, turn, out);
    } else {
      warp.template walk<1>(stage, turn, out);
    }
    warp.send(stage, turn, out);
    turn = next;
  }
}

// Whether all tensors are lines of one row whose steps are so far apart.
template <class Source, class Sink>
bool all_step(const Extent& extent, const Source& source, const Sink& sink, Index step) {
  bool all = extent.rows == 1;
  for (int i = 0; i < Source::kStreams; ++i) {
    const auto stream = source.line(0).stream(i);
    all = all && (!stream.data || stream.step == step);
  }
  for (int i = 0; i < Sink::kStreams; ++i) {
    const auto stream = sink.line(0).stream(i);
    all = all && (!stream.data || stream.step == step);
  }
  return all;
}

}  // namespace cuda

// Whether lanes can each walk a line: of one row, with adjacent steps, all in one direction.
template <class Source, class Sink>
bool lines_fit(const Extent& extent, const Source& source, const Sink& sink) {
  if (extent.steps <= 1) return extent.rows == 1;
  return cuda::all_step(extent, source, sink, 1) || cuda::all_step(extent, source, sink, -1);
}

// For what lines_fit(), of a step at least.
template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_lines(const Extent& extent, const Source& source, const Sink& sink,
                         const Ends& ends, const Launch& on) {
  using namespace cuda;
  if (!lines_fit(extent, source, sink)) return cudaErrorInvalidConfiguration;
  if (extent.lines == 0) return cudaSuccess;
  const LineTile<Source> tile(extent, source);
  const auto bytes = sizeof(typename Source::T) * static_cast<std::size_t>(kLinesWarps) *
                     static_cast<std::size_t>(tile.warp());
  constexpr Index kBlockLines = Index{kLinesWarps} * kLanes;
  // No more blocks than are resident: one that starts when others have ended is alone.
  const auto resident = std::clamp<std::size_t>(
      (on.shared + kReservedShared) / (bytes + kReservedShared), 1, kLinesBlocks<Source>);
  const Index blocks = std::min((extent.lines + kBlockLines - 1) / kBlockLines,
                                static_cast<Index>(resident) * on.units);
  return cuda::launch(lane_lines_kernel<Op, Source, Sink, Ends>, blocks, kLinesWarps * kLanes,
                      bytes, on.stream, extent, tile, source, sink, ends);
}

}  // namespace scanrnn::scan
