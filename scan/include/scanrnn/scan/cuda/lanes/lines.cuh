// SPDX-License-Identifier: Apache-2.0
// Lines of one row whose steps are adjacent, and which are too short, or too many, to lie along a
// warp: a lane walks a line of its own. The warp copies a few steps of its lines to shared memory,
// lanes side by side along a line (line_tile.cuh), while it walks those before; results go back the
// same way.
//
// A Source and a Sink are those of warp.cuh.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "scanrnn/scan/cuda/lanes/line_tile.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kLinesWarps = 2;  // of a block
// Most blocks of a multiprocessor: so few that a Source has registers enough. One that is spilled
// is read back behind the copies that are on their way, and waits for them.
template <class Source>
inline constexpr int kLinesBlocks = Source::kStreams > 3   ? 6
                                    : Source::kStreams > 2 ? 7
                                                           : 10;
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

  // This lane's lines in a turn of the warp, the last ones where it has none: the steps of tile
  // `number`, of `count` that the warp's lines have.
  struct Turn {
    Index first;  // of the warp's lines, a lane's counted as one
    Index number, count;
    Index index;  // of the line that the walk begins with
    Index more;   // steps of the lines behind that
    Source line;
    Index t;
    int late;  // how many steps fewer the first tile has, so that the others begin with a sector
    int steps;

    template <class Stream>
    __device__ __forceinline__ auto piece_of(const Stream& stream) const {
      return LinePiece<std::remove_pointer_t<decltype(stream.data)>>(stream.data, stream.step,
                                                                     stream.steps + more, t, steps);
    }
    __device__ __forceinline__ auto piece(int i) const { return piece_of(line.stream(i)); }
  };
  __device__ __forceinline__ Turn begin(Index first) const {
    const Index last = quotient(extent.lines - 1, tile.lines);
    const Index low = min(first + lane, last) * tile.lines;
    const int others = static_cast<int>(min(extent.lines - low, Index{tile.lines})) - 1;
    const Index index = source.stream(0).step < 0 ? low + others : low;
    Turn out{first, 0, 1, index, others * extent.steps, source.line(index), 0, 0, 0};
    if (tile.lines * extent.steps > tile.steps) {
      const auto stream = out.line.stream(0);
      const int in = static_cast<int>(reinterpret_cast<std::uintptr_t>(stream.data) / sizeof(T));
      out.late = (stream.step < 0 ? ~in : in) & (LineTile<Source>::kSector - 1);
      const int latest = __reduce_max_sync(~0u, out.late);
      out.count = (tile.lines * extent.steps + latest + tile.steps - 1) / tile.steps;
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
    const Index end = min((turn.number + 1) * tile.steps - turn.late, extent.steps + turn.more);
    const bool exists = (turn.first + lane) * tile.lines < extent.lines;
    turn.steps = exists ? static_cast<int>(max(end - turn.t, Index(0))) : 0;
  }

  __device__ __forceinline__ bool there_is(const Turn& turn) const {
    return turn.first * tile.lines < extent.lines;
  }
  // Asks for a turn's tile, where there is one, as one group of copies.
  __device__ __forceinline__ void ask(int stage, const Turn& turn) const {
    if (there_is(turn)) {
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
  // Walks the tile, of which a step is kStep from the one before it, line by line, results in place
  // of inputs. `out` is the line that the turn's lines begin with.
  template <int kStep>
  __device__ __forceinline__ void walk(int stage, const Turn& turn, const Sink& out) {
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
    Index index = turn.index, t = turn.t;
    Source line = turn.line;
    Sink to = out;
    const auto go_on = [&](Index lines) {
      index += kStep * lines;
      line = source.line(index);
      to = sink.line(index);
    };
    if (t >= extent.steps) {
      const Index before = quotient(t, extent.steps);
      t -= before * extent.steps;
      go_on(before);
    }
    for (int left = turn.steps; left > 0;) {
      const int steps = static_cast<int>(min(extent.steps - t, Index{left}));
      if (t == 0) state = ends.first(index, 0);
      const bool has_last = t + steps == extent.steps;
      walk_line<kStep>(line, to, at, to_at, t, steps, has_last);
      if (has_last) ends.last(index, 0, state);
      left -= steps;
      if (left == 0) return;
      t = 0;
      go_on(1);
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) at.first[i] += kStep * steps;
#pragma unroll
      for (int i = 0; i < Sink::kStreams; ++i) to_at.first[i] += kStep * steps;
    }
  }
  // So many steps of a line from t on.
  template <int kStep, class At, class ToAt>
  __device__ __forceinline__ void walk_line(const Source& line, const Sink& out, const At& at,
                                            const ToAt& to_at, Index t, int steps, bool has_last) {
    const Sink to = out.staged(to_at, kStep, 0, t);
    if constexpr (Source::kLastDiffers) {
      walk_steps(from_inside(line, 0, t).staged(at, kStep, 0, kInside), to, steps - has_last);
      if (!has_last) return;
      const Source last = line.staged(at, kStep, 0, t);
      advance(last, to, steps - 1, last.load(0, steps - 1));
    } else {
      walk_steps(line.staged(at, kStep, 0, t), to, steps);
    }
  }
  __device__ __forceinline__ void advance(const Source& from, const Sink& to, int k,
                                          const ItemOf<Source>& item) {
    const auto after = Op::advance(from.step(item), state);
    to.store(0, k, item, state, after);
    state = after;
  }
  __device__ __forceinline__ void walk_steps(const Source& from, const Sink& to, int steps) {
    int k = 0;
    for (; k + kLinesAhead <= steps; k += kLinesAhead) {
      // All are read before the first result takes its input's place.
      ItemOf<Source> item[kLinesAhead];
#pragma unroll
      for (int i = 0; i < kLinesAhead; ++i) item[i] = from.load(0, k + i);
#pragma unroll
      for (int i = 0; i < kLinesAhead; ++i) advance(from, to, k + i, item[i]);
    }
#pragma unroll 1
    for (; k < steps; ++k) advance(from, to, k, from.load(0, k));
  }
  // Sends the tile's results to memory.
  __device__ __forceinline__ void send(int stage, const Turn& turn, const Sink& out) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      const auto stream = out.stream(i);
      if (!stream.data) continue;
      const int in = stream_for(i);
      copy_lines_out(whole, tile_of(stage, in), tile.line, turn.piece_of(stream),
                     turn.piece(in).at);
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
  for (int stage = 0; warp.there_is(turn); stage = 1 - stage) {
    const auto next = warp.after(turn, apart);
    warp.ask(1 - stage, next);
    await_copies<1>();
    const Sink out = sink.line(turn.index);
    if (source.stream(0).step < 0) {
      warp.template walk<-1>(stage, turn, out);
    } else {
      warp.template walk<1>(stage, turn, out);
    }
    warp.send(stage, turn, out);
    turn = next;
  }
}

// f(the same stream of the first line, of the second and of the last) for all tensors that there
// are; whether all have said yes.
template <class Source, class Sink, class F>
bool all_streams(const Extent& extent, const Source& source, const Sink& sink, const F& f) {
  bool all = extent.rows == 1;
  const auto each = [&](const auto& streams, int count) {
    const auto first = streams.line(0), second = streams.line(1),
               last = streams.line(extent.lines - 1);
    for (int i = 0; i < count; ++i) {
      const auto own = first.stream(i);
      all = all && (!own.data || f(own, second.stream(i), last.stream(i)));
    }
  };
  each(source, Source::kStreams);
  each(sink, Sink::kStreams);
  return all;
}
// Whether all are lines of one row whose steps are so far apart.
template <class Source, class Sink>
bool all_step(const Extent& extent, const Source& source, const Sink& sink, Index step) {
  return all_streams(extent, source, sink, [step](const auto& own, const auto&, const auto&) {
    return own.step == step;
  });
}
// Whether each line lies right behind the one before it. Lines are evenly apart, or those of each
// entry of a batch are, and the entries.
template <class Source, class Sink>
bool lines_follow(const Extent& extent, const Source& source, const Sink& sink) {
  return all_streams(
      extent, source, sink, [&](const auto& own, const auto& next, const auto& last) {
        return next.data - own.data == extent.steps && (own.step == 1 || own.step == -1) &&
               last.data - own.data == (extent.lines - 1) * extent.steps;
      });
}

template <class Source>
std::size_t block_bytes(const LineShape<Source>& shape) {
  return sizeof(typename Source::T) * static_cast<std::size_t>(kLinesWarps) *
         static_cast<std::size_t>(shape.warp());
}
// That a multiprocessor has room for.
template <class Source>
int resident_blocks(const LineShape<Source>& shape, const Launch& on) {
  const std::size_t bytes = block_bytes(shape);
  return static_cast<int>(std::clamp<std::size_t>(
      (on.shared + kReservedShared) / (bytes + kReservedShared), 1, kLinesBlocks<Source>));
}

template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_shape(const LineShape<Source>& shape, const Extent& extent, const Source& source,
                         const Sink& sink, const Ends& ends, const Launch& on) {
  const Index own = Index{kLinesWarps} * kLanes * shape.lines;
  const Index blocks = (extent.lines + own - 1) / own;
  // No more than are resident, or some would start when others have ended, and be alone; and all
  // take as many turns.
  const Index most = static_cast<Index>(resident_blocks(shape, on)) * on.units;
  const Index rounds = (blocks + most - 1) / most;
  return cuda::launch(lane_lines_kernel<Op, Source, Sink, Ends>, (blocks + rounds - 1) / rounds,
                      kLinesWarps * kLanes, block_bytes(shape), on, extent,
                      LineTile<Source>(shape, extent, source), source, sink, ends);
}

// What a step of all lanes costs by a shape: a turn has a part that does not depend on its steps,
// and fewer warps than there is room for take as long.
template <class Source>
double cost_of(const LineShape<Source>& shape, const Extent& extent, const Launch& on) {
  const double steps = static_cast<double>(shape.lines) * static_cast<double>(extent.steps);
  const double turns = std::ceil(steps / shape.steps);
  const double room = static_cast<double>(resident_blocks(shape, on)) * on.units * kLinesWarps;
  const double warps = static_cast<double>(extent.lines) / (shape.lines * kLanes);
  return turns * (shape.steps + LineShape<Source>::kSector) / steps * std::max(1.0, room / warps);
}
// Where lines follow one another, a lane may have as many as fill whole tiles, all of which then
// begin with a cache line: that saves a tenth.
template <class Source>
LineShape<Source> shape_of(const Extent& extent, bool follow, const Launch& on) {
  constexpr Index kTile = LineShape<Source>::kUsual;
  const LineShape<Source> one(extent.steps, 1);
  if (!follow) return one;
  const LineShape<Source> many(extent.steps,
                               static_cast<int>(kTile / std::gcd(kTile, extent.steps)));
  return 0.9 * cost_of(many, extent, on) < cost_of(one, extent, on) ? many : one;
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
  const auto shape = shape_of<Source>(extent, lines_follow(extent, source, sink), on);
  return launch_shape<Op>(shape, extent, source, sink, ends, on);
}

}  // namespace scanrnn::scan
