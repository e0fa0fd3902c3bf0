// SPDX-License-Identifier: Apache-2.0
// Pieces of a warp's lines, whose steps are adjacent, from memory to shared memory and back: by
// vectors at any alignment, which the lanes share out among them.
//
// A Source is that of warp.cuh.
#pragma once

#include <algorithm>

#include "scanrnn/scan/cuda/lanes/warp.cuh"

namespace scanrnn::scan {
namespace cuda {

// How a warp takes its lines: each lane so many as follow one another in memory, which are one line
// to all but the walk, a tile of so many steps after the other. A line is an odd number of vectors
// in a tile, so that most lanes meet other banks, with room before its first element, which is as
// far behind a multiple of 16 bytes as it is in memory.
template <class Source>
struct LineShape {
  using T = typename Source::T;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  // Steps: of three streams of 16 bits the warps that have room count for more than long pieces.
  static constexpr bool kShort = Source::kStreams > (sizeof(T) > 2 ? 3 : 2);
  static constexpr int kUsual = (kShort ? 4 : 8) * kVector, kMost = (kShort ? 5 : 10) * kVector;
  static constexpr int kSector = 32 / static_cast<int>(sizeof(T));  // of memory
  int lines;                                                        // of a lane
  int steps, line;  // of a tile; elements from one line to the next

  LineShape(Index all_steps, int lines)
      : lines(lines),
        steps(lines * all_steps % kUsual == 0 ? kUsual : steps_of(lines * all_steps)),
        line((vectors() | 1) * kVector) {}
  // A line that is longer than a tile has tiles of about as many steps each, of whole sectors: as
  // long as can be where that saves a quarter of them, elsewhere of 64 or 128 bytes at most.
  static int steps_of(Index all) {
    if (all <= kMost) return static_cast<int>(all);
    const auto tiles_of = [all](int steps) {
      const Index whole = steps / kSector * kSector;
      return (all + whole - 1) / whole;
    };
    const Index most = tiles_of(kUsual), fewer = tiles_of(kMost);
    const Index tiles = 4 * fewer <= 3 * most ? fewer : most;
    return static_cast<int>(((all + tiles - 1) / tiles + kSector - 1) / kSector * kSector);
  }
  // That a line has of a tile, at least and at most.
  __host__ __device__ int whole_vectors() const { return (steps + kVector - 1) / kVector; }
  __host__ __device__ int vectors() const { return (steps + 2 * kVector - 2) / kVector; }
  __host__ __device__ int stream() const { return kLanes * line; }
  __host__ __device__ int warp() const { return kLaneStages * Source::kStreams * stream(); }
};
template <class Source>
struct LineTile : LineShape<Source> {
  using T = typename Source::T;
  // Between these a stream is read by whole vectors, whatever is between its lines.
  const T *low[Source::kStreams], *high[Source::kStreams];

  LineTile(const LineShape<Source>& shape, const Extent& extent, const Source& source)
      : LineShape<Source>(shape) {
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto first = source.line(0).stream(i), last = source.line(extent.lines - 1).stream(i);
      const bool none = !first.data || first.steps <= 0;
      const Index back = first.step < 0 ? first.steps - 1 : 0;
      low[i] = none ? nullptr : std::min(first.data, last.data) - back;
      high[i] = none ? nullptr : std::max(first.data, last.data) - back + first.steps;
    }
  }
};

// A lane's line of a stream: `count` of its elements as they lie in memory from `low` on, which is
// the element `at` of a vector. In the tile the line begins with that vector.
template <class T>
struct LinePiece {
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  T* low;
  int count, at;

  __device__ __forceinline__ LinePiece(T* data, Index step, Index steps, Index t, int most)
      : count(static_cast<int>(min(max(steps - t, Index(0)), Index{most}))) {
    low = data + (step < 0 ? t + count - 1 : t) * step;
    at = static_cast<int>(reinterpret_cast<std::uintptr_t>(low) / sizeof(T)) & (kVector - 1);
  }
  // Where its first step is in the tile.
  __device__ __forceinline__ int origin(Index step) const { return step < 0 ? at + count - 1 : at; }
  // That it has elements of.
  __device__ __forceinline__ int vectors() const {
    return count > 0 ? (at + count + kVector - 1) / kVector : 0;
  }
};

// How the pieces of a warp's lines, at most so many of each, are dealt to its lanes, adjacent ones
// of a line to adjacent lanes.
struct Dealing {
  int most, lines, rest;  // pieces of a line; lines and pieces of a turn of the lanes
  int line, piece;        // this lane's in the first turn

