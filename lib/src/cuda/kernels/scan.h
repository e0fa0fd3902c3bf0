// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the bare recurrence as tables of launchers: two tables for each dtype, each
// compiled by itself.
#pragma once

#include "cuda/kernels/linear.h"
#include "recurrence/log_scan.h"
#include "scanrnn/dispatch/tiles.h"
#include "stack/backend.h"

namespace scanrnn {

using complex64 = scan::Complex<float>;
using complex128 = scan::Complex<double>;

// Every launcher is asynchronous and returns the launch's status; workspace() is enough for what
// the tensors may turn out to be. A schedule's marks are those of resets that all rows share.
template <class T>
struct CudaScanKernels {
  cudaError_t (*run)(const CudaSchedule&, const ScanKernelArgs<T>&);
  std::size_t (*workspace)(const CudaSchedule&, ScanForm);
};
template <class T>
struct CudaScanBackwardKernels {
  cudaError_t (*run)(const CudaSchedule&, const ScanBackwardKernelArgs<T>&);
  std::size_t (*workspace)(const CudaSchedule&, ScanForm);
};

// Defined by cuda/kernels/scan.cu and cuda/kernels/scan_backward.cu.
template <class T>
const CudaScanKernels<T>& cuda_scan_kernels();
template <class T>
const CudaScanBackwardKernels<T>& cuda_scan_backward_kernels();

// The call that a backend makes (cuda/scan.cu); with an arena that only counts, nothing runs.
void cuda_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena, cudaStream_t stream);
void cuda_scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args, Arena& arena,
                        cudaStream_t stream);

template <class T>
inline constexpr bool kIsComplex = false;
template <class Real>
inline constexpr bool kIsComplex<scan::Complex<Real>> = true;

// ---- 16-bit rows in pairs

// Pairs do not lie along time.
template <class Memory>
inline constexpr Kernels kKernelsOf = Memory::kUnits == 1 ? Kernels::all : Kernels::lines;

// Whether pairs pay for a walk of these sizes.
inline bool pairs_pay(const CudaSchedule& s) {
  const bool across = s.strategy == dispatch::Strategy::parallel_scan && s.across_blocks;
  return s.extent.rows % 2 == 0 && !s.along_lanes &&
         dispatch::cuda_pairs_pay(s.extent.lines * s.extent.rows, s.units, across);
}
// Whether a 16-bit tensor is made of words.
template <class U>
bool has_pairs(const Grid<U>& x) {
  return !x.data || (reinterpret_cast<std::uintptr_t>(x.data) % (2 * sizeof(U)) == 0 &&
                     x.line % 2 == 0 && x.step % 2 == 0 && x.row == 1);
}

// What composes steps: z of a logarithm has digits that 1 - a has not.
template <class V, bool kLogForm>
using BareOp = std::conditional_t<kLogForm, scan::AnyAffineOp<V>, scan::AnyPlainOp<V>>;

// The same tensor by the rows of Memory: a unit, or a pair of them.
template <class Memory, class U>
auto rows_of(const Grid<U>& x) {
  using Row = std::conditional_t<std::is_const_v<U>, const typename Memory::T, typename Memory::T>;
  Grid<Row> out{reinterpret_cast<Row*>(x.data), x.line, x.step, x.row, x.split};
  if constexpr (Memory::kUnits > 1) {
    out.line /= Memory::kUnits;
    out.step /= Memory::kUnits;
  }
  return out;
}
template <class Memory>
CudaSchedule rows_of(CudaSchedule s) {
  s.extent.rows /= Memory::kUnits;
  return s;
}

// ---- one step of 16-bit rows that are one run of memory: each is a line of its own

// Whether there is one step, which is walked where it lies.
inline bool is_one_step(const CudaSchedule& s) {
  return s.extent.steps == 1 && s.strategy != dispatch::Strategy::parallel_scan;
}
// Whether a tensor's rows of a step are one run of whole vectors.
template <class U>
bool is_run(const Grid<U>& x, const scan::Extent& extent) {
  return !x.data ||
         (reinterpret_cast<std::uintptr_t>(x.data) % scan::cuda::kVectorBytes == 0 &&
          (x.row == 1 || extent.rows == 1) && (x.line == extent.rows || extent.lines == 1));
}
template <class U>
Grid<U> as_lines(const Grid<U>& x) {
  return {x.data, 1, 1};
}
inline CudaSchedule as_lines(CudaSchedule s) {
  s.extent = {s.extent.lines * s.extent.rows, 1, s.extent.steps};
  return s;
}

}  // namespace scanrnn
