// SPDX-License-Identifier: Apache-2.0
// A warp's chunk of a few steps is copied to shared memory while an earlier one is worked on.
//
// A Source and a Sink are those of cpu.h with a few additions, rows being adjacent elements of T:
//   Source::kStreams, stream(i) -> Stream<T>    the inputs of this line, in the order of a tile
//   Source::staged(tiles, step, row, t)         the same line, read from tiles that start there: of
//   stream i at tiles[i], steps `step` apart; t is kInside where the line's last step is not
//   loaded, which spares what kLastDiffers costs
//   Source::kReadsUnstaged, from(row, t)        where there is something that no stream has: it is
//   counted from the tile's begin by staged(), or by from() before a staged() that is not told t
//   Source::Draws, draw<steps>(row, t, count), hold(drawn)   where what is drawn for a row at the
//   steps of a tile, `count` of which there are, is made once; a staged Source holds it
//   Source::kMarked, marks                      where each step has a word that all rows share:
//   marks.data, steps marks.step apart; they are a tile's, too, behind its streams. plain, of a
//   Source and of its Sink, is the same for steps whose words have no bit of kSays (chunk.cuh says
//   what else there is)
//   Source::steps_of(line), whole, lines()      where lines have steps of their own: they are parts
//   of so many lines of the Source `whole`
//   Source::runs()                              where a device says whether there is work at all
//   Sink::from(row, t), next()                  the same line counted from there, moved on by a
//   step
// and a kernel is given the states at both ends of time:
//   Ends::first(line, row) -> State,  Ends::last(line, row, State)
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "scanrnn/scan/cuda/unaligned.cuh"

namespace scanrnn::scan {
namespace cuda {

template <class Source, class = void>
struct IsMarked : std::false_type {};
template <class Source>
struct IsMarked<Source, std::enable_if_t<Source::kMarked>> : std::true_type {};

template <class Source>
using LineOf = std::decay_t<decltype(std::declval<const Source&>().line(Index(0)))>;

template <class Source, class = void>
struct HasOwnSteps : std::false_type {};
template <class Source>
struct HasOwnSteps<Source, std::void_t<decltype(std::declval<const Source&>().steps_of(0))>>
    : std::true_type {};
template <class Source, class = void>
struct MayRest : std::false_type {};
template <class Source>
struct MayRest<Source, std::void_t<decltype(std::declval<const Source&>().runs())>>
    : std::true_type {};
template <class Source>
__device__ __forceinline__ bool runs(const Source& source) {
  if constexpr (MayRest<Source>::value) return source.runs();
  return true;
}

// Elements of the tile of one warp: kSteps x kLanes of every stream, or more where rows are
// unaligned, and where there are marks kLanes words, so that the next tile begins as this one does.
template <class Source, int kSteps>
constexpr int stream_elements() {
  return kUnaligned<Source> ? unaligned_elements<typename Source::T>(kSteps) : kSteps * kLanes;
}
template <class Source, int kSteps>
constexpr int tile_elements() {
  static_assert(kSteps <= kLanes, "a lane copies the mark of one step");
  constexpr int kMarks = kLanes * sizeof(std::uint32_t) / sizeof(typename Source::T);
  return Source::kStreams * stream_elements<Source, kSteps>() +
         (IsMarked<Source>::value ? kMarks : 0);
}

// Copies the inputs of a warp's chunk to its tile, [stream][step][lane], as one group of copies.
// What lies past the last step or row is left as it is.
template <class Source, int kSteps>
struct Feed {
  using T = typename Source::T;
  static constexpr int kPiece = kVector<T>;  // elements of one copy
  static constexpr int kPieces = kLanes / kPiece;
  static constexpr int kPass = kLanes / kPieces;  // steps that the warp copies at once
  static constexpr int kStream = stream_elements<Source, kSteps>();

  const Extent& extent;
  const int bytes;                  // of a copy: copied_bytes()
  const T* from[Source::kStreams];  // this lane's first vector of each, or UnalignedCopy's

