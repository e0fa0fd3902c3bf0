// SPDX-License-Identifier: Apache-2.0
// The bare recurrence for one instruction set, compiled once for each, as table.cpp is: how its
// rows lie in vectors, and whether what it writes goes past the caches.
#include "cpu/kernels/bare.h"

#include <cstdlib>

#include "cpu/kernels/run.h"
#include "cpu/kernels/scan_lanes.h"
#include "scanrnn/scan/cpu_abreast.h"

namespace scanrnn::HWY_NAMESPACE {
namespace {

// Few rows whose steps are adjacent lie several steps to a vector.
template <class Op, class T, class Source, class Sink>
void run_bare(const CpuSchedule& s, const Source& source, const Sink& sink, Index step) {
  const auto abreast = [&](auto levels) {
    run<Op, T>(s, source, sink, scan::StepsAbreast<StepMoves<T, levels()>>{{s.hidden, step < 0}});
  };
  const Index together = s.hidden == std::abs(step) ? Vec<T>::kLanes / s.hidden : 1;
  if (together < 2) {
    run<Op, T>(s, source, sink);
  } else if (together == 2) {
    abreast(std::integral_constant<int, 1>());
  } else if (together <= 4) {
    abreast(std::integral_constant<int, 2>());
  } else if (together <= 8) {
    abreast(std::integral_constant<int, 3>());
  } else {
    abreast(std::integral_constant<int, 4>());
  }
}

}  // namespace

template <class T, bool kLogForm>
void bare(const CpuSchedule& s, const ScanKernelArgs<T>& a) {
  using V = Vec<T>;
  const BareSource<Lanes<T>, kLogForm> source{a.a, a.b, a.sign_b, {a.reset, s.steps}, s.hidden};
  if (a.reset.data) {
    using ResetOp = std::conditional_t<kLogForm, scan::LogResetOp<V>, scan::ResetOp<V>>;
    return run<ResetOp, T>(s, source, BareSink<Lanes<T>>{a.h, s.hidden});
  }
  using Op = std::conditional_t<kLogForm, scan::LogAffineOp<V>, scan::AffineOp<V>>;
  // Steps apart in one tensor count as steps apart in all of them.
  const bool alike =
      a.a.step == a.h.step && a.b.step == a.h.step && (!a.sign_b.data || a.sign_b.step == a.h.step);
  const Index step = alike ? a.h.step : 0;
  if (s.streams && StreamedLanes<T>::pays(a.h, s.hidden)) {
    run_bare<Op, T>(s, source, BareSink<StreamedLanes<T>>{a.h, s.hidden}, step);
    StreamedLanes<T>::flush();
  } else {
    run_bare<Op, T>(s, source, BareSink<Lanes<T>>{a.h, s.hidden}, step);
  }
}

template void bare<float, false>(const CpuSchedule&, const ScanKernelArgs<float>&);
template void bare<float, true>(const CpuSchedule&, const ScanKernelArgs<float>&);
template void bare<double, false>(const CpuSchedule&, const ScanKernelArgs<double>&);
template void bare<double, true>(const CpuSchedule&, const ScanKernelArgs<double>&);

}  // namespace scanrnn::HWY_NAMESPACE
