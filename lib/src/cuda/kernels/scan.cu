// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the bare recurrence for one dtype, SCANRNN_CUDA_TYPE.
#include <algorithm>
#include <type_traits>

#include "cuda/kernels/launch.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;

// Whether a 16-bit tensor is made of words.
template <class U>
bool has_pairs(const Strided<U>& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % (2 * sizeof(U)) == 0 && x.line % 2 == 0 &&
         x.step % 2 == 0;
}
bool has_pairs(const CudaSchedule& s, const ScanKernelArgs<T>& a) {
  const Strided<const T> initial{static_cast<const T*>(s.initial), s.initial_line, 0};
  const Strided<const T> final{static_cast<const T*>(s.final), s.final_line, 0};
  return s.extent.rows % 2 == 0 && has_pairs(a.a) && has_pairs(a.b) && has_pairs(a.sign_b) &&
         has_pairs(a.h) && has_pairs(initial) && has_pairs(final);
}

// The same tensor by the rows of Memory: a unit, or a pair of them.
template <class Memory, class U>
auto rows_of(const Strided<U>& x) {
  using Row = std::conditional_t<std::is_const_v<U>, const typename Memory::T, typename Memory::T>;
  return Strided<Row>{reinterpret_cast<Row*>(x.data), x.line / Memory::kUnits,
                      x.step / Memory::kUnits};
}
template <class Memory>
CudaSchedule rows_of(CudaSchedule s) {
  s.extent.rows /= Memory::kUnits;
  s.initial_line /= Memory::kUnits;
  s.final_line /= Memory::kUnits;
  return s;
}

template <class Memory, bool kLogForm>
cudaError_t run_by(const CudaSchedule& units, const ScanKernelArgs<T>& a) {
  const CudaSchedule s = rows_of<Memory>(units);
  const BareSource<Memory, kLogForm> source{rows_of<Memory>(a.a), rows_of<Memory>(a.b),
                                            rows_of<Memory>(a.sign_b), s.extent.rows,
                                            s.extent.steps};
  return launch<Memory>(s, source, BareSink<Memory>{rows_of<Memory>(a.h), s.extent.rows});
}
template <class Memory>
std::size_t workspace_by(const CudaSchedule& units, bool log_form) {
  const CudaSchedule s = rows_of<Memory>(units);
  return log_form ? workspace_of<BareSource<Memory, true>, BareSink<Memory>>(s)
                  : workspace_of<BareSource<Memory, false>, BareSink<Memory>>(s);
}

cudaError_t run(const CudaSchedule& s, const ScanKernelArgs<T>& a, bool log_form) {
  if constexpr (sizeof(T) == 2) {
    using Memory = scan::Pairs<T>;
    const bool across = s.strategy == dispatch::Strategy::parallel_scan && s.across_blocks;
    if (dispatch::cuda_pairs_pay(s.extent.lines * s.extent.rows, s.units, across) &&
        has_pairs(s, a)) {
      return log_form ? run_by<Memory, true>(s, a) : run_by<Memory, false>(s, a);
    }
  }
  using Memory = scan::Units<T>;
  return log_form ? run_by<Memory, true>(s, a) : run_by<Memory, false>(s, a);
}

// Enough for either kind of rows: addresses decide, and are not known yet.
std::size_t workspace(const CudaSchedule& s, bool log_form) {
  const std::size_t by_units = workspace_by<scan::Units<T>>(s, log_form);
  if constexpr (sizeof(T) == 2) {
    return std::max(by_units, workspace_by<scan::Pairs<T>>(s, log_form));
  }
  return by_units;
}

}  // namespace

template <>
const CudaScanKernels<T>& cuda_scan_kernels<T>() {
  static constexpr CudaScanKernels<T> kernels{run, workspace};
  return kernels;
}

}  // namespace scanrnn
