// SPDX-License-Identifier: Apache-2.0
// Rows that begin anywhere, copied by vectors all the same: from the vector in which a row of a
// step begins to the one in which it ends, one more than it has itself. In the tile a row keeps its
// place beside its vectors. Steps of the tile lie as far apart as those in memory but for whole
// vectors, so that all are read at one stride.
#pragma once

#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn::scan {

// A Source of such rows, adjacent ones; its streams' steps differ by whole vectors (is_unaligned).
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

}  // namespace cuda
}  // namespace scanrnn::scan
