// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the bare recurrence for one dtype, SCANRNN_CUDA_TYPE.
#include "cuda_launch.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;
using Memory = scan::Units<T>;

template <bool kLogForm>
BareSource<Memory, kLogForm> source_of(const CudaSchedule& s, const ScanKernelArgs<T>& a) {
  return {a.a, a.b, a.sign_b, s.extent.rows, s.extent.steps};
}

cudaError_t run(const CudaSchedule& s, const ScanKernelArgs<T>& a, bool log_form) {
  const BareSink<Memory> sink{a.h, s.extent.rows};
  return log_form ? launch(s, source_of<true>(s, a), sink)
                  : launch(s, source_of<false>(s, a), sink);
}

std::size_t workspace(const CudaSchedule& s, bool log_form) {
  return log_form ? workspace_of<BareSource<Memory, true>>(s)
                  : workspace_of<BareSource<Memory, false>>(s);
}

}  // namespace

template <>
const CudaScanKernels<T>& cuda_scan_kernels<T>() {
  static constexpr CudaScanKernels<T> kernels{run, workspace};
  return kernels;
}

}  // namespace scanrnn
