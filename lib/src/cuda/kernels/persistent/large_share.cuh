// SPDX-License-Identifier: Apache-2.0
// What the kernels of warp groups share, cuda/kernels/persistent/large.cuh forward and
// large_back.cuh backward: which lines and units a block has, how its part of R lies in registers
// and shared memory, how tensors of tokens pass through shared memory, and how they are launched.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/persistent/line_share.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "cuda/kernels/warp_group.cuh"
#include "scanrnn/dispatch/large.h"
#include "scanrnn/scan/cuda/feed.cuh"

namespace scanrnn::persistent {

using fragment::Bits;
inline constexpr int kGroupThreads = dispatch::kLargeThreads / dispatch::kLargeGroups;

// A block's lines and units. Each of its warp groups steps half of the lines.
struct LargeShare {
  LineShare own;
  int group, thread;  // of the block, of the group
  int first_unit;     // of the block
  int first_line;     // of the group, of the block's lines
  bool odd;           // row lane / 4 of a fragment

  __device__ __forceinline__ LargeShare(int batch, int slices, int groups, int lines, int units)
      : own(batch, static_cast<int>(blockIdx.x) / slices, groups),
        group(static_cast<int>(threadIdx.x) / kGroupThreads),
        thread(static_cast<int>(threadIdx.x) % kGroupThreads),
        first_unit(static_cast<int>(blockIdx.x) % slices * units),
        first_line(group * lines / 2),
        odd(thread / 4 % 2 != 0) {}
};

// Where the parts of a block's shared memory are: the state and the weights of a group, and behind
// those what all share.
struct LargeMemoryAt {
  char* parts_pointer;
  std::uint32_t state, weights, parts;
  int parts_bytes, turns_behind;

  __device__ __forceinline__ LargeMemoryAt(float4* memory, const dispatch::LargeMemory& bytes,
                                           int group)
      : parts_bytes(static_cast<int>(bytes.parts)),
        turns_behind(static_cast<int>(bytes.parts + bytes.rows)) {
    const int state_bytes = static_cast<int>(bytes.state);
    const int weight_bytes = static_cast<int>(bytes.weights);
    const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
    state = shared + group * state_bytes / dispatch::kLargeGroups;
    weights = shared + state_bytes + group * weight_bytes / dispatch::kLargeGroups;
    parts = shared + state_bytes + weight_bytes;
    parts_pointer = reinterpret_cast<char*>(memory) + state_bytes + weight_bytes;
  }
  template <class T>
  __device__ __forceinline__ T* rows() const {
    return reinterpret_cast<T*>(parts_pointer + parts_bytes);
  }
  __device__ __forceinline__ std::uint32_t turns() const { return parts + turns_behind; }
};

// A group's part of R: kRows rows by as many columns as its share of the sum has, in pieces of 16.
// kKept of those are in registers, the rest in shared memory.
template <int kKept, int kRows>
struct LargeWeights {
  static constexpr int kAll = 1 << 20;  // pieces

  std::uint32_t kept[kKept][4];
  warp_group::Shared shared;
  int pieces;

