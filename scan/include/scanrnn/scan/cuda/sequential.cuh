// SPDX-License-Identifier: Apache-2.0
// Fused-sequential on CUDA: each warp walks its 32 rows through time, with the next chunks of steps
// on their way to shared memory. Warps share nothing, so there is no barrier.
//
// Where nothing is cut off, a steady loop asks no bound: its body has no branch, so that the
// copies, the loads and the stores of a chunk are scheduled into the gaps of its chain of steps. A
// line that is cut between its ends needs no more than selections there. A second loop does what is
// left, the line's end, and whatever the first one cannot: any alignment, rows that do not fill a
// warp, streams that are not there, sequences that begin or end.
#pragma once

#include <algorithm>
#include <type_traits>

#include "scanrnn/scan/cuda/chunk.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kSequentialWarps = 4;  // of a block at most
inline constexpr int kSequentialStages = 4;

// Steps of a chunk. What rounding leaves of composed steps depends on how many they are: these are
// as many as in other kernels. Steps that are only applied leave registers for more.
template <class Op, class Line>
constexpr int sequential_steps() {
  if constexpr (std::is_empty<typename Op::Local>::value) {
    constexpr std::size_t bytes = bytes_per_step<Line>();
    return bytes <= 28 ? kLocalSteps : bytes <= 48 ? kLocalSteps / 2 : kLocalSteps / 4;
  } else {
    return steps_per_thread<Line>();
  }
}

// The state after a whole chunk: by what its steps compose to, if they do.
template <class Op>
__device__ __forceinline__ typename Op::State after_whole(const typename Op::Local& total,
                                                          const typename Op::State& before,
                                                          const typename Op::State& last) {
  if constexpr (std::is_empty<typename Op::Local>::value) {
    return last;
  } else {
    return Op::apply(total, before);
  }
}

// Copies whole chunks one after the other, by vectors, and asks no bound.
template <class Source, int kSteps>
struct SteadyFeed {
  using T = typename Source::T;
  using Any = Feed<Source, kSteps>;
  static constexpr bool kMarked = IsMarked<Source>::value;
  static constexpr int kReach = kMarked ? kLanes : kSteps;  // steps of which something is copied
  const T* from[Source::kStreams];                          // this lane's next piece of each
  int place;                                                // in a tile
  const std::uint32_t* mark = nullptr;

  __device__ __forceinline__ SteadyFeed(const Source& line, Index row, Index t)
      : place(threadIdx.x % kLanes * Any::kPiece) {
    const int lane = threadIdx.x % kLanes;
    if constexpr (kMarked) mark = line.marks.data + (t + lane) * line.marks.step;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      from[i] = stream.data + (t + lane / Any::kPieces) * stream.step + row +
                lane % Any::kPieces * Any::kPiece;
    }
  }
  __device__ __forceinline__ static bool serves(const Source& line) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) all = all && line.stream(i).data;
    return all;
  }
  // Steps from the line's first on that every stream has.
  __device__ __forceinline__ static Index steps(const Source& line, Index least) {
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) least = min(least, line.stream(i).steps);
    return least;
  }
  __device__ __forceinline__ void copy(const Source& line, T* tile) {
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const Index pass = Any::kPass * line.stream(i).step;
#pragma unroll
      for (int k = 0; k < kSteps; k += Any::kPass) {
        copy_async<kVectorBytes>(tile + place + (i * kSteps + k) * kLanes, from[i]);
        from[i] += pass;
      }
    }
    if constexpr (kMarked) {
      constexpr int kMarks = Source::kStreams * kSteps * kLanes;
      auto* to = reinterpret_cast<std::uint32_t*>(tile + kMarks) + threadIdx.x % kLanes;
      copy_async<sizeof *to>(to, mark);
      mark += kSteps * line.marks.step;
    }
    commit_copies();
  }
};

// The Op of steps between cuts.
template <class Op, bool kMarked>
struct UncutOf {
  using Type = Op;
};
template <class Op>
struct UncutOf<Op, true> {
  using Type = typename Op::Uncut;
};

