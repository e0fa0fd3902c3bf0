// SPDX-License-Identifier: Apache-2.0
// The bare recurrence of real numbers with rows in vectors, for one instruction set; compiled
// once for each, as table.cpp is.
#include "cpu/kernels/bare.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "cpu/kernels/scan.h"
#include "scanrnn/scan/cpu_abreast.h"

namespace scanrnn::HWY_NAMESPACE {
namespace {

// So many levels of twos that they hold `together`: 1 to those of a vector.
template <Index kLanes, int kLevels = 1, class Use>
void with_levels(Index together, const Use& use) {
  if constexpr (Index{1} << kLevels < kLanes) {
    if (together > Index{1} << kLevels) return with_levels<kLanes, kLevels + 1>(together, use);
  }
  use(std::integral_constant<int, kLevels>());
}

// Few rows whose steps are adjacent lie several steps to a vector.
template <class Op, class Memory, class Source, class Sink, class Ends>
void walk_arranged(const CpuSchedule& s, const Source& source, const Sink& sink, const Ends& ends,
                   Index step) {
  using V = typename Memory::V;
  const Index together = s.hidden == std::abs(step) ? V::kLanes / s.hidden : 1;
  const auto abreast = [&](auto levels) {
    using Moves = StepMoves<Value<typename Memory::T>, levels()>;
    const Moves whole(s.hidden, together, step < 0);
    const Moves tail(s.hidden, std::max<Index>(s.steps % together, 1), step < 0);
    walk_scan<Op, Memory>(s, source, sink, ends, scan::StepsAbreast<Moves>{whole, tail});
  };
  if (together < 2) {
    walk_scan<Op, Memory>(s, source, sink, ends);
  } else {
    with_levels<V::kLanes>(together, abreast);
  }
}

// The stride between steps, if all others have it, too, else 0: steps apart in one tensor count as
// steps apart in all of them.
template <class T>
Index alike(Index step, std::initializer_list<Grid<const T>> others) {
  const bool all = std::all_of(others.begin(), others.end(), [&](const Grid<const T>& other) {
    return !other.data || other.step == step;
  });
  return all ? step : 0;
}

}  // namespace

template <class T, bool kLogForm>
void bare(const CpuSchedule& s, const ScanKernelArgs<T>& a) {
  using Memory = typename MemoryOf<T, false>::Type;
  using V = typename Memory::V;
  if (a.reset.data) return bare_forward<Memory, kLogForm>(s, a);
  using Op = std::conditional_t<kLogForm, scan::AnyLogAffineOp<V>, scan::AnyAffineOp<V>>;
  const BareSource<Memory, kLogForm> source{a.a, a.b, a.sign_b, {}, s.hidden};
  const BareEnds<Memory> ends{a.h0, {}, s.hidden};
  const Index step = alike<T>(a.h.step, {a.a, a.b, a.sign_b});
  using Past = Streamed<Memory>;
  if (!s.streams || !Past::pays(a.h, s.hidden)) {
    return walk_arranged<Op, Memory>(s, source, BareSink<Memory>{a.h, s.hidden}, ends, step);
  }
  if constexpr (Past::kWhole) {
    walk_arranged<Op, Memory>(s, source, BareSink<Past>{a.h, s.hidden}, ends, step);
  } else if constexpr (Past::kHalf) {  // rows are long
    walk_scan<Op, Memory>(s, source, BareSink<Past>{a.h, s.hidden}, ends);
  }
  Past::flush();
}

template <class T, bool kLogForm>
void bare_back(const CpuSchedule& s, const ScanBackwardKernelArgs<T>& a) {
  using Memory = typename MemoryOf<T, false>::Type;
  if (a.reset.data) return bare_backward<Memory, kLogForm>(s, a);
  walk_arranged<scan::AnyAffineOp<typename Memory::V>, Memory>(
      s, backward_source<Memory, kLogForm>(s, a),
      BareBackwardSink<Memory, kLogForm>{a.da, a.db, s.hidden},
      BareEnds<Memory>{{}, a.dh0, s.hidden},
      alike<T>(a.dh.step, {a.a, a.b, a.sign_b, a.h, as_const(a.da), as_const(a.db)}));
}

#define SCANRNN_BARE(T, kLogForm)                                                \
  template void bare<T, kLogForm>(const CpuSchedule&, const ScanKernelArgs<T>&); \
  template void bare_back<T, kLogForm>(const CpuSchedule&, const ScanBackwardKernelArgs<T>&);
SCANRNN_BARE(Float16, false)
SCANRNN_BARE(Float16, true)
SCANRNN_BARE(BFloat16, false)
SCANRNN_BARE(BFloat16, true)
SCANRNN_BARE(float, false)
SCANRNN_BARE(float, true)
SCANRNN_BARE(double, false)
SCANRNN_BARE(double, true)

}  // namespace scanrnn::HWY_NAMESPACE
