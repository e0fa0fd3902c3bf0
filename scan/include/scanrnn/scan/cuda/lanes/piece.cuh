// SPDX-License-Identifier: Apache-2.0
// A warp's piece of a tensor whose steps are adjacent: from memory to shared memory and back, by
// vectors at any alignment.
#pragma once

#include "scanrnn/scan/cuda/feed.cuh"

namespace scanrnn::scan {
namespace cuda {

// A piece of a stream from walk step `t` on, as it lies in memory and in its tile. Where steps are
// adjacent or adjacent in reverse it is one run of elements; its tile holds it as memory does.
template <class T>
struct Piece {
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  T* low;         // its lowest address
  int at, count;  // its elements in the tile
  int origin;     // where row 0 of step t is in the tile
  int sign;       // of the stride from step to step, which is `rows`
  bool run;
  // Whether the stream has a vector's elements below the piece and above it.
  bool below, above;

  // `most` are the steps of the tile; `runs` is lanes_run().
  __device__ __forceinline__ Piece(T* data, Index step, Index steps, Index t, int rows, int most,
                                   bool runs) {
    const int n = static_cast<int>(min(max(steps - t, Index(0)), Index{most}));
    const bool reverse = runs && step == -rows;
    run = reverse || (runs && step == rows);
    sign = reverse ? -1 : 1;
    count = n * rows;
    low = data + (reverse ? t + n - 1 : t) * step;
    const int place = reverse ? (most - n) * rows : 0;
    const auto skew = reinterpret_cast<std::uintptr_t>(low) / sizeof(T) - place;
    at = place + (run ? static_cast<int>(skew) & (kVector - 1) : 0);
    origin = at - place + (reverse ? (most - 1) * rows : 0);
    const bool before = t * rows >= kVector, after = (steps - t - n) * rows >= kVector;
    below = count > 0 && (reverse ? after : before);
    above = count > 0 && (reverse ? before : after);
  }
};

// The elements of a piece one by one, where it is no run: use(place in the tile, step, row).
template <class T, class F>
__device__ __forceinline__ void for_elements(const Piece<T>& piece, int rows, F&& use) {
#pragma unroll 1
  for (int i = threadIdx.x % kLanes; i < piece.count; i += kLanes) {
    use(piece.origin + piece.sign * (i / rows) * rows + i % rows, i / rows, i % rows);
  }
}

// Elements at, at + 1 ... of a tile by vectors, and what is before the first whole vector and after
// the last one by elements, unless whole vectors may be taken there, too.
template <int kTile, int kVector, class Whole, class Single>
__device__ __forceinline__ void for_run(int at, int count, bool below, bool above, Whole&& whole,
                                        Single&& single) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int end = at + count, first = (at + (below ? 0 : kVector - 1)) / kVector * kVector;
  const int last = max(first, (end + (above ? kVector - 1 : 0)) / kVector * kVector);
#pragma unroll
  for (int k = 0; k < kTile; k += kLanes * kVector) {
    if (first + lane * kVector + k < last) whole(first + lane * kVector, k);
  }
  if (kVector > 1 && lane < kVector) {
    if (at + lane < min(first, end)) single(at + lane);
    if (last + lane < end) single(last + lane);
  }
}

// Whether a run fills its tile and goes by whole vectors: those that reach beyond it must be there.
// Its copies then have two addresses in all, and no bound but the last one's.
template <int kCount, class T>
__device__ __forceinline__ bool fills(const Piece<T>& piece, bool below, bool above) {
  static_assert(kCount % Piece<T>::kVector == 0);
  return piece.run && piece.count == kCount &&
         (piece.at % Piece<T>::kVector == 0 || (below && above));
}
// use(k) for vectors k elements from a lane's first, of a run that starts at `at`.
template <int kCount, int kVector, class Use>
__device__ __forceinline__ void for_vectors(int at, int mine, Use&& use) {
#pragma unroll
  for (int k = 0; k < kCount + kVector; k += kLanes * kVector) {
    if (k + kLanes * kVector <= kCount || mine + k < at + kCount) use(k);
  }
}

template <int kTile, class T>
__device__ __forceinline__ void copy_in(T* tile, const Piece<const T>& piece, Index step,
                                        int rows) {
  if (!piece.run) {
    for_elements(piece, rows, [&](int place, int k, int row) {
      copy_element(tile + place, piece.low + k * step + row);
    });
    return;
  }
  constexpr int kVector = Piece<T>::kVector, kCount = kTile - kVector;
  const T* const from = piece.low - piece.at;
  if (fills<kCount>(piece, piece.below, piece.above)) {
    const int mine = static_cast<int>(threadIdx.x) % kLanes * kVector;
    for_vectors<kCount, kVector>(piece.at, mine, [to = tile + mine, from = from + mine](int k) {
      copy_async<kVectorBytes>(to + k, from + k);
    });
    return;
  }
  for_run<kTile, Piece<T>::kVector>(
      piece.at, piece.count, piece.below, piece.above,
      [&](int i, int k) { copy_async<kVectorBytes>(tile + i + k, from + i + k); },
      [&](int i) { copy_element(tile + i, from + i); });
}

// Whether a piece lies in memory as `held` lies in its tile, whose element 0 would be at `to`.
template <class T>
__device__ __forceinline__ bool lies_alike(const Piece<const T>& held, const Piece<T>& piece,
                                           const T* to) {
  return piece.run && held.run && held.sign == piece.sign &&
         reinterpret_cast<std::uintptr_t>(to) % kVectorBytes == 0;
}

// `held` is the piece by which the tile is laid out.
template <int kTile, class T>
__device__ __forceinline__ void copy_out(const T* tile, const Piece<const T>& held,
                                         const Piece<T>& piece, Index step, int rows) {
  const int at = held.sign > 0 ? held.origin : held.origin + rows - piece.count;
  T* const to = piece.low - at;
  if (!lies_alike(held, piece, to)) {
    T* const first = piece.sign > 0 ? piece.low : piece.low + piece.count - rows;
    Piece<T> there = piece;
    there.origin = held.origin;
    there.sign = held.sign;
    for_elements(there, rows,
                 [&](int place, int k, int row) { first[k * step + row] = tile[place]; });
    return;
  }
  constexpr int kVector = Piece<T>::kVector, kCount = kTile - kVector;
  if (fills<kCount>(held, false, false) && piece.count == kCount) {
    const int mine = static_cast<int>(threadIdx.x) % kLanes * kVector;
    for_vectors<kCount, kVector>(0, mine, [to = to + mine, from = tile + mine](int k) {
      *reinterpret_cast<uint4*>(to + k) = *reinterpret_cast<const uint4*>(from + k);
    });
    return;
  }
  for_run<kTile, Piece<T>::kVector>(
      at, piece.count, false, false,
      [&](int i, int k) {
        *reinterpret_cast<uint4*>(to + i + k) = *reinterpret_cast<const uint4*>(tile + i + k);
      },
      [&](int i) { to[i] = tile[i]; });
}

}  // namespace cuda
}  // namespace scanrnn::scan
