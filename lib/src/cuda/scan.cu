// SPDX-License-Identifier: Apache-2.0
// The bare recurrence on CUDA: the schedule of its plan and the kernels of its dtype.
#include "cuda/kernels/scan.h"
#include "cuda/run.cuh"
#include "recurrence/scan_walk.h"

namespace scanrnn {
namespace {

// Calls use(T()) with the type of `dtype`.
template <class F>
void with_number(Dtype dtype, F&& use) {
  if (dtype == Dtype::complex64) return use(complex64());
  if (dtype == Dtype::complex128) return use(complex128());
  with_type(dtype, use);
}

CudaSchedule schedule_of(const dispatch::Plan& plan, cudaStream_t stream) {
  CudaSchedule s;
  s.extent = {plan.problem.batch, plan.problem.hidden_size, plan.problem.steps};
  s.strategy = plan.strategy;
  s.across_blocks = plan.across_blocks;
  s.log_domain = plan.problem.log_domain;
  s.units = static_cast<int>(plan.device.units);
  s.shared = static_cast<std::size_t>(plan.device.shared_bytes);
  s.stream = stream;
  return s;
}

// Takes the memory that the kernels of `table` need and runs them with `args`, made when it runs.
template <class Table, class Args>
void run(const dispatch::Plan& plan, const Table& table, ScanForm form, Arena& arena,
         cudaStream_t stream, Args&& args) {
  CudaSchedule s = schedule_of(plan, stream);
  s.workspace = arena.take(table.workspace(s, form));
  if (!arena.counting()) SCANRNN_CUDA(table.run(s, args()));
}

}  // namespace

void cuda_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena,
               cudaStream_t stream) {
  with_number(args.h.dtype, [&](auto type) {
    using T = decltype(type);
    run(plan, cuda_scan_kernels<T>(), args.form, arena, stream,
        [&] { return forward_args<T>(args, 0); });
  });
}

void cuda_scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args, Arena& arena,
                        cudaStream_t stream) {
  with_number(args.dh.dtype, [&](auto type) {
    using T = decltype(type);
    run(plan, cuda_scan_backward_kernels<T>(), args.form, arena, stream,
        [&] { return backward_args<T>(args, 0); });
  });
}

}  // namespace scanrnn
