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
// Where steps are only applied, lines of equal length, and warps so few that what they have on its
// way would bound them.
inline constexpr int kDeepStages = 8;
// Backward, where a line's last step differs, such lines take longer by it.
template <class Op, class Source>
inline constexpr bool kMayBeDeep = std::is_empty<typename Op::Local>::value &&
                                   !HasOwnSteps<Source>::value && !LineOf<Source>::kLastDiffers;

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

// Copies one chunk after the other, by vectors, without a branch: of rows that fill the warp, and
// of streams that are there. kBounded: to the line's end; if not, of whole chunks alone.
template <class Source, int kSteps, bool kBounded>
struct SteadyFeed {
  using T = typename Source::T;
  using Any = Feed<Source, kSteps>;
  static_assert(kBounded || !IsMarked<Source>::value);
  const T* from[Source::kStreams];  // this lane's next piece of each, or UnalignedCopy's
  int place;                        // in a tile
  Index t;                          // of the next chunk
  const Index end;                  // of the line

  __device__ __forceinline__ SteadyFeed(const Source& line, Index row, Index t, Index end)
      : place(threadIdx.x % kLanes * Any::kPiece), t(t), end(end) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      if constexpr (kUnaligned<Source>) {
        from[i] = UnalignedCopy<T>::first(stream, row, t);
      } else {
        from[i] = stream.data + (t + lane / Any::kPieces) * stream.step + row +
                  lane % Any::kPieces * Any::kPiece;
      }
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
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      if constexpr (kUnaligned<Source>) {
        const int left = kBounded ? Any::steps_left(stream, t) : kSteps;
        UnalignedCopy<T>::template copy<kSteps>(from[i], stream.step, left, kLanes,
                                                tile + i * Any::kStream);
        from[i] += kSteps * stream.step;
        continue;
      }
      const Index pass = Any::kPass * stream.step;
      const int left = Any::steps_left(stream, t) - lane / Any::kPieces;
#pragma unroll
      for (int k = 0; k < kSteps; k += Any::kPass) {
        if (!kBounded || k < left) {
          copy_async<kVectorBytes>(tile + place + (i * kSteps + k) * kLanes, from[i]);
        }
        from[i] += pass;
      }
    }
    if constexpr (IsMarked<Source>::value) Any::copy_marks(line, tile, t, end);
    t += kSteps;
    commit_copies();
  }
};

// A warp's tiles.
template <class Line, int kSteps, int kStages>
struct Ring {
  typename Line::T* tiles;

