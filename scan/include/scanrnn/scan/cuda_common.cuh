// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels share: a lane is a row, so that each access of a warp is one piece of memory,
// and a warp's chunk of a few steps is copied to shared memory while an earlier one is worked on.
//
// A Source and a Sink are those of cpu.h with a few additions, rows being adjacent elements of T:
//   Source::kStreams, stream(i) -> Stream<T>    the inputs of this line, in the order of a tile
//   Source::staged(tile, step, stream, row, t)  the same line, read from a tile that starts there
//   Sink::from(row, t), next()                  the same line counted from there, moved on by a step
// and a kernel is given the states at both ends of time:
//   Ends::first(line, row) -> State,  Ends::last(line, row, State)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <limits>
#include <utility>

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

// What a launch needs besides its arguments. `units` is the number of multiprocessors.
struct Launch {
  cudaStream_t stream = nullptr;
  int units = 1;
};

// How a value of T lies in memory, and what it is computed in. A row is one unit.
template <class Scalar>
struct Units {
  using T = Scalar;
  using V = float;
  static constexpr bool kAddsBias = false;  // the projection's epilogue has added it
  SCANRNN_HD static V read(const T* line, Index row, Index) { return static_cast<V>(line[row]); }
  SCANRNN_HD static void write(T* line, Index row, Index, V value) {
    line[row] = static_cast<T>(value);
  }
};
template <>
struct Units<double> {
  using T = double;
  using V = double;
  static constexpr bool kAddsBias = true;  // there is no such epilogue in float64
  SCANRNN_HD static V read(const T* line, Index row, Index) { return line[row]; }
  SCANRNN_HD static void write(T* line, Index row, Index, V value) { line[row] = value; }
};

namespace cuda {

inline constexpr int kLanes = 32;
inline constexpr int kVectorBytes = 16;

template <class Source>
using ItemOf = decltype(std::declval<const Source&>().load(Index(0), Index(0)));

// Steps that a thread keeps in registers: as many as an item's size allows, and one promotion.
template <class Source>
constexpr int steps_per_thread() {
  constexpr std::size_t bytes = sizeof(ItemOf<Source>);
  return bytes <= 12 ? kLocalSteps : bytes <= 28 ? kLocalSteps / 2 : kLocalSteps / 4;
}

// Elements of the tile of one warp: kSteps x kLanes of every stream.
template <class Source, int kSteps>
constexpr int tile_elements() {
  return Source::kStreams * kSteps * kLanes;
}

// A column is a line and a block of kLanes of its rows; the last block may be cut off.
inline Index row_blocks(const Extent& extent) { return (extent.rows + kLanes - 1) / kLanes; }
inline Index columns(const Extent& extent) { return extent.lines * row_blocks(extent); }

// The row of its block that a lane reads: lanes past the last row read it too, and store nothing.
__device__ __forceinline__ int unit_of(const Extent& extent, Index row) {
  const int lane = threadIdx.x % kLanes;
  return extent.rows - row > lane ? lane : static_cast<int>(extent.rows - row) - 1;
}

// The lane, asked anew: what is computed from it is not kept in registers from tile to tile.
__device__ __forceinline__ int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this warp's latest groups are on their way.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncwarp();
}

// Copies steps [t, t + kSteps) of rows [row, row + kLanes) of one stream; what lies past the ends is
// left as it is. With `vectors`, rows end at a multiple of kVectorBytes and every line is aligned.
template <int kSteps, class T>
__device__ __forceinline__ void fetch_stream(const Stream<T>& stream, T* tile, Index row,
                                             Index rows, Index t, bool vectors) {
  const int lane = fresh_lane();
  const Index left = stream.steps - t;
  if (vectors) {
    constexpr int kPiece = kVectorBytes / sizeof(T), kPieces = kLanes / kPiece;
    constexpr int kPass = kLanes / kPieces;  // steps that the warp copies at once
    const int piece = lane % kPieces * kPiece, first = lane / kPieces;
    if (row + piece >= rows) return;
    const T* from = stream.data + (t + first) * stream.step + row + piece;
    T* to = tile + first * kLanes + piece;
    if (left >= kSteps) {
#pragma unroll
      for (int k = 0; k < kSteps; k += kPass) {
        copy_async<kVectorBytes>(to + k * kLanes, from + k * stream.step);
      }
    } else {
      for (int k = 0; first + k < left; k += kPass) {
        copy_async<kVectorBytes>(to + k * kLanes, from + k * stream.step);
      }
    }
  } else {
    if (row + lane >= rows) return;
    const T* from = stream.data + t * stream.step + row + lane;
#pragma unroll 4
    for (int k = 0; k < kSteps; ++k) {
      if (k >= left) break;
      if constexpr (sizeof(T) >= 4) {
        copy_async<sizeof(T)>(tile + k * kLanes + lane, from + k * stream.step);
      } else {
        tile[k * kLanes + lane] = from[k * stream.step];
      }
    }
  }
}

// Every stream's part of a tile, as one group of copies.
template <int kSteps, class Source>
__device__ __forceinline__ void fetch(const Source& line, typename Source::T* tile, Index row,
                                      Index rows, Index t, bool vectors) {
#pragma unroll
  for (int i = 0; i < Source::kStreams; ++i) {
    const auto stream = line.stream(i);
    if (stream.data) {
      fetch_stream<kSteps>(stream, tile + i * kSteps * kLanes, row, rows, t, vectors);
    }
  }
  commit_copies();
}

// The line as its tile holds it: rows are lanes, steps count from the tile's first.
template <int kSteps, class Source>
__device__ __forceinline__ Source staged(const Source& line, const typename Source::T* tile,
                                         Index row, Index t) {
  return line.staged(tile, kLanes, kSteps * kLanes, row, t);
}

// Whether every line of every stream can be copied by vectors. Looks at addresses only.
template <class Source>
bool vectors_fit(const Extent& extent, const Source& source) {
  using T = typename Source::T;
  if (extent.rows * sizeof(T) % kVectorBytes != 0) return false;
  for (Index line = 0; line < (extent.lines > 1 ? 2 : 1); ++line) {
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = source.line(line).stream(i);
      if (!stream.data) continue;
      if (reinterpret_cast<std::uintptr_t>(stream.data) % kVectorBytes != 0) return false;
      if (stream.step * static_cast<Index>(sizeof(T)) % kVectorBytes != 0) return false;
    }
  }
  return true;
}

// Allows the kernel its dynamic shared memory, then launches it.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), Index blocks, int threads, std::size_t shared,
                   cudaStream_t stream, const Arguments&... arguments) {
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared));
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace cuda
}  // namespace scanrnn::scan
