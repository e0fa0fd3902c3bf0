// SPDX-License-Identifier: Apache-2.0
// How rows are copied to shared memory that do not begin with vectors: by words or element by
// element, whatever the streams of a Source are, and by vectors where its streams are alike.
#pragma once

#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn::scan {

// A Source whose rows begin anywhere and are copied by vectors all the same: from the vector in
// which a row of a step begins to the one in which it ends, one more than it has itself. In the
// tile a row keeps its place beside its vectors. Steps of the tile lie as far apart as those in
// memory but for whole vectors, so that all are read at one stride. Rows are adjacent, and the
// steps of streams differ by whole vectors: is_unaligned() of feed.cuh.
template <class Source>
struct Unaligned : Source {
  __device__ __forceinline__ Unaligned line(Index i) const { return {Source::line(i)}; }
  template <class Tiles>
  __device__ __forceinline__ Unaligned staged(const Tiles& tiles, Index step, Index row,
                                              Index t) const {
    return {Source::staged(tiles, step, row, t)};
  }
  __device__ __forceinline__ Unaligned from(Index row, Index t) const {
    return {Source::from(row, t)};
  }
};

namespace cuda {

// ---- by vectors

template <class Source>
inline constexpr bool kUnaligned = false;
template <class Source>
inline constexpr bool kUnaligned<Unaligned<Source>> = true;

template <class T>
inline constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));  // its elements

// Elements between an address and the vector that it lies in.
template <class T>
SCANRNN_HD int inside_vector(const T* at) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(at) / sizeof(T) % kVector<T>);
}
// Elements between steps of a tile.
template <class T>
__device__ __forceinline__ int unaligned_pitch(Index step) {
  return kLanes + kVector<T> + static_cast<int>(step & (kVector<T> - 1));
}
template <class T>
constexpr int unaligned_elements(int steps) {
  return steps * (kLanes + 2 * kVector<T>);
}

// How lanes copy a tile of a stream: each the same vector of every kPass-th step.
template <class T>
struct UnalignedCopy {
  static constexpr int kPieces = kLanes / kVector<T> + 1, kPass = kLanes / kPieces;

  // Where this lane's first row of the tile at (row, t) begins.
  __device__ __forceinline__ static const T* first(const Stream<T>& stream, Index row, Index t) {
    return stream.data + (t + fresh_lane() / kPieces) * fresh(stream.step) + row;
  }
  template <int kSteps>
  __device__ __forceinline__ static void copy(const T* from, Index step, int left, int rows,
                                              T* tile) {
    static_assert(kSteps % kVector<T> == 0,
                  "a tile's first row begins where that of the line does");
    const int lane = fresh_lane(), first = lane / kPieces, piece = lane % kPieces * kVector<T>;
    if (first >= kPass) return;
    const int pitch = unaligned_pitch<T>(step);
    T* to =
        tile + ((inside_vector(from) - first * pitch) & (kVector<T> - 1)) + first * pitch + piece;
#pragma unroll
    for (int k = 0; k < kSteps; k += kPass) {
      const int inside = inside_vector(from), count = min(rows + inside - piece, kVector<T>);
      if (first + k < min(left, kSteps) && count > 0) {
        copy_vector_part(to - inside, from - inside + piece, count * static_cast<int>(sizeof(T)));
      }
      from += kPass * step;
      to += kPass * pitch;
    }
  }
};

// Where the streams of a tile start: a row's first element.
template <class Source>
struct UnalignedTiles {
  using T = typename Source::T;
  const Source& line;
  const T* first;
  Index row;
  int apart;

  __device__ __forceinline__ const T* operator[](int i) const {
    return first + i * apart + inside_vector(line.stream(i).data + row);
  }
};

// ---- by words and by elements

// Whether a 16-bit element is the second one of its word.
__device__ __forceinline__ int begins_inside(const void* element) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(element) / 2 % 2);
}