  __device__ __forceinline__ explicit Dealing(int most)
      : most(most), lines(kLanes / most), rest(kLanes - lines * most) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    line = lane / most;
    piece = lane - line * most;
  }
  // One or the other; a reference to it would have to be to memory.
  __device__ __forceinline__ Dealing(bool first, const Dealing& a, const Dealing& b)
      : most(first ? a.most : b.most),
        lines(first ? a.lines : b.lines),
        rest(first ? a.rest : b.rest),
        line(first ? a.line : b.line),
        piece(first ? a.piece : b.piece) {}
  // use(line, piece) for all; every lane is in every turn.
  template <class Use>
  __device__ __forceinline__ void deal(const Use& use) const {
    int at = line, i = piece;
#pragma unroll 4
    for (int turn = 0; turn < most; ++turn) {
      use(at, i);
      at += lines;
      i += rest;
      if (i >= most) {
        i -= most;
        ++at;
      }
    }
  }
};

// Asks for the vectors of each lane's piece, and by elements for one that has a vector beyond `low`
// or `high`.
template <class T>
__device__ __forceinline__ void copy_lines_in(const Dealing& vectors, T* to, int apart,
                                              const LinePiece<const T>& piece, const T* low,
                                              const T* high) {
  constexpr int kVector = LinePiece<T>::kVector;
  const T* const own = piece.low - piece.at;
  const int count = piece.vectors();
  const bool within = own >= low && own + count * kVector <= high;
  // The address of a vector has room for their number.
  const auto packed =
      reinterpret_cast<unsigned long long>(own) | static_cast<unsigned>(within ? count : 0);
  vectors.deal([&](int line, int i) {
    const auto of = __shfl_sync(~0u, packed, line);
    if (i >= static_cast<int>(of & 15)) return;
    const T* const from = reinterpret_cast<const T*>(of & ~15ull);
    copy_async<kVectorBytes>(to + line * apart + i * kVector, from + i * kVector);
  });
  if (within) return;
  to += static_cast<int>(threadIdx.x) % kLanes * apart + piece.at;
#pragma unroll 1
  for (int i = 0; i < piece.count; ++i) copy_element(to + i, piece.low + i);
}

// From where a lane sends its line, and to where, as if both began with the same vector.
template <class T>
struct LineSender {
  const T* tile;
  int line;  // where it is in the tile
  T* to;

  // `count` pieces of kBytes from element `first` on.
  template <int kBytes>
  __device__ __forceinline__ void send(const Dealing& pieces, int first, int count) const {
    using Word = std::conditional_t<
        kBytes == 16, uint4,
        std::conditional_t<kBytes == 8, uint2,
                           std::conditional_t<kBytes == 4, std::uint32_t, std::uint16_t>>>;
    constexpr int kOf = kBytes / static_cast<int>(sizeof(T));
    const auto address = reinterpret_cast<unsigned long long>(to + first);
    const int from = (line + first) << 8 | count;
    pieces.deal([&](int of, int i) {
      T* const there = reinterpret_cast<T*>(__shfl_sync(~0u, address, of));
      const int packed = __shfl_sync(~0u, from, of);
      if (i >= (packed & 255)) return;
      *reinterpret_cast<Word*>(there + i * kOf) =
          *reinterpret_cast<const Word*>(tile + (packed >> 8) + i * kOf);
    });
  }
  // Elements from `first` to `end`, fewer than a vector has.
  __device__ __forceinline__ void send_few(int first, int end) const {
    if (!__any_sync(~0u, first < end)) return;
    constexpr int kBytes = std::max<int>(sizeof(T), sizeof(std::uint32_t));
    constexpr int kOf = kBytes / static_cast<int>(sizeof(T));
    const int word = min((first + kOf - 1) / kOf * kOf, end), words = (end - word) / kOf;
    send<kBytes>(Dealing(kVectorBytes / kBytes - 1), word, words);
    if constexpr (kOf > 1) {
      if (first < word) to[first] = tile[line + first];
      if (word + kOf * words < end) to[end - 1] = tile[line + end - 1];
    }
  }
};
// Sends each lane's piece, which begins `at` elements behind where the lane's line does in the
// tile.
template <class T>
__device__ __forceinline__ void copy_lines_out(const Dealing& vectors, const T* tile, int apart,
                                               const LinePiece<T>& piece, int at) {
  constexpr int kVector = LinePiece<T>::kVector;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int end = at + piece.count;
  const LineSender<T> sender{tile, lane * apart, piece.low - at};
  if (!__all_sync(~0u, at == piece.at || piece.count == 0)) {  // a vector is none in memory
    const int most = __reduce_max_sync(~0u, piece.count);
    sender.template send<sizeof(T)>(Dealing(most), at, piece.count);
    return;
  }
  const int first = min((at + kVector - 1) / kVector * kVector, end);
  const int last = max(first, end / kVector * kVector);
  sender.template send<kVectorBytes>(vectors, first, (last - first) / kVector);
  if constexpr (kVector > 1) {
    sender.send_few(at, first);
    sender.send_few(last, end);
  }
}

}  // namespace cuda
}  // namespace scanrnn::scan