  // word(row, column) is that and the next column.
  template <class Word>
  __device__ __forceinline__ LargeWeights(const LargeShare& share, int pieces, std::uint32_t at,
                                          const Word& word)
      : shared(at, kRows), pieces(pieces) {
    const int warp = share.thread / 32, lane = share.thread % 32;
#pragma unroll
    for (int piece = 0; piece < kKept; ++piece)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        kept[piece][i] = word(warp * 16 + lane / 4 + i % 2 * 8,
                              piece * dispatch::kLargePiece + lane % 4 * 2 + i / 2 * 8);
      }
    const int behind = (pieces - kKept) * 2 * kRows;  // of 16 bytes
    for (int i = share.thread; i < behind; i += kGroupThreads) {
      const int row = i % kRows;
      const int column = kKept * dispatch::kLargePiece + i / kRows * 8;
      store_shared(at + i * 16, make_uint4(word(row, column), word(row, column + 2),
                                           word(row, column + 4), word(row, column + 6)));
    }
  }
  // Begins the products of pieces from `first` on, `most` at most, once all of the group have what
  // they read: state(piece), columns in shared memory. Both are constants once loops are unrolled:
  // a product behind a branch would be awaited by the next one.
  template <class T, int kSums, class State>
  __device__ __forceinline__ void begin(T, float (&sum)[kSums], int first, int most,
                                        const State& state) const {
    const int end = min(first + most, pieces);
    warp_group::begin(sum);
#pragma unroll
    for (int piece = 0; piece < kKept; ++piece) {
      if (piece < first || piece >= first + most) continue;
      warp_group::multiply(T(), sum, kept[piece], state(piece));
    }
    for (int piece = max(first, kKept); piece < end; ++piece) {
      warp_group::begin(sum);  // which each turn of a loop wants
      warp_group::multiply(T(), sum, shared.at(piece - kKept, kRows), state(piece));
    }
    warp_group::end();
  }
};

// Rows of a block's lines in shared memory, of so many turns: a value of all of its units side by
// side, then the next value.
template <class T, int kLines, int kUnits_, int kValues>
struct LargeRows {
  static constexpr int kUnits = kUnits_, kPiece = 16 / sizeof(T);
  static constexpr int kPieces = kUnits / kPiece;  // of a value
  static constexpr int kRow = dispatch::large_row(kUnits, kValues);
  static constexpr int kAtOnce = kGroupThreads / (kLines / 2 * kPieces);  // values of a group
  static_assert(kValues <= dispatch::kLargeValues, "the planner counts what the kernel takes");

  T* rows;

  __device__ __forceinline__ T* of(int line, int turn = 0) const {
    return rows + (turn * kLines + line) * kRow;
  }
  // The line of the block whose pieces this thread has, and whether it has the first of them.
  __device__ __forceinline__ static int line(const LargeShare& share) {
    return share.first_line + share.thread / kPieces % (kLines / 2);
  }
  __device__ __forceinline__ static bool is_first(const LargeShare& share) {
    return share.thread < kLines / 2 * kPieces && share.thread % kPieces == 0;
  }
  // f(value, unit): this thread's pieces of so many values of its line.
  template <int kCount, class F>
  __device__ __forceinline__ static void each_piece(const LargeShare& share, F&& f) {
#pragma unroll
    for (int i = 0; i < kCount; i += kAtOnce) {
      const int value = i + share.thread / (kLines / 2 * kPieces);
      if (value < kCount) f(value, share.thread % kPieces * kPiece);
    }
  }
  // Tensors of the caller may lie anywhere.
  __device__ __forceinline__ static void fetch_piece(T* to, const T* from) {
    if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
      scan::cuda::copy_async<16>(to, from);
      return;
    }
    for (int i = 0; i < kPiece; ++i) to[i] = from[i];
  }
  __device__ __forceinline__ static void store_piece(T* to, const T* from) {
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      return;
    }
    for (int i = 0; i < kPiece; ++i) to[i] = from[i];
  }
};

// Nothing is drawn for a step.
struct NoDraws {
  __device__ explicit operator bool() const { return false; }
  template <class Memory>
  __device__ cell::StepState<float, 2> updates(Index) const {
    return {1.0f, 1.0f};
  }
};

// Launches blocks that wait for one another, by clusters of so many.
template <class T>
cudaError_t launch_large(void (*kernel)(CudaDenseArgs<T, float>, int, int, std::uint32_t*),
                         const CudaDenseArgs<T, float>& args,
                         const dispatch::PersistentShape& shape, std::int64_t shared, int cluster,
                         void* exchange, cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.slices * shape.groups));
  config.blockDim = dim3(dispatch::kLargeThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  auto* const words = static_cast<std::uint32_t*>(exchange);
  return cudaLaunchKernelEx(&config, kernel, args, shape.slices, shape.groups, words);
}

}  // namespace scanrnn::persistent