// By words of 4 or 8 bytes. One loop for both: they take as long to ask for as to come.
template <class T>
__device__ __forceinline__ void copy_words(const T* from, Index step, int steps, int rows, T* to,
                                           int bytes) {
  constexpr int kWide = sizeof(T) > 2 ? 4 : 3;  // of 8 bytes: 16 or 8 of them fill a row
  const int lane = fresh_lane(), bits = bytes == 8 ? kWide : kWide + 1;
  const int first = lane >> bits, pass = kLanes >> bits;
  const int unit = (lane & ((1 << bits) - 1)) << (5 - bits);
  if (unit >= rows) return;
  from += first * step + unit;
  to += first * kLanes + unit;
#pragma unroll 4
  for (int k = first; k < steps; k += pass) {
    if (bytes == 8) {
      copy_async<8>(to, from);
    } else {
      copy_async<4>(to, from);
    }
    from += pass * step;
    to += pass * kLanes;
  }
}
// By words, of rows of 16 bits that may begin inside one: such a row lies an element further in the
// tile, until align_rows().
template <class T>
__device__ __forceinline__ void copy_halves(const T* from, Index step, int steps, int rows, T* to) {
  constexpr int kWords = kLanes / 2;  // of a row
  const int lane = fresh_lane(), first = lane / kWords, place = lane % kWords * 2;
  from += first * step;
  const int unit = place - begins_inside(from);
  if (unit >= rows) return;
  const int count = unit + 1 < rows ? 2 : 1;
  to += first * kLanes + place;
#pragma unroll 4
  for (int k = first; k < steps; k += 2) {
    copy_part(to, from + unit, count * static_cast<int>(sizeof(T)));
    from += 2 * step;
    to += 2 * kLanes;
  }
}
// Element by element: any alignment.
template <class T>
__device__ __forceinline__ void copy_singly(const T* from, Index step, Index row, int steps,
                                            int rows, T* to) {
  const int lane = fresh_lane();
  if (lane >= rows) return;
  from += lane * row;
  to += lane;
#pragma unroll 4
  for (int k = 0; k < steps; ++k) {
    copy_element(to + k * kLanes, from);
    from += step;
  }
}
// Copies rows that do not begin with vectors: `rows` of so many steps. A function that is called:
// its registers are none of its kernel's, which are few on the way by vectors.
template <class T>
__device__ __noinline__ void copy_rows(const T* from, Index step, Index row, int steps, int rows,
                                       T* to, int bytes) {
  if (sizeof(T) <= 4 && bytes > static_cast<int>(sizeof(T))) {
    copy_words(from, step, steps, rows, to, bytes);
  } else if (sizeof(T) == 2 && bytes > 0) {
    copy_halves(from, step, steps, rows, to);
  } else {
    copy_singly(from, step, row, steps, rows, to);
  }
}
// Puts rows in their places that copy_halves() has left elsewhere, when they have come: a row that
// begins inside a word takes half of each of its words from the next, and its last element is that
// of the lane of its step. This lane's rows are `shifted`, or not. It is called, too.
template <int kSteps>
__device__ __noinline__ void align_rows(void* tile, bool shifted, unsigned last) {
  constexpr int kWords = kLanes / 2;  // of a row
  const int lane = fresh_lane(), second = lane / kWords;
  auto* const words = static_cast<std::uint32_t*>(tile) + lane;
#pragma unroll 4
  for (int k = 0; k < kSteps; k += 2) {
    const std::uint32_t word = words[k * kWords];
    const unsigned next = __shfl_down_sync(~0u, word, 1);
    const unsigned behind = __shfl_sync(~0u, last, k + second);
    const unsigned upper = lane % kWords == kWords - 1 ? behind : next;
    if (shifted) words[k * kWords] = word >> 16 | upper << 16;
  }
}

}  // namespace cuda
}  // namespace scanrnn::scan
