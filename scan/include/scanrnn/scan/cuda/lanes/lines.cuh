// SPDX-License-Identifier: Apache-2.0
// Lines of one row whose steps are adjacent, and which are too short, or too many, to lie along a
// warp: a lane walks a line of its own. The warp copies a few steps of its lines to shared memory,
// lanes side by side along a line, while it walks those before; results go back the same way.
//
// A Source and a Sink are those of warp.cuh.
#pragma once

#include <algorithm>

#include "scanrnn/scan/cuda/lanes/warp.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kLinesWarps = 2;  // of a block
template <class Source>
inline constexpr int kLinesBlocks = Source::kStreams > 2 ? 12 : 16;  // of a multiprocessor at most
inline constexpr int kLinesAhead = 8;  // steps that are read before the first of them is walked

// A warp's tile of a stream: so many steps of a line, then the next line. A line is an odd number
// of vectors, so that most lanes meet other banks, with room for a 16-bit element before it.
template <class Source>
struct LineTile {
  using T = typename Source::T;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kMost = (Source::kStreams > 3 ? 4 : 8) * kVector;  // steps
  int steps, line;  // elements from one line to the next

  explicit LineTile(Index all) : steps(static_cast<int>(std::min<Index>(all, kMost))) {
    const int room = steps + (sizeof(T) < sizeof(std::uint32_t) ? 1 : 0);
    line = ((room + kVector - 1) / kVector | 1) * kVector;
  }
  __host__ __device__ int stream() const { return kLanes * line; }
  __host__ __device__ int warp() const { return kLaneStages * Source::kStreams * stream(); }
};

// A lane's line of a stream, `count` of its elements as they lie in memory from `low` on, and where
// those are in the tile, in which the walk's steps go up, or all of them down.
template <class T>
struct LinePiece {
  T* low;
  int place, count;

  __device__ __forceinline__ LinePiece(T* data, Index step, Index steps, Index t, int tile)
      : count(static_cast<int>(min(max(steps - t, Index(0)), Index{tile}))) {
    low = data + (step < 0 ? t + count - 1 : t) * step;
    place = step < 0 ? tile - count : 0;
  }
  // Elements before the first word of memory, of a 16-bit type; and how many the line begins later
  // in the tile, so that words are words there, too.
  __device__ __forceinline__ static int head(const T* low) {
    if constexpr (sizeof(T) >= sizeof(std::uint32_t)) return 0;
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(low) / sizeof(T)) & 1;
  }
  template <int kBytes = 4>
  __device__ __forceinline__ int skew(const T* of) const {
    return kBytes > 4 || sizeof(T) >= sizeof(std::uint32_t) ? 0 : (head(of) + place) & 1;
  }
  __device__ __forceinline__ int skew() const { return skew(low); }
  // Whether pieces of so many bytes of all of the warp's lines are pieces of the tile.
  template <int kBytes>
  __device__ __forceinline__ bool fits() const {
    const auto bytes = reinterpret_cast<std::uintptr_t>(low) | place * sizeof(T);
    return __all_sync(~0u, bytes % kBytes == 0);
  }
};

// use(line, element, low of that line) for the pieces of kBytes of the warp's first `lines`; the
// elements of its line that are left over, for each lane: single(element).
template <int kBytes, class T, class Use, class Single>
__device__ __forceinline__ void for_line_pieces(const LinePiece<T>& piece, int lines,
                                                const Use& use, const Single& single) {
  constexpr int kOf = kBytes / static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x) % kLanes, count = piece.count;
  // Wider pieces than a word begin where lines do.
  const auto head_of = [](const T* low) { return kBytes > 4 ? 0 : LinePiece<T>::head(low); };
  const auto pieces_of = [&](int head) { return max(count - head, 0) / kOf; };
  const int level = min(5, 32 - __clz(max(count / kOf, 1) - 1));  // 2^level lanes have a line
  const auto address = reinterpret_cast<unsigned long long>(piece.low);
