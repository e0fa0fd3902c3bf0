// SPDX-License-Identifier: Apache-2.0
// The bare recurrence on CUDA: the schedule of its plan and the kernels of its dtype.
#include "cuda/kernels/scan.h"
#include "cuda/pointwise.cuh"
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

// Rows whose steps are adjacent are lines of their own: so many of each line, or 0.
Index rows_of_a_split(const dispatch::Plan& plan) {
  return plan.along_lanes && plan.problem.time_contiguous ? plan.problem.hidden_size : 0;
}

CudaSchedule schedule_of(const dispatch::Plan& plan, cudaStream_t stream) {
  CudaSchedule s;
  s.extent = {plan.problem.batch, plan.problem.hidden_size, plan.problem.steps};
  if (rows_of_a_split(plan) > 0) s.extent = {s.extent.lines * s.extent.rows, 1, s.extent.steps};
  s.strategy = plan.strategy;
  s.across_blocks = plan.across_blocks;
  s.along_lanes = plan.along_lanes;
  s.log_domain = plan.log_domain;
  s.units = static_cast<int>(plan.device.units);
  s.shared = static_cast<std::size_t>(plan.device.shared_bytes);
  s.stream = stream;
  return s;
}

// The marks of resets that all rows of a line share, in the order of the walk: a line's one after
// another. Backward, the step that is walked next is the one before in time.
__global__ void __launch_bounds__(pointwise::kThreads)
    mark_resets(const Grid<const std::uint8_t> reset, Index lines, Index steps,
                std::uint32_t* marks) {
  for (Index i = pointwise::first_item(); i < lines * steps; i += pointwise::item_stride()) {
    const auto line = reset.at_line(i / steps);
    const Index t = i % steps;
    marks[i] =
        (*line.at(t) ? mark::kReset : 0) | (t > 0 && *line.at(t - 1) ? mark::kResetAfter : 0);
  }
}
// A word a step is little beside a warp of rows.
bool takes_marks(const CudaSchedule& s, ScanForm form) {
  return form != ScanForm::log_output && s.extent.rows >= scan::cuda::kLanes;
}

// Takes the memory that the kernels of `table` need and runs them with `args`, made when it runs.
template <class Table, class MakeArgs>
void run(const dispatch::Plan& plan, const Table& table, ScanForm form, Arena& arena,
         cudaStream_t stream, MakeArgs&& make_args) {
  CudaSchedule s = schedule_of(plan, stream);
  const Index steps = s.extent.steps, count = s.extent.lines * steps;
  s.workspace = arena.take(table.workspace(s, form));
  auto* const marks = static_cast<std::uint32_t*>(
      takes_marks(s, form) ? arena.take(static_cast<std::size_t>(count) * sizeof(std::uint32_t))
                           : nullptr);
  if (arena.counting()) return;
  const auto args = make_args();
  if (marks && args.reset.data && args.reset.row == 0 && count > 0) {
    mark_resets<<<pointwise::blocks_for(count), pointwise::kThreads, 0, stream>>>(
        args.reset, s.extent.lines, steps, marks);
    SCANRNN_CUDA(cudaGetLastError());
    s.marks = {marks, steps, 1, false};
  }
  SCANRNN_CUDA(table.run(s, args));
}

}  // namespace

void cuda_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena,
               cudaStream_t stream) {
  with_number(args.h.dtype, [&](auto type) {
    using T = decltype(type);
    run(plan, cuda_scan_kernels<T>(), args.form, arena, stream,
        [&] { return forward_args<T>(args, rows_of_a_split(plan)); });
  });
}

void cuda_scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args, Arena& arena,
                        cudaStream_t stream) {
  with_number(args.dh.dtype, [&](auto type) {
    using T = decltype(type);
    run(plan, cuda_scan_backward_kernels<T>(), args.form, arena, stream,
        [&] { return backward_args<T>(args, rows_of_a_split(plan)); });
  });
}

}  // namespace scanrnn
