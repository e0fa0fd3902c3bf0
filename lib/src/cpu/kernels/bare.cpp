// SPDX-License-Identifier: Apache-2.0
// The bare recurrence of real numbers with rows in vectors, forward, for one instruction set;
// compiled once for each, as table.cpp is.
#include "cpu/kernels/bare.h"

#include <cstdlib>

#include "cpu/kernels/scan.h"
#include "scanrnn/scan/cpu_abreast.h"

namespace scanrnn::HWY_NAMESPACE {
namespace {

// Few rows whose steps are adjacent lie several steps to a vector.
template <class Op, class Memory, class Source, class Sink, class Ends>
void walk_arranged(const CpuSchedule& s, const Source& source, const Sink& sink, const Ends& ends,
                   Index step) {
  using V = typename Memory::V;
  const auto abreast = [&](auto levels) {
    using Moves = StepMoves<Value<typename Memory::T>, levels()>;
    walk_scan<Op, Memory>(s, source, sink, ends, scan::StepsAbreast<Moves>{{s.hidden, step < 0}});
  };
  const Index together = s.hidden == std::abs(step) ? V::kLanes / s.hidden : 1;
  if (together < 2) {
    walk_scan<Op, Memory>(s, source, sink, ends);
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
  using Memory = typename MemoryOf<T, false>::Type;
  using V = typename Memory::V;
  if (a.reset.data) return bare_forward<Memory, kLogForm>(s, a);
  using Op = std::conditional_t<kLogForm, scan::LogAffineOp<V>, scan::AffineOp<V>>;
  const BareSource<Memory, kLogForm> source{a.a, a.b, a.sign_b, {}, s.hidden};
  const BareEnds<Memory> ends{a.h0, {}, s.hidden};
  // Steps apart in one tensor count as steps apart in all of them.
  const bool alike =
      a.a.step == a.h.step && a.b.step == a.h.step && (!a.sign_b.data || a.sign_b.step == a.h.step);
  const Index step = alike ? a.h.step : 0;
  if (s.streams && Streamed<Memory>::pays(a.h, s.hidden)) {
    walk_arranged<Op, Memory>(s, source, BareSink<Streamed<Memory>>{a.h, s.hidden}, ends, step);
    Streamed<Memory>::flush();
  } else {
    walk_arranged<Op, Memory>(s, source, BareSink<Memory>{a.h, s.hidden}, ends, step);
  }
}

template void bare<Float16, false>(const CpuSchedule&, const ScanKernelArgs<Float16>&);
template void bare<Float16, true>(const CpuSchedule&, const ScanKernelArgs<Float16>&);
template void bare<BFloat16, false>(const CpuSchedule&, const ScanKernelArgs<BFloat16>&);
template void bare<BFloat16, true>(const CpuSchedule&, const ScanKernelArgs<BFloat16>&);
template void bare<float, false>(const CpuSchedule&, const ScanKernelArgs<float>&);
template void bare<float, true>(const CpuSchedule&, const ScanKernelArgs<float>&);
template void bare<double, false>(const CpuSchedule&, const ScanKernelArgs<double>&);
template void bare<double, true>(const CpuSchedule&, const ScanKernelArgs<double>&);

}  // namespace scanrnn::HWY_NAMESPACE