#pragma unroll 4
  for (int pass = 0; pass < 1 << level; ++pass) {
    const int line = (pass << (5 - level)) + (lane >> level);
    T* const low = reinterpret_cast<T*>(__shfl_sync(~0u, address, line));
    if (line >= lines) continue;
    const int head = head_of(low), pieces = pieces_of(head);
    for (int i = lane & ((1 << level) - 1); i < pieces; i += 1 << level) {
      use(line, head + i * kOf, low);
    }
  }
  if ((kBytes > 4 || sizeof(T) >= 4) && count % kOf == 0) return;
  if (lane >= lines) return;
  const int head = head_of(piece.low);
  if (head > 0 && count > 0) single(0);
  for (int i = head + pieces_of(head) * kOf; i < count; ++i) single(i);
}

// Asks for a piece of each line; `to` is where the first line's would be.
template <int kBytes, class T>
__device__ __forceinline__ void copy_lines_in(T* to, int apart, const LinePiece<const T>& piece,
                                              int lines) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  to += piece.place;
  for_line_pieces<kBytes>(
      piece, lines,
      [&](int line, int i, const T* low) {
        copy_async<kBytes>(to + line * apart + piece.template skew<kBytes>(low) + i, low + i);
      },
      [&](int i) { copy_element(to + lane * apart + piece.skew() + i, piece.low + i); });
}
// Sends those at `from`, of which this lane's line begins `skew` elements on.
template <int kBytes, class T>
__device__ __forceinline__ void copy_lines_out(const T* from, int apart, const LinePiece<T>& piece,
                                               int lines) {
  using Word = std::conditional_t<kBytes == 16, uint4,
                                  std::conditional_t<kBytes == 8, uint2, std::uint32_t>>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  from += piece.place;
  for_line_pieces<kBytes>(
      piece, lines,
      [&](int line, int i, T* low) {
        *reinterpret_cast<Word*>(low + i) = *reinterpret_cast<const Word*>(
            from + line * apart + piece.template skew<kBytes>(low) + i);
      },
      [&](int i) { piece.low[i] = from[lane * apart + piece.skew() + i]; });
}
// run(bytes) with the widest pieces that fit.
template <class T, class Run>
__device__ __forceinline__ void with_widest(const LinePiece<T>& piece, const Run& run) {
  if (sizeof(T) > 8 || piece.template fits<16>()) {
    run(std::integral_constant<int, 16>());
  } else if constexpr (sizeof(T) <= 8) {
    if (sizeof(T) > 4 || piece.template fits<8>()) {
      run(std::integral_constant<int, 8>());
    } else if constexpr (sizeof(T) <= 4) {
      run(std::integral_constant<int, 4>());
    }
  }
}

// What a warp does with its tiles.
template <class Op, class Source, class Sink, class Ends>
struct LineWarp {
  using T = typename Source::T;

  const Extent& extent;
  const LineTile<Source>& tile;
  const Source& source;
  const Sink& sink;
  const Ends& ends;
  T* const tiles;  // [kLaneStages][kStreams]
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  typename Op::State state{};

  __device__ __forceinline__ T* tile_of(int stage, int stream) const {
    return tiles + (stage * Source::kStreams + stream) * tile.stream();
  }
  // Lines from `first` on: how many of the warp's there are, and this lane's, which is the last one
  // where it has none. And steps of a tile from step t on.
  __device__ __forceinline__ int lines_of(Index first) const {
    return static_cast<int>(min(extent.lines - first, Index{kLanes}));
  }
  __device__ __forceinline__ Index line_of(Index first) const {
    return first + min(lane, lines_of(first) - 1);
  }
  __device__ __forceinline__ int steps_of(Index t) const {
    return static_cast<int>(min(extent.steps - t, Index{tile.steps}));
  }

