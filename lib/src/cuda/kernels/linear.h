// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels as tables of launchers: one table for each cell and dtype, compiled by itself.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "recurrence/ragged.h"
#include "scanrnn/dispatch/plan.h"
#include "scanrnn/registry.h"
#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn {

inline constexpr int kMaxCudaVariants = 3;

// Memory of a layer: the product's epilogue has added the bias, but in float64, which has none.
template <class T>
struct LayerUnits : scan::Units<T> {
  static constexpr bool kAddsBias = std::is_same<T, double>::value, kHasVectors = false;
  static constexpr bool kTiles = true;
};

// What a launch walks, and how. `initial` and `final` are [lines][rows], their lines apart; both
// may be null. With marks they are [sequences][rows]. Every launcher is asynchronous and returns
// the launch's status.
struct CudaSchedule {
  scan::Extent extent;
  dispatch::Strategy strategy = dispatch::Strategy::fused_sequential;
  bool across_blocks = false;  // parallel scan: time over blocks, which needs `workspace`
  bool along_lanes = false;    // and along the lanes of a warp
  bool log_domain = true;
  int units = 1;           // multiprocessors
  std::size_t shared = 0;  // bytes of shared memory that a block may take
  const void* initial = nullptr;
  void* final = nullptr;
  Index initial_line = 0, final_line = 0;
  bool ragged = false;  // there are marks and sequences, or will be
  bool drawn = false;   // there are draws
  Marks marks;          // walked as the tokens are
  RaggedTables tables;
  const SequenceBounds* sequences = nullptr;
  bool against_time = false;  // the walk of a ragged batch
  void* workspace = nullptr;
  void* sums = nullptr;  // of a walk that adds cotangents up: see SummingSink
  cudaStream_t stream = nullptr;
};

// Which kernels there are: those that walk lines or split time over all blocks, which can do
// everything, that of one block, and those with time along lanes.
enum class Kernels : std::uint8_t { general, lines, all };

// h_0 and h_T as the kernels read and write them.
template <class Memory>
SCANRNN_HD StateEnds<Memory> ends_of(const CudaSchedule& s) {
  using T = typename Memory::T;
  return {{static_cast<const T*>(s.initial), s.initial_line, 0},
          {static_cast<T*>(s.final), s.final_line, 0},
          s.extent.rows};
}

// A projection and its recurrence in one launch. Rows of weight are [gates * H, C].
template <class T>
struct DirectKernelArgs {
  const T* weight = nullptr;
  Index weight_stride = 0, input = 0;
  const T *bias = nullptr,
          *vectors = nullptr;  // bias: of row blocks [first_bias, last_bias), or null
  int first_bias = 0, last_bias = 0;
  Strided<const T> x, skip;   // skip is null where the last row block projects it
  Strided<T> preactivations;  // kept for backward, or null
  Strided<T> y, states;
  Masks masks = {};
};

template <class T>
struct CudaCellKernels {
  cudaError_t (*forward)(const CudaSchedule&, const ForwardKernelArgs<T>&) = nullptr;
  cudaError_t (*backward)(const CudaSchedule&, const BackwardKernelArgs<T>&) = nullptr;
  cudaError_t (*direct)(const CudaSchedule&, const DirectKernelArgs<T>&) = nullptr;
  // The larger of what forward and backward take.
  std::size_t (*workspace)(const CudaSchedule&) = nullptr;
  // The cotangents of vectors from their sums over tokens, in place; null where they are the same.
  cudaError_t (*finish_vectors)(const T* vectors, T* sums, Index count, cudaStream_t) = nullptr;
};
template <class T>
using CudaCellTable = CudaCellKernels<T>[kMaxCudaVariants];

// Defined by cuda/kernels/linear.cu, compiled once for each cell and dtype.
template <Cell cell, class T>
const CudaCellTable<T>& cuda_cell_table();

}  // namespace scanrnn
