// SPDX-License-Identifier: Apache-2.0
// The vectorised kernels as a table of plain functions: one table for each instruction set that the
// library was compiled for, chosen at run time. Every function is called by all threads of a team.
#pragma once

#include "cpu/dense.h"
#include "cpu/half.h"
#include "recurrence/linear_backward.h"
#include "recurrence/scan.h"
#include "scanrnn/registry.h"
#include "scanrnn/scan/cpu.h"
#include "scanrnn/tensor.h"
#include "stack/line_step.h"

namespace scanrnn {

// What part of the sequence a call walks and the memory it works in. States and elements of a row
// are whole vectors, so memory for them is counted in units of padded(hidden).
struct CpuSchedule {
  scan::Team team;
  Index lines = 0, hidden = 0, steps = 0;
  Index first_line = 0;  // of these lines among those of the carry
  Index chunk = 0;       // 0: fused-sequential; else the chunk of the parallel scan
  bool log_domain = true;
  bool by_units = false;   // bare recurrence: rows are units, not vectors
  void* carry = nullptr;   // kCarryFields values for each padded unit and line
  void* totals = nullptr;  // kTotalFields, and for each chunk (parallel scan)
  void* starts = nullptr;  // kCarryFields, and for each thread (parallel scan)
  // The bare recurrence: whether what it writes is too large for the caches.
  bool streams = false;
};
inline constexpr Index kCarryFields = 2, kTotalFields = 3;
// The same of log_output, at most.
inline constexpr Index kLogCarryFields = 4, kLogTotalFields = 7;

inline constexpr int kMaxVariants = 3;

template <class T>
struct CpuCellKernels {
  void (*forward)(const CpuSchedule&, const ForwardKernelArgs<T>&) = nullptr;
  void (*backward)(const CpuSchedule&, const BackwardKernelArgs<T>&) = nullptr;
  // What kernels read of the vectors of a cell, [count], and the cotangents from their sums over
  // tokens, in place; null where both are the same.
  void (*prepare_vectors)(const T* vectors, Index count, T* out) = nullptr;
  void (*finish_vectors)(const T* vectors, Index count, T* sums) = nullptr;
};

template <class T>
struct CpuTypeKernels {
  CpuCellKernels<T> cells[kCellCount][kMaxVariants];   // linear and diagonal ones
  CpuDenseKernels<T> dense[kCellCount][kMaxVariants];  // dense ones
  CpuDenseTools<T> tools;
  // h is [lines][hidden], `line` apart; null: zeros to the carry, or nothing from it.
  void (*load_carry)(const CpuSchedule&, const T* h, Index line);
  void (*store_carry)(const CpuSchedule&, T* h, Index line);
  // sums[j] = sum over i of values[i * stride + j], compensated.
  void (*column_sums)(const scan::Team&, const T* values, Index count, Index stride, Index columns,
                      T* sums);
};

// The bare recurrence in any form, the states at the ends of time included. T is as memory has it.
template <class T>
struct CpuScanKernels {
  void (*forward)(const CpuSchedule&, const ScanKernelArgs<T>&);
  void (*backward)(const CpuSchedule&, const ScanBackwardKernelArgs<T>&);
};
struct CpuScanTable {
  CpuScanKernels<Float16> float16;
  CpuScanKernels<BFloat16> bfloat16;
  CpuScanKernels<float> float32;
  CpuScanKernels<double> float64;
  CpuScanKernels<scan::Complex<float>> complex64;
  CpuScanKernels<scan::Complex<double>> complex128;
};

// Steps of whole lines (recurrence/line.h), and norms of rows; by one thread each.
template <class T>
using CpuLineKernel = void (*)(LinePhase, const LineArgs<T, T>&, Index line);
template <class T>
struct CpuLineKernels {
  CpuLineKernel<T> line[kCellCount][kMaxVariants];  // null of a cell that is not kByLines
  void (*norm)(const T* from, const T* scale, const T* bias, T* to, Index width);
  void (*norm_vjp)(const T* from, const T* scale, const T* d, T* dfrom, T* dscale, Index width);
};
struct CpuLineTable {
  CpuLineKernels<float> float32;
  CpuLineKernels<double> float64;
};

struct CpuKernels {
  const char* name;  // of the instruction set
  CpuTypeKernels<float> float32;
  CpuTypeKernels<double> float64;
  const CpuScanTable& scans;
  const CpuLineTable& lines;
  // Contiguous conversion between a dtype and its compute type.
  void (*convert)(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, Index count);
};

// The best table for this processor; the same one every time.
const CpuKernels& cpu_kernels();

}  // namespace scanrnn
