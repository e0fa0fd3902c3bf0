// SPDX-License-Identifier: Apache-2.0
// The kernels of the bare recurrence for one instruction set; compiled once for each, as
// cpu/kernels/table.cpp is.
#include "cpu/kernels/scan.h"
#include "cpu/kernels/bare.h"

namespace scanrnn::HWY_NAMESPACE {
namespace {

template <class T, bool kByUnits>
void forward_by(const CpuSchedule& s, const ScanKernelArgs<T>& a) {
  using Memory = typename MemoryOf<T, kByUnits>::Type;
  if constexpr (kIsReal<T>) {
    if (a.form == ScanForm::log_output) return log_state_forward<Memory>(s, a);
    if constexpr (kByUnits) {
      if (a.form == ScanForm::log) return bare_forward<Memory, true>(s, a);
      return bare_forward<Memory, false>(s, a);
    } else {
      return (a.form == ScanForm::log ? bare<T, true> : bare<T, false>)(s, a);
    }
  } else {
    bare_forward<Memory, false>(s, a);
  }
}
template <class T, bool kByUnits>
void backward_by(const CpuSchedule& s, const ScanBackwardKernelArgs<T>& a) {
  using Memory = typename MemoryOf<T, kByUnits>::Type;
  if constexpr (kIsReal<T>) {
    if (a.form == ScanForm::log_output) return log_state_backward<Memory>(s, a);
    if constexpr (kByUnits) {
      if (a.form == ScanForm::log) return bare_backward<Memory, true>(s, a);
      return bare_backward<Memory, false>(s, a);
    } else {
      return (a.form == ScanForm::log ? bare_back<T, true> : bare_back<T, false>)(s, a);
    }
  } else {
    bare_backward<Memory, false>(s, a);
  }
}

template <class T>
void forward(const CpuSchedule& s, const ScanKernelArgs<T>& a) {
  (s.by_units ? forward_by<T, true> : forward_by<T, false>)(s, a);
}
template <class T>
void backward(const CpuSchedule& s, const ScanBackwardKernelArgs<T>& a) {
  (s.by_units ? backward_by<T, true> : backward_by<T, false>)(s, a);
}
template <class T>
CpuScanKernels<T> kernels_of() {
  return {&forward<T>, &backward<T>};
}

}  // namespace

const CpuScanTable& scan_table() {
  static const CpuScanTable kernels{kernels_of<Float16>(),
                                    kernels_of<BFloat16>(),
                                    kernels_of<float>(),
                                    kernels_of<double>(),
                                    kernels_of<scan::Complex<float>>(),
                                    kernels_of<scan::Complex<double>>()};
  return kernels;
}

}  // namespace scanrnn::HWY_NAMESPACE