// Walks from t on the chunks that are whole, not the last, and followed by so many whole ones that
// each leaves its tile to another, to the first one in which a sequence begins or ends; returns the
// time that it came to. The next kSequentialStages chunks are on their way, and so they are when it
// returns.
template <class Op, int kSteps, class Line, class Cursor>
__device__ __forceinline__ Index walk_steadily(const Line& in, const Extent& extent, Index row,
                                               Index t, typename Line::T* ring, int& stage,
                                               Cursor& cursor, typename Op::State& state) {
  using Whole = SteadyFeed<Line, kSteps>;
  using Plain = typename Unmarked<Line>::Source;
  using Steps = typename UncutOf<Op, Whole::kMarked>::Type;
  constexpr int kTile = tile_elements<Line, kSteps>();
  constexpr Index kAfter = kSequentialStages * kSteps + Whole::kReach;
  if (!Whole::serves(in)) return t;
  const int lane = threadIdx.x % kLanes;
  const Index end = Whole::steps(in, extent.steps - 1) - kAfter;
  Whole feed(in, row, t + kSequentialStages * kSteps);
  for (; t < end; t += kSteps) {
    const auto drawn = draw<kSteps>(in, row + lane, t, extent);
    await_copies<kSequentialStages - 1>();
    auto* const tile = ring + stage * kTile;
    const Line here = staged_inside<kSteps>(in, tile, row, t, drawn);
    unsigned anew = 0;
    Chunk<Steps, Plain, kSteps, Whole::kMarked> chunk;
    if constexpr (Whole::kMarked) {
      const ChunkCuts cuts = cuts_of<kSteps>(here);
      if (cuts.ends) break;
      anew = cuts.anew;
      chunk.load(unmarked(here), lane);
      if constexpr (Line::kForgets) chunk.forget(here, cuts.cut);
    } else {
      chunk.load(here, lane);
    }
    const auto total = chunk.compose_loaded(unmarked(here));
    __syncwarp();  // the tile has been read by every lane
    feed.copy(in, tile);
    stage = stage + 1 == kSequentialStages ? 0 : stage + 1;
    const auto last = walk<Steps, kSteps>(chunk, anew, Index{kSteps}, cursor, state);
    state = anew ? last : after_whole<Steps>(total, state, last);
  }
  return t;
}

// A Sink that has something to write behind a line's last step.
template <class Sink, class = void>
struct Closes : std::false_type {};
template <class Sink>
struct Closes<Sink, std::void_t<decltype(std::declval<Sink&>().close())>> : std::true_type {};

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
  constexpr int kSteps = sequential_steps<Op, Line>();
  constexpr int kTile = tile_elements<Line, kSteps>();
  constexpr bool kMarked = IsMarked<Line>::value;
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];

  await_stream();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Index column = Index{blockIdx.x} * (blockDim.x / kLanes) + warp;
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
  Index t = 0;
  const bool steady = vectors && row + kLanes <= extent.rows;
  const auto walk_whole_chunks = [&] {
    if (!steady) return;
    if constexpr (kMarked) {
      t = walk_steadily<Op, kSteps>(in, extent, row, t, ring, stage, cursor.plain, state);
    } else {
      t = walk_steadily<Op, kSteps>(in, extent, row, t, ring, stage, cursor, state);
    }
    feed.aim(in, row, t + kSequentialStages * kSteps);
  };
  if constexpr (!kMarked) walk_whole_chunks();
  for (; t < extent.steps; t += kSteps) {
    if constexpr (kMarked) walk_whole_chunks();
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
        state = left >= kSteps ? after_whole<Steps>(total, state, last) : last;
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
  if (!inside) return;
  ends.last(line, row + lane, state);
  if constexpr (Closes<decltype(cursor)>::value) cursor.close();
}

// Warps of a block: all that it may have where every multiprocessor gets such a block, one where
// rows are few, so that they are spread. No more than shared memory holds.
inline int sequential_warps(Index count, std::size_t warp_bytes, const Launch& launch) {
  if (count < Index{kSequentialWarps} * launch.units) return 1;
  const auto most =
      static_cast<int>(std::min<std::size_t>(launch.shared / warp_bytes, kSequentialWarps));
  return std::max(most, 1);
}

}  // namespace cuda

template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_sequential(const Extent& extent, const Source& source, const Sink& sink,
                              const Ends& ends, const Launch& launch) {
  using namespace cuda;
  using Line = LineOf<Source>;
  constexpr std::size_t kWarpBytes = kSequentialStages *
                                     tile_elements<Line, sequential_steps<Op, Line>()>() *
                                     sizeof(typename Line::T);
  const Index count = columns(extent);
  if (count == 0) return cudaSuccess;
  const int warps = sequential_warps(count, kWarpBytes, launch);
  return cuda::launch(sequential_kernel<Op, Source, Sink, Ends>, (count + warps - 1) / warps,
                      warps * kLanes, warps * kWarpBytes, launch.stream, extent, row_blocks(extent),
                      source, sink, ends, vectors_fit(extent, source));
}

}  // namespace scanrnn::scan
