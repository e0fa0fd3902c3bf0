// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the bare recurrence, backward, for one dtype, SCANRNN_CUDA_TYPE. Cotangents
// are signed and decay: they are walked linearly, and cross blocks so, whatever the form.
#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/scan.h"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;

bool has_pairs(const ScanBackwardKernelArgs<T>& a) {
  return has_pairs(a.a) && has_pairs(a.h) && has_pairs(a.dh) && has_pairs(a.h0) &&
         has_pairs(a.da) && has_pairs(a.db) && has_pairs(a.dh0);
}

bool is_run(const ScanBackwardKernelArgs<T>& a, const scan::Extent& extent) {
  return is_run(a.a, extent) && is_run(a.dh, extent) && is_run(a.h0, extent) &&
         is_run(a.da, extent) && is_run(a.db, extent) && is_run(a.dh0, extent);
}
ScanBackwardKernelArgs<T> as_lines(const ScanBackwardKernelArgs<T>& a) {
  ScanBackwardKernelArgs<T> out;
  out.a = as_lines(a.a);
  out.h0 = as_lines(a.h0);
  out.h = as_lines(a.h);
  out.dh = as_lines(a.dh);
  out.da = as_lines(a.da);
  out.db = as_lines(a.db);
  out.dh0 = as_lines(a.dh0);
  return out;
}

// States a step before, in the order of the walk.
template <class U>
Grid<U> a_step_on(Grid<U> states) {
  states.data += states.step;
  return states;
}

template <class Memory, bool kLogForm>
using Marked = MarkedScanSource<BareBackwardSource<Memory, kLogForm, NoResets>, true>;
template <class Memory, bool kLogForm>
using MarkedSink = MarkedScanSink<BareBackwardSink<Memory, kLogForm>>;

template <class Memory, bool kLogForm>
cudaError_t run_bare(const CudaSchedule& units, const ScanBackwardKernelArgs<T>& a) {
  using V = typename Memory::V;
  using Scalar = scan::Scalar<V>;
  const CudaSchedule s = rows_of<Memory>(units);
  const auto source = [&](auto cuts) {
    return BareBackwardSource<Memory, kLogForm, decltype(cuts)>{rows_of<Memory>(a.a),
                                                                a_step_on(rows_of<Memory>(a.h)),
                                                                rows_of<Memory>(a.dh),
                                                                rows_of<Memory>(a.b),
                                                                rows_of<Memory>(a.sign_b),
                                                                rows_of<Memory>(a.h0),
                                                                cuts,
                                                                s.extent.rows,
                                                                s.extent.steps - 1};
  };
  const BareBackwardSink<Memory, kLogForm> sink{rows_of<Memory>(a.da), rows_of<Memory>(a.db),
                                                s.extent.rows, s.extent.steps};
  const BareEnds<Memory> ends{{}, rows_of<Memory>(a.dh0), s.extent.rows};
  if (s.marks.data) {
    return launch_by<scan::AnyResetOp<V>, scan::AnyResetOp<Scalar>, Kernels::general>(
        s, Marked<Memory, kLogForm>{source(NoResets()), s.marks},
        MarkedSink<Memory, kLogForm>{sink},
        MarkedScanEnds<Memory>{ends, s.marks.from(s.extent.steps - 1)});
  }
  if constexpr (Memory::kUnits == 1) {
    if (a.reset.data) {
      return launch_bare<scan::AnyResetOp<V>, scan::AnyResetOp<Scalar>, Kernels::general>(
          s, source(Resets<Memory>{a.reset, s.extent.steps}), sink, ends);
    }
  }
  return launch_bare<BareOp<V, kLogForm>, BareOp<Scalar, kLogForm>, kKernelsOf<Memory>>(
      s, source(NoResets()), sink, ends);
}
template <class Memory>
using LogStateBackwardOp = scan::AnyResetOp<typename Memory::V>;
template <class Memory>
cudaError_t run_log_states(const CudaSchedule& s, const ScanBackwardKernelArgs<T>& a) {
  using Op = LogStateBackwardOp<Memory>;
  const LogStateBackwardSource<Memory> source{
      a.a,           a_step_on(a.h),    a.dh,
      a.b,           a.sign_b,          a_step_on(a.sign_h),
      a.h0,          a.sign_h0,         {a.reset, s.extent.steps},
      s.extent.rows, s.extent.steps - 1};
  return launch_by<Op, Op, Kernels::all>(
      s, source, LogStateBackwardSink<Memory>({a.da, a.db, s.extent.rows, s.extent.steps}),
      BareEnds<Memory>{{}, a.dh0, s.extent.rows});
}

cudaError_t run(const CudaSchedule& s, const ScanBackwardKernelArgs<T>& a) {
  using Memory = scan::Units<T>;
  if constexpr (!kIsComplex<T>) {
    if (a.form == ScanForm::log_output) return run_log_states<Memory>(s, a);
    if (a.form == ScanForm::log) return run_bare<Memory, true>(s, a);
    if constexpr (sizeof(T) == 2) {
      if (!a.reset.data && is_one_step(s) && is_run(a, s.extent)) {
        return run_bare<Memory, false>(as_lines(s), as_lines(a));
      }
      if ((!a.reset.data || s.marks.data) && pairs_pay(s) && has_pairs(a)) {
        return run_bare<scan::Pairs<T>, false>(s, a);
      }
    }
  }
  return run_bare<Memory, false>(s, a);
}

template <class Memory, bool kLogForm>
std::size_t workspace_of_form(const CudaSchedule& units) {
  using Scalar = scan::Scalar<typename Memory::V>;
  const CudaSchedule s = rows_of<Memory>(units);
  return std::max(bare_workspace<BareOp<Scalar, kLogForm>, BareBackwardSource<Memory, kLogForm>,
                                 BareBackwardSink<Memory, kLogForm>, kKernelsOf<Memory>>(s),
                  workspace_by<scan::AnyResetOp<Scalar>, Marked<Memory, kLogForm>,
                               MarkedSink<Memory, kLogForm>, Kernels::general>(s));
}
std::size_t workspace(const CudaSchedule& s, ScanForm form) {
  using Memory = scan::Units<T>;
  if constexpr (!kIsComplex<T>) {
    if (form == ScanForm::log_output) {
      return workspace_by<LogStateBackwardOp<Memory>, LogStateBackwardSource<Memory>,
                          LogStateBackwardSink<Memory>, Kernels::all>(s);
    }
    if (form == ScanForm::log) return workspace_of_form<Memory, true>(s);
    if constexpr (sizeof(T) == 2) {
      return std::max(workspace_of_form<Memory, false>(s),
                      workspace_of_form<scan::Pairs<T>, false>(s));
    }
  }
  return workspace_of_form<Memory, false>(s);
}

}  // namespace

template <>
const CudaScanBackwardKernels<T>& cuda_scan_backward_kernels<T>() {
  static constexpr CudaScanBackwardKernels<T> kernels{run, workspace};
  return kernels;
}

}  // namespace scanrnn
