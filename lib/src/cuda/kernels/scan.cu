// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the bare recurrence, forward, for one dtype, SCANRNN_CUDA_TYPE.
#include "cuda/kernels/scan.h"

#include <algorithm>
#include <type_traits>

#include "cuda/kernels/launch.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;

bool has_pairs(const ScanKernelArgs<T>& a) {
  return has_pairs(a.a) && has_pairs(a.b) && has_pairs(a.sign_b) && has_pairs(a.h) &&
         has_pairs(a.h0);
}

bool is_run(const ScanKernelArgs<T>& a, const scan::Extent& extent) {
  return is_run(a.a, extent) && is_run(a.b, extent) && is_run(a.h, extent) && is_run(a.h0, extent);
}
ScanKernelArgs<T> as_lines(const ScanKernelArgs<T>& a) {
  ScanKernelArgs<T> out;
  out.form = a.form;
  out.a = as_lines(a.a);
  out.b = as_lines(a.b);
  out.h0 = as_lines(a.h0);
  out.h = as_lines(a.h);
  return out;
}

// Inside a block a state is walked linearly; what crosses blocks is by logarithms where the form
// is.
template <class V, bool kLogForm>
using AcrossOp = std::conditional_t<kLogForm, scan::AnyLogAffineOp<V>, BareOp<V, kLogForm>>;
template <class V, bool kLogForm>
using AcrossResetOp = std::conditional_t<kLogForm, scan::AnyLogResetOp<V>, scan::AnyResetOp<V>>;

template <class Memory, bool kLogForm>
using Marked = MarkedScanSource<BareSource<Memory, kLogForm, NoResets>, false>;
template <class Memory>
using MarkedSink = MarkedScanSink<BareSink<Memory>>;

template <class Memory, bool kLogForm>
cudaError_t run_by(const CudaSchedule& units, const ScanKernelArgs<T>& a) {
  using V = typename Memory::V;
  using Scalar = scan::Scalar<V>;
  const CudaSchedule s = rows_of<Memory>(units);
  const auto source = [&](auto cuts) {
    return BareSource<Memory, kLogForm, decltype(cuts)>{
        rows_of<Memory>(a.a), rows_of<Memory>(a.b), rows_of<Memory>(a.sign_b), cuts,
        s.extent.rows,        s.extent.steps};
  };
  const BareSink<Memory> sink{rows_of<Memory>(a.h), s.extent.rows, s.extent.steps};
  const BareEnds<Memory> ends{rows_of<Memory>(a.h0), {}, s.extent.rows};
  if (s.marks.data) {
    return launch_by<scan::AnyResetOp<V>, AcrossResetOp<Scalar, kLogForm>, Kernels::general>(
        s, Marked<Memory, kLogForm>{source(NoResets()), s.marks}, MarkedSink<Memory>{sink}, ends);
  }
  if constexpr (Memory::kUnits == 1) {
    if (a.reset.data) {
      return launch_bare<scan::AnyResetOp<V>, AcrossResetOp<Scalar, kLogForm>, Kernels::general>(
          s, source(Resets<Memory>{a.reset, s.extent.steps}), sink, ends);
    }
  }
  if constexpr (kLogForm) {
    if (!a.sign_b.data) {
      const LoggedSource<Memory> logs{rows_of<Memory>(a.a), rows_of<Memory>(a.b), s.extent.rows,
                                      s.extent.steps};
      return launch_bare<scan::LoggedAffineOp<V>, scan::LoggedLogAffineOp<Scalar>,
                         kKernelsOf<Memory>>(s, logs, sink, ends);
    }
  }
  return launch_bare<BareOp<V, kLogForm>, AcrossOp<Scalar, kLogForm>, kKernelsOf<Memory>>(
      s, source(NoResets()), sink, ends);
}
template <class Memory, bool kLogForm>
std::size_t workspace_of_form(const CudaSchedule& units) {
  using Scalar = scan::Scalar<typename Memory::V>;
  const CudaSchedule s = rows_of<Memory>(units);
  std::size_t most =
      std::max(bare_workspace<AcrossOp<Scalar, kLogForm>, BareSource<Memory, kLogForm>,
                              BareSink<Memory>, kKernelsOf<Memory>>(s),
               workspace_by<AcrossResetOp<Scalar, kLogForm>, Marked<Memory, kLogForm>,
                            MarkedSink<Memory>, Kernels::general>(s));
  if constexpr (kLogForm) {
    most = std::max(most, bare_workspace<scan::LoggedLogAffineOp<Scalar>, LoggedSource<Memory>,
                                         BareSink<Memory>, kKernelsOf<Memory>>(s));
  }
  return most;
}

template <class Memory>
cudaError_t run_log_states(const CudaSchedule& s, const ScanKernelArgs<T>& a) {
  using Op = scan::LogStateOp<typename Memory::V>;
  const BareSource<Memory, true> logs{
      a.a, a.b, a.sign_b, {a.reset, s.extent.steps}, s.extent.rows, s.extent.steps};
  return launch_by<Op, Op, Kernels::all>(
      s, LogStateSource<Memory>{logs},
      LogStateSink<Memory>{a.h, a.sign_h, s.extent.rows, s.extent.steps},
      LogStateEnds<Memory>{a.h0, a.sign_h0, s.extent.rows});
}

cudaError_t run(const CudaSchedule& s, const ScanKernelArgs<T>& a) {
  using Memory = scan::Units<T>;
  if constexpr (!kIsComplex<T>) {
    if (a.form == ScanForm::log_output) return run_log_states<Memory>(s, a);
    if constexpr (sizeof(T) == 2) {
      const bool plain = !a.reset.data && !a.sign_b.data;
      if (plain && is_one_step(s) && is_run(a, s.extent)) {
        return a.form == ScanForm::log ? run_by<Memory, true>(as_lines(s), as_lines(a))
                                       : run_by<Memory, false>(as_lines(s), as_lines(a));
      }
      using Words = scan::Pairs<T>;
      if ((!a.reset.data || s.marks.data) && pairs_pay(s) && has_pairs(a)) {
        return a.form == ScanForm::log ? run_by<Words, true>(s, a) : run_by<Words, false>(s, a);
      }
    }
    if (a.form == ScanForm::log) return run_by<Memory, true>(s, a);
  }
  return run_by<Memory, false>(s, a);
}

// Enough for either kind of rows: addresses decide, and are not known yet.
std::size_t workspace(const CudaSchedule& s, ScanForm form) {
  using Memory = scan::Units<T>;
  if constexpr (kIsComplex<T>) {
    return workspace_of_form<Memory, false>(s);
  } else {
    if (form == ScanForm::log_output) {
      return workspace_by<scan::LogStateOp<typename Memory::V>, LogStateSource<Memory>,
                          LogStateSink<Memory>, Kernels::all>(s);
    }
    const bool log_form = form == ScanForm::log;
    const std::size_t by_units =
        log_form ? workspace_of_form<Memory, true>(s) : workspace_of_form<Memory, false>(s);
    if constexpr (sizeof(T) == 2) {
      using Words = scan::Pairs<T>;
      return std::max(by_units, log_form ? workspace_of_form<Words, true>(s)
                                         : workspace_of_form<Words, false>(s));
    }
    return by_units;
  }
}

}  // namespace

template <>
const CudaScanKernels<T>& cuda_scan_kernels<T>() {
  static constexpr CudaScanKernels<T> kernels{run, workspace};
  return kernels;
}

}  // namespace scanrnn
