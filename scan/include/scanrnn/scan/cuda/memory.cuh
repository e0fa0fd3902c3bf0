// SPDX-License-Identifier: Apache-2.0
// How values lie in memory and in lanes on CUDA. A lane is a row, so that each access of a warp is
// one piece of memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "scanrnn/scan/complex.h"
#include "scanrnn/scan/cuda/launch.cuh"
#include "scanrnn/scan/float_pair.h"

namespace scanrnn::scan {

// How a value of T lies in memory, and what it is computed in. A row is one unit.
template <class Scalar>
struct Units {
  using T = Scalar;
  using V = float;
  static constexpr int kUnits = 1;  // of a row
  SCANRNN_HD static V read(const T* line, Index row, Index) { return static_cast<V>(line[row]); }
  SCANRNN_HD static void write(T* line, Index row, Index, V value) {
    line[row] = static_cast<T>(value);
  }
  SCANRNN_HD static bool resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return step[row * stride] != 0;
  }
};
template <>
struct Units<double> {
  using T = double;
  using V = double;
  static constexpr int kUnits = 1;
  SCANRNN_HD static V read(const T* line, Index row, Index) { return line[row]; }
  SCANRNN_HD static void write(T* line, Index row, Index, V value) { line[row] = value; }
  SCANRNN_HD static bool resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return step[row * stride] != 0;
  }
};
template <class Real>
struct Units<Complex<Real>> {
  using T = Complex<Real>;
  using V = Complex<Real>;
  static constexpr int kUnits = 1;
  SCANRNN_HD static V read(const T* line, Index row, Index) { return line[row]; }
  SCANRNN_HD static void write(T* line, Index row, Index, const V& value) { line[row] = value; }
  SCANRNN_HD static bool resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return step[row * stride] != 0;
  }
};
// Two adjacent units of a 16-bit type as one row: T is a word, whose rows count pairs.
template <class Scalar>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  using T = __nv_bfloat162;
  using V = Pair;
  static constexpr int kUnits = 2;
  SCANRNN_HD static V read(const T* line, Index row, Index) {
    const float2 value = __bfloat1622float2(line[row]);
    return {value.x, value.y};
  }
  SCANRNN_HD static void write(T* line, Index row, Index, const V& value) {
    line[row] = __floats2bfloat162_rn(value.x, value.y);
  }
  SCANRNN_HD static PairMask resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return {step[2 * row * stride] != 0, step[(2 * row + 1) * stride] != 0};
  }
};
template <>
struct Pairs<__half> {
  using T = __half2;
  using V = Pair;
  static constexpr int kUnits = 2;
  SCANRNN_HD static V read(const T* line, Index row, Index) {
    const float2 value = __half22float2(line[row]);
    return {value.x, value.y};
  }
  SCANRNN_HD static void write(T* line, Index row, Index, const V& value) {
    line[row] = __floats2half2_rn(value.x, value.y);
  }
  SCANRNN_HD static PairMask resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return {step[2 * row * stride] != 0, step[(2 * row + 1) * stride] != 0};
  }
};

namespace cuda {

inline constexpr int kLanes = 32;
inline constexpr int kVectorBytes = 16;

// A column is a line and a block of kLanes of its rows; the last block may be cut off.
inline Index row_blocks(const Extent& extent) { return (extent.rows + kLanes - 1) / kLanes; }
inline Index columns(const Extent& extent) { return extent.lines * row_blocks(extent); }

// The row of its block that a lane reads: lanes past the last row read it too, and store nothing.
__device__ __forceinline__ int unit_of(const Extent& extent, Index row) {
  const int lane = threadIdx.x % kLanes;
  return extent.rows - row > lane ? lane : static_cast<int>(extent.rows - row) - 1;
}

// The lane and a kernel argument, read anew: what is computed from them is not kept in registers,
// or worse, from tile to tile.
__device__ __forceinline__ int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ __forceinline__ Index fresh(Index argument) {
  asm volatile("" : "+l"(argument));
  return argument;
}

// Copies to shared memory that nobody waits for until await_copies().
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
// The first `bytes` of a vector, or of a word.
__device__ __forceinline__ void copy_vector_part(void* to, const void* from, int bytes) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_part(void* to, const void* from, int bytes) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
// One of 16 bits is waited for.
template <class T>
__device__ __forceinline__ void copy_element(T* to, const T* from) {
  if constexpr (sizeof(T) >= 4) {
    copy_async<sizeof(T)>(to, from);
  } else {
    *to = *from;
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

}  // namespace cuda
}  // namespace scanrnn::scan