  // Takes aim at the chunk that starts at (row, t); skip() moves on in time.
  __device__ __forceinline__ void aim(const Source& line, Index row, Index t) {
    const int lane = fresh_lane();
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      if constexpr (kUnaligned<Source>) {
        from[i] = UnalignedCopy<T>::first(stream, row, t);
      } else {
        from[i] =
            stream.data + (t + lane / kPieces) * fresh(stream.step) + row + lane % kPieces * kPiece;
      }
    }
  }
  __device__ __forceinline__ void skip(const Source& line, int steps) {
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) from[i] += steps * fresh(line.stream(i).step);
  }
  __device__ __forceinline__ void copy(const Source& line, T* tile, Index row, Index t) const {
    copy_early(line, tile, row, t);
    copy_late(line, tile, row, t);
  }
  // Both when every lane has read the tile. The one does what is copied by vectors, which takes few
  // registers: also while others hold a chunk. The other does the rest.
  __device__ __forceinline__ void copy_early(const Source& line, T* tile, Index row,
                                             Index t) const {
    if (bytes != kVectorBytes) return;
    __syncwarp();
    const int lane = fresh_lane();
    if constexpr (kUnaligned<Source>) {
      const int rows = static_cast<int>(min(extent.rows - row, Index{kLanes}));
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) {
        const auto stream = line.stream(i);
        if (!stream.data) continue;
        UnalignedCopy<T>::template copy<kSteps>(from[i], fresh(stream.step), steps_left(stream, t),
                                                rows, tile + i * kStream);
      }
    } else if (row + lane % kPieces * kPiece < extent.rows) {
      T* to = tile + lane * kPiece;
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) {
        const auto stream = line.stream(i);
        if (!stream.data) continue;
        const int left = steps_left(stream, t) - lane / kPieces;
        const T* source = from[i];
        const Index pass = kPass * fresh(stream.step);
#pragma unroll
        for (int k = 0; k < kSteps; k += kPass) {
          if (k < left) copy_async<kVectorBytes>(to + (i * kSteps + k) * kLanes, source);
          source += pass;
        }
      }
    }
    close(line, tile, t);
  }
  __device__ __forceinline__ void copy_late(const Source& line, T* tile, Index row, Index t) const {
    if (bytes == kVectorBytes) return;
    __syncwarp();
    const int rows = static_cast<int>(min(extent.rows - row, Index{kLanes}));
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      if (!stream.data) continue;
      copy_rows(begin(stream, row, t), fresh(stream.step), stream.row, steps_left(stream, t), rows,
                tile + i * kSteps * kLanes, bytes);
    }
    close(line, tile, t);
  }
  // What a chunk needs when it has come, before it is read.
  __device__ __forceinline__ void align(const Source& line, T* tile, Index row, Index t) const {
    if constexpr (sizeof(T) == 2) {
      if (bytes != static_cast<int>(sizeof(T))) return;
      const int lane = fresh_lane(), second = lane / (kLanes / 2);
      bool shifted[Source::kStreams];
      unsigned last[Source::kStreams];  // all are asked for at once
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) {
        const auto stream = line.stream(i);
        const T* const from = begin(stream, row, t);
        const Index step = fresh(stream.step);
        shifted[i] = stream.data && begins_inside(from) != (second & static_cast<int>(step) & 1);
        last[i] = 0;
        if (stream.data && lane < steps_left(stream, t) && extent.rows - row >= kLanes) {
          last[i] = reinterpret_cast<const std::uint16_t&>(from[lane * step + kLanes - 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < Source::kStreams; ++i) {
        if (__any_sync(~0u, shifted[i])) {
          align_rows<kSteps>(tile + i * kSteps * kLanes, shifted[i], last[i]);
        }
      }
      __syncwarp();
    }
  }

  // Steps of this chunk that a stream has.
  __device__ __forceinline__ static int steps_left(const Stream<T>& stream, Index t) {
    return static_cast<int>(min(stream.steps - t, Index{kSteps}));
  }

  // A lane copies the mark of one step; those past a line's end are zeros.
  __device__ __forceinline__ static void copy_marks(const Source& line, T* tile, Index t,
                                                    Index end) {
    const int lane = fresh_lane();
    if (lane >= kSteps) return;
    auto* to = reinterpret_cast<std::uint32_t*>(tile + Source::kStreams * kSteps * kLanes) + lane;
    if (t + lane < end) {
      copy_async<sizeof *to>(to, line.marks.data + (t + lane) * line.marks.step);
    } else {
      *to = 0;
    }
  }

 private:
  __device__ __forceinline__ void close(const Source& line, T* tile, Index t) const {
    if constexpr (IsMarked<Source>::value) copy_marks(line, tile, t, extent.steps);
    commit_copies();
  }
  __device__ __forceinline__ static const T* begin(const Stream<T>& stream, Index row, Index t) {
    return stream.data + t * fresh(stream.step) + row * stream.row;
  }
};

// Where the streams of a tile start.
template <class T>
struct Tiles {
  const T* first;
  int apart;
  __device__ __forceinline__ const T* operator[](int i) const { return first + i * apart; }
  __device__ __forceinline__ const std::uint32_t* marks(int streams) const {
    return reinterpret_cast<const std::uint32_t*>(first + streams * apart);
  }
};

// What is drawn for a row at the steps of a tile.
template <class Source, class = void>
struct DrawnFor {
  struct Type {};
};
template <class Source>
struct DrawnFor<Source, std::void_t<typename Source::Draws>> {
  using Type = typename Source::Draws;
};
template <class Source>
using DrawnOf = typename DrawnFor<Source>::Type;
template <int kSteps, class Source>
__device__ __forceinline__ DrawnOf<Source> draw(const Source& line, Index row, Index t,
                                                const Extent& extent) {
  if constexpr (std::is_empty<DrawnOf<Source>>::value) {
    return {};
  } else {
    return line.template draw<kSteps>(row, t, extent.steps - t);
  }
}

// The line as its tile holds it: rows are lanes, steps count from the tile's first.
template <int kSteps, class Source>
__device__ __forceinline__ Source staged(const Source& line, const typename Source::T* tile,
                                         Index row, Index t, const DrawnOf<Source>& drawn) {
  using T = typename Source::T;
  constexpr int kStream = stream_elements<Source, kSteps>();
  if constexpr (kUnaligned<Source>) {
    const int pitch = unaligned_pitch<T>(line.stream(0).step);
    return line.staged(UnalignedTiles<Source>{line, tile, row, kStream}, pitch, row, t);
  } else {
    Source out = line.staged(Tiles<T>{tile, kStream}, kLanes, row, t);
    if constexpr (!std::is_empty<DrawnOf<Source>>::value) out.hold(drawn);
    return out;
  }
}

template <class Source, class = void>
struct ReadsUnstaged : std::false_type {};
template <class Source>
struct ReadsUnstaged<Source, std::enable_if_t<Source::kReadsUnstaged>> : std::true_type {};
// A line that will be staged from (row, t) on without being told so, as kInside.
template <class Source>
__device__ __forceinline__ Source from_inside(const Source& line, Index row, Index t) {
  if constexpr (ReadsUnstaged<Source>::value) {
    return line.from(row, t);
  } else {
    return line;
  }
}
// staged() for loads that leave out the last step of a line.
template <int kSteps, class Source>
__device__ __forceinline__ Source staged_inside(const Source& line, const typename Source::T* tile,
                                                Index row, Index t, const DrawnOf<Source>& drawn) {
  return staged<kSteps>(from_inside(line, row, t), tile, row, kInside, drawn);
}

// Bytes of the copies by which every line of every stream can be copied: a vector's, or a word's of
// several elements; those of a 16-bit element where rows may begin inside a word; 0: one by one.
// Looks at addresses only.
template <class Source>
int copied_bytes(const Extent& extent, const Source& source) {
  if constexpr (kUnaligned<Source>) {
    return kVectorBytes;
  } else if constexpr (HasOwnSteps<Source>::value) {
    return copied_bytes({source.lines(), extent.rows, extent.steps}, source.whole);
  } else {
    using T = typename Source::T;
    constexpr auto kSize = static_cast<std::uintptr_t>(sizeof(T));
    std::uintptr_t all = static_cast<std::uintptr_t>(extent.rows) * kSize | kVectorBytes;
    for (Index line = 0; line < (extent.lines > 1 ? 2 : 1); ++line) {
      for (int i = 0; i < Source::kStreams; ++i) {
        const auto stream = source.line(line).stream(i);
        if (!stream.data) continue;
        if (stream.row != 1) return 0;
        all |= reinterpret_cast<std::uintptr_t>(stream.data);
        all |= static_cast<std::uintptr_t>(stream.step) * kSize;
      }
    }
    const auto bytes = static_cast<int>(all & (~all + 1));  // the largest that divides them
    if (bytes == kVectorBytes || kSize == 2) return bytes;
    return kSize == 4 && bytes == 8 ? bytes : 0;
  }
}

}  // namespace cuda

// Whether Unaligned is how to copy a Source: rows are adjacent, not all of them begin with vectors,
// and their steps differ by whole vectors. Looks at addresses only.
template <class Source>
bool is_unaligned(const Extent& extent, const Source& source) {
  using namespace cuda;
  using T = typename Source::T;
  const auto line = source.line(0);
  const Index step = line.stream(0).step;
  for (int i = 0; i < Source::kStreams; ++i) {
    const auto stream = line.stream(i);
    const bool fits = stream.row == 1 && (stream.step - step) % kVector<T> == 0;
    if (stream.data && !fits) return false;
  }
  return copied_bytes(extent, source) != kVectorBytes;
}

}  // namespace scanrnn::scan