  __device__ __forceinline__ typename Line::T* tile(int stage) const {
    return tiles + stage * tile_elements<Line, kSteps>();
  }
  __device__ __forceinline__ int after(int stage) const {
    return stage + 1 == kStages ? 0 : stage + 1;
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

// Walks whole chunks from t on, to the first one in which a sequence begins or ends, or to that of
// a last step which differs; returns the time that it came to. The next kStages chunks are on their
// way, and so they are when it returns. In a deep ring copies ask for bounds: there are few warps,
// which have the time. So they do with marks, since what the steady walk leaves is slow there. In
// others chunks end where copies would have to.
template <class Op, int kSteps, int kStages, class Line, class Cursor>
__device__ __forceinline__ Index walk_steadily(const Line& in, const Extent& extent, Index row,
                                               Index t, const Ring<Line, kSteps, kStages>& ring,
                                               int& stage, Cursor& cursor,
                                               typename Op::State& state) {
  constexpr bool kMarked = IsMarked<Line>::value;
  constexpr bool kBounded = kMarked || kStages == kDeepStages;
  using Whole = SteadyFeed<Line, kSteps, kBounded>;
  using Plain = typename Unmarked<Line>::Source;
  using Steps = typename UncutOf<Op, kMarked>::Type;
  if (!Whole::serves(in)) return t;
  const int lane = threadIdx.x % kLanes;
  constexpr Index kAfter = kBounded ? kSteps : (kStages + 1) * kSteps;
  const Index end = Whole::steps(in, extent.steps - Plain::kLastDiffers) - kAfter;
  Whole feed(in, row, t + kStages * kSteps, extent.steps);
  for (; t <= end; t += kSteps) {
    const auto drawn = draw<kSteps>(in, row + lane, t, extent);
    await_copies<kStages - 1>();
    auto* const tile = ring.tile(stage);
    const Line here = staged_inside<kSteps>(in, tile, row, t, drawn);
    unsigned anew = 0;
    Chunk<Steps, Plain, kSteps, kMarked> chunk;
    if constexpr (kMarked) {
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
    stage = ring.after(stage);
    const auto last = walk<Steps, kSteps>(chunk, anew, Index{kSteps}, cursor, state);
    state = anew ? last : after_whole<Steps>(total, state, last);
  }
  return t;
}

// Where a chunk is stored that says no more than where it is cut.
template <class Line, class Cursor>
__device__ __forceinline__ auto& plain_of(Cursor& cursor) {
  if constexpr (IsMarked<Line>::value) {
    return cursor.plain;
  } else {
    return cursor;
  }
}

// A Sink that has something to write behind a line's last step.
template <class Sink, class = void>
struct Closes : std::false_type {};
template <class Sink>
struct Closes<Sink, std::void_t<decltype(std::declval<Sink&>().close())>> : std::true_type {};

// Walks the chunks that say something by apply_step(), as nothing else carries what rounding takes
// from one to the next.
template <class Op>
struct Carrying {
  using State = typename Op::State;
  struct Uncut : Op::Uncut {
    template <class Step>
    SCANRNN_HD static State advance(const Step& f, const State& s) {
      return Op::Uncut::apply_step(f, s);
    }
  };
};

// Blocks that a multiprocessor must have registers for, or 0 for as it comes. A cell's walk over
// two streams of 16 bits would come with 80, for a sixth block, and too few loads on their way: it
// takes 1.1 to 1.3 times as long.
template <class Op, class Source>
constexpr int least_sequential_blocks() {
  if constexpr (HasOwnSteps<Source>::value || IsMarked<Source>::value) {
    return 0;
  } else {
    constexpr bool kOfCell = std::is_same<Op, AffineOp<typename Source::V>>::value;
    constexpr bool kTwoHalves = Source::kStreams == 2 && sizeof(typename Source::T) == 2;
    return kOfCell && kTwoHalves && !Source::kLastDiffers ? 5 : 0;
  }
}

template <class Op, int kStages, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kSequentialWarps* kLanes, least_sequential_blocks<Op, Source>())
    sequential_kernel(const Extent all, const Index row_blocks, const Source source,
                      const Sink sink, const Ends ends, const int copied) {
  using Line = LineOf<Source>;
  constexpr int kSteps = sequential_steps<Op, Line>();
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
  const Ring<Line, kSteps, kStages> ring{reinterpret_cast<typename Line::T*>(shared) +
                                         warp * kStages * tile_elements<Line, kSteps>()};
  const int unit = unit_of(extent, row);
  const bool inside = unit == lane;

  Feed<Line, kSteps> feed{extent, copied};
  feed.aim(in, row, 0);
  for (int stage = 0; stage < kStages; ++stage) {
    feed.copy(in, ring.tile(stage), row, stage * kSteps);
    feed.skip(in, kSteps);
  }
  typename Op::State state = ends.first(line, row + unit);
  auto cursor = sink.line(line).from(row + lane, 0);
  int stage = 0;
  Index t = 0;
  const auto walk_whole_chunks = [&] {
    if (copied != kVectorBytes || row + kLanes > extent.rows) return;
    t = walk_steadily<Op, kSteps>(in, extent, row, t, ring, stage, plain_of<Line>(cursor), state);
    feed.aim(in, row, t + kStages * kSteps);
  };
  if constexpr (!kMarked) walk_whole_chunks();
  for (; t < extent.steps; t += kSteps) {
    if constexpr (kMarked) walk_whole_chunks();
    const auto drawn = draw<kSteps>(in, row + unit, t, extent);
    auto* const tile = ring.tile(stage);
    await_copies<kStages - 1>();
    feed.align(in, tile, row, t);
    const Index left = extent.steps - t;
    const Line here = staged<kSteps>(in, tile, row, t, drawn);
    const Line within = staged_inside<kSteps>(in, tile, row, t, drawn);
    const Index next = t + kStages * kSteps;
    const auto walk_chunk = [&](const auto& here, const auto& within, auto& cursor, auto op) {
      using Steps = decltype(op);
      Chunk<Steps, std::decay_t<decltype(here)>, kSteps> chunk;
      const auto total = chunk.compose(here, within, left, unit);
      if constexpr (!kMarked) feed.copy_early(in, tile, row, next);
      if (inside) {
        const auto last = walk<Steps, kSteps>(chunk, 0, left, cursor, state);
        state = left >= kSteps ? after_whole<Steps>(total, state, last) : last;
      }
    };
    if constexpr (kMarked) {
      const auto marks = marks_of<kSteps>(here);
      if (!marks) {
        walk_chunk(here.plain, within.plain, cursor.plain, typename Op::Uncut());
      } else if (inside) {
        state =
            walk<Carrying<Op>, kSteps>(TileSteps{here, within, unit}, marks, left, cursor, state);
      }
      feed.copy(in, tile, row, next);
    } else {
      walk_chunk(here, within, cursor, Op());
      feed.copy_late(in, tile, row, next);
    }
    feed.skip(in, kSteps);
    stage = ring.after(stage);
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
// Whether blocks of one warp have room for so many bytes each, all of a multiprocessor at once.
inline bool all_have(Index count, std::size_t warp_bytes, const Launch& launch) {
  const Index blocks = (count + launch.units - 1) / launch.units;
  return static_cast<std::size_t>(blocks) * (warp_bytes + kReservedShared) <= launch.shared;
}

template <class Op, int kStages, class Source, class Sink, class Ends>
cudaError_t launch_stages(const Extent& extent, const Source& source, const Sink& sink,
                          const Ends& ends, const Launch& launch) {
  using Line = LineOf<Source>;
  constexpr std::size_t kWarpBytes =
      kStages * tile_elements<Line, sequential_steps<Op, Line>()>() * sizeof(typename Line::T);
  const Index count = columns(extent);
  const int warps = sequential_warps(count, kWarpBytes, launch);
  if constexpr (kMayBeDeep<Op, Source> && kStages == kSequentialStages) {
    constexpr std::size_t kDeepBytes = kWarpBytes / kStages * kDeepStages;
    if (warps == 1 && all_have(count, kDeepBytes, launch)) {
      return launch_stages<Op, kDeepStages>(extent, source, sink, ends, launch);
    }
  }
  return cuda::launch(sequential_kernel<Op, kStages, Source, Sink, Ends>,
                      (count + warps - 1) / warps, warps * kLanes, warps * kWarpBytes, launch,
                      extent, row_blocks(extent), source, sink, ends, copied_bytes(extent, source));
}

}  // namespace cuda

template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_sequential(const Extent& extent, const Source& source, const Sink& sink,
                              const Ends& ends, const Launch& launch) {
  if (cuda::columns(extent) == 0) return cudaSuccess;
  return cuda::launch_stages<Op, cuda::kSequentialStages>(extent, source, sink, ends, launch);
}

}  // namespace scanrnn::scan