  // Asks for a tile, where there is one, as one group of copies.
  __device__ __forceinline__ void ask(int stage, Index first, Index t) const {
    if (first < extent.lines) {
      const auto line = source.line(line_of(first));
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) {
        const auto stream = line.stream(i);
        if (!stream.data) continue;
        const LinePiece<const T> piece(stream.data, stream.step, stream.steps, t, steps_of(t));
        with_widest(piece, [&](auto bytes) {
          copy_lines_in<bytes>(tile_of(stage, i), tile.line, piece, lines_of(first));
        });
      }
    }
    commit_copies();
  }

  // This lane's line of the tile that starts at step t.
  struct Here {
    Source line;
    Sink out;
    Index index, t;
    int stage, steps, lines;
    int skew[Source::kStreams];
  };
  __device__ __forceinline__ Here at(int stage, Index first, Index t) const {
    const Index index = line_of(first);
    Here here{source.line(index), sink.line(index), index, t, stage, steps_of(t), lines_of(first)};
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = here.line.stream(i);
      here.skew[i] =
          LinePiece<const T>(stream.data, stream.step, stream.steps, t, here.steps).skew();
    }
    return here;
  }
  // Walks the line, results in place of inputs.
  __device__ __forceinline__ void walk(const Here& here) {
    if (lane >= here.lines) return;  // nothing is in its tile
    const int steps = here.steps, step = here.line.stream(0).step < 0 ? -1 : 1;
    LaneTiles<T, Source::kStreams> at;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      at.first[i] =
          tile_of(here.stage, i) + lane * tile.line + here.skew[i] + (step < 0 ? steps - 1 : 0);
    }
    const Source from = here.line.staged(at, step, 0, here.t);
    const Sink to = here.out.staged(at, step, 0, here.t);
    if (here.t == 0) state = ends.first(here.index, 0);
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
    if (here.t + steps == extent.steps) ends.last(here.index, 0, state);
  }
  // Sends the tile's results to memory.
  __device__ __forceinline__ void send(const Here& here) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      const auto stream = here.out.stream(i);
      if (!stream.data) continue;
      const LinePiece<T> piece(stream.data, stream.step, stream.steps, here.t, here.steps);
      const T* const from = tile_of(here.stage, i);
      // Words of memory are words of the tile, or else each lane sends its line by itself.
      if (__all_sync(~0u, here.skew[i] == piece.skew())) {
        with_widest(piece,
                    [&](auto bytes) { copy_lines_out<bytes>(from, tile.line, piece, here.lines); });
      } else if (lane < here.lines) {
        const T* const own = from + lane * tile.line + piece.place + here.skew[i];
        for (int j = 0; j < piece.count; ++j) piece.low[j] = own[j];
      }
    }
    __syncwarp();  // the tile has been read by every lane: it can be filled again
  }
};

template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kLinesWarps* kLanes, kLinesBlocks<Source>)
    lane_lines_kernel(const Extent extent, const LineTile<Source> tile, const Source source,
                      const Sink sink, const Ends ends) {
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  const int number = static_cast<int>(threadIdx.x) / kLanes;
  LineWarp<Op, Source, Sink, Ends> warp{
      extent, tile, source,
      sink,   ends, reinterpret_cast<typename Source::T*>(shared) + number * tile.warp()};
  await_stream();
  const Index apart = Index{gridDim.x} * kLinesWarps * kLanes;
  Index first = (Index{blockIdx.x} * kLinesWarps + number) * kLanes, t = 0;
  warp.ask(0, first, t);
  for (int stage = 0; first < extent.lines; stage = 1 - stage) {
    const bool ends_here = t + tile.steps >= extent.steps;
    const Index next_first = ends_here ? first + apart : first;
    const Index next = ends_here ? 0 : t + tile.steps;
    warp.ask(1 - stage, next_first, next);
    await_copies<1>();
    const auto here = warp.at(stage, first, t);
    warp.walk(here);
    warp.send(here);
    first = next_first;
    t = next;
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
  const LineTile<Source> tile(extent.steps);
  const auto bytes = sizeof(typename Source::T) * static_cast<std::size_t>(kLinesWarps) *
                     static_cast<std::size_t>(tile.warp());
  constexpr Index kBlockLines = Index{kLinesWarps} * kLanes;
  const auto resident = std::clamp<std::size_t>(on.shared / bytes, 1, kLinesBlocks<Source>);
  const Index blocks = std::min((extent.lines + kBlockLines - 1) / kBlockLines,
                                static_cast<Index>(resident) * on.units);
  return cuda::launch(lane_lines_kernel<Op, Source, Sink, Ends>, blocks, kLinesWarps * kLanes,
                      bytes, on.stream, extent, tile, source, sink, ends);
}

}  // namespace scanrnn::scan
