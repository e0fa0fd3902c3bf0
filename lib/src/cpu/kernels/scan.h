// SPDX-License-Identifier: Apache-2.0
// The bare recurrence on the CPU, the states at the ends of time included: how numbers lie in
// memory, and which Op walks which Source. Included by cpu/kernels/scan.cpp for each instruction
// set.
#pragma once

#include "cpu/kernels/run.h"
#include "cpu/kernels/scan_lanes.h"
#include "cpu/kernels/table.h"
#include "recurrence/log_scan.h"

namespace scanrnn::HWY_NAMESPACE {

// A unit as a row: of lines of one row, or where rows are not adjacent.
template <class Stored>
struct Single {
  using T = Stored;
  using V = Value<T>;
  static constexpr int kUnits = 1;
  SCANRNN_INLINE static void prefetch(const T* line, Index row) { scanrnn::prefetch(line + row); }
  SCANRNN_INLINE static V read(const T* line, Index row, Index) { return widen(line[row]); }
  SCANRNN_INLINE static void write(T* line, Index row, Index, V value) { narrow(value, line[row]); }
  SCANRNN_INLINE static bool resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return step[row * stride] != 0;
  }
};

// Adjacent complex numbers as vectors of their parts.
template <class Real>
struct ComplexLanes {
  using T = scan::Complex<Real>;
  using V = scan::Complex<Vec<Real>>;
  static constexpr int kUnits = Vec<Real>::kLanes;

  SCANRNN_INLINE static void prefetch(const T* line, Index row) {
    scanrnn::prefetch(line + row * kUnits);
  }
  SCANRNN_INLINE static V read(const T* line, Index row, Index hidden) {
    const T* from = line + row * kUnits;
    if ((row + 1) * kUnits <= hidden) return load(from);
    T units[kUnits] = {};
    for (Index i = row * kUnits; i < hidden; ++i) units[i - row * kUnits] = line[i];
    return load(units);
  }
  SCANRNN_INLINE static void write(T* line, Index row, Index hidden, const V& value) {
    T* to = line + row * kUnits;
    if ((row + 1) * kUnits <= hidden) return interleave(value.re, value.im, &to->re);
    T units[kUnits];
    interleave(value.re, value.im, &units->re);
    for (Index i = row * kUnits; i < hidden; ++i) line[i] = units[i - row * kUnits];
  }
  SCANRNN_INLINE static MaskOf<Real> resets(const std::uint8_t* step, Index row, Index stride,
                                            Index hidden) {
    return Lanes<Real>::resets(step, row, stride, hidden);
  }

 private:
  SCANRNN_INLINE static V load(const T* from) {
    V out;
    deinterleave(&from->re, out.re, out.im);
    return out;
  }
};

// Rows in vectors, or one by one.
template <class T, bool kByUnits>
struct MemoryOf {
  using Type = Lanes<T>;
};
template <>
struct MemoryOf<Float16, false> {
  using Type = HalfLanes<Float16>;
};
template <>
struct MemoryOf<BFloat16, false> {
  using Type = HalfLanes<BFloat16>;
};
template <class Real>
struct MemoryOf<scan::Complex<Real>, false> {
  using Type = ComplexLanes<Real>;
};
template <class T>
struct MemoryOf<T, true> {
  using Type = Single<T>;
};

template <class Op, class Memory, class Source, class Sink, class Ends,
          class Arrangement = scan::OneStep>
void walk_scan(const CpuSchedule& s, const Source& source, const Sink& sink, const Ends& ends,
               const Arrangement& arranged = {}) {
  using State = typename Op::State;
  const scan::Extent extent{s.lines, (s.hidden + Memory::kUnits - 1) / Memory::kUnits, s.steps};
  auto* carry = static_cast<State*>(s.carry);
  const scan::Range mine = s.team.share(extent.lines * extent.rows);
  const auto each = [&](const auto& use) {
    scan::for_lines(mine, extent.rows, [&](Index line, scan::Range rows) {
      for (Index i = rows.begin; i < rows.end; ++i) use(line, i, carry[line * extent.rows + i]);
    });
  };
  each([&](Index line, Index row, State& state) { state = ends.first(line, row); });
  const bool splits = s.chunk != 0;  // then threads walk states that others have set
  if (splits) s.team.barrier();
  run<Op>(s, extent, source, sink, arranged);
  if (splits) s.team.barrier();
  each([&](Index line, Index row, const State& state) { ends.last(line, row, state); });
}

// Without resets a decay of zero multiplies, as any does.
template <class V, bool kLogForm, class Args, class Use>
void with_op(const Args& a, const Use& use) {
  using Op = std::conditional_t<kLogForm, scan::AnyLogAffineOp<V>, scan::AnyAffineOp<V>>;
  using ResetOp = std::conditional_t<kLogForm, scan::AnyLogResetOp<V>, scan::AnyResetOp<V>>;
  if (a.reset.data) {
    use(ResetOp());
  } else {
    use(Op());
  }
}

template <class Memory, bool kLogForm>
void bare_forward(const CpuSchedule& s, const ScanKernelArgs<typename Memory::T>& a) {
  with_op<typename Memory::V, kLogForm>(a, [&](auto op) {
    walk_scan<decltype(op), Memory>(
        s, BareSource<Memory, kLogForm>{a.a, a.b, a.sign_b, {a.reset, s.steps}, s.hidden},
        BareSink<Memory>{a.h, s.hidden}, BareEnds<Memory>{a.h0, {}, s.hidden});
  });
}

template <class Memory, bool kLogForm>
BareBackwardSource<Memory, kLogForm> backward_source(
    const CpuSchedule& s, const ScanBackwardKernelArgs<typename Memory::T>& a) {
  Grid<const typename Memory::T> previous = a.h;
  previous.data += previous.step;
  return {a.a, previous, a.dh, a.b, a.sign_b, a.h0, {a.reset, s.steps}, s.hidden, s.steps - 1};
}

// Cotangents are signed and decay: they are walked in the linear domain whatever the form.
template <class Memory, bool kLogForm>
void bare_backward(const CpuSchedule& s, const ScanBackwardKernelArgs<typename Memory::T>& a) {
  with_op<typename Memory::V, false>(a, [&](auto op) {
    walk_scan<decltype(op), Memory>(s, backward_source<Memory, kLogForm>(s, a),
                                    BareBackwardSink<Memory, kLogForm>{a.da, a.db, s.hidden},
                                    BareEnds<Memory>{{}, a.dh0, s.hidden});
  });
}

template <class Memory>
void log_state_forward(const CpuSchedule& s, const ScanKernelArgs<typename Memory::T>& a) {
  using Op = scan::LogStateOp<typename Memory::V>;
  static_assert(sizeof(typename Op::State) <= kLogCarryFields * sizeof(typename Memory::V));
  static_assert(sizeof(typename Op::Element) <= kLogTotalFields * sizeof(typename Memory::V));
  walk_scan<Op, Memory>(s,
                        LogStateSource<Memory>{{a.a, a.b, a.sign_b, {a.reset, s.steps}, s.hidden}},
                        LogStateSink<Memory>{a.h, a.sign_h, s.hidden},
                        LogStateEnds<Memory>{a.h0, a.sign_h0, s.hidden});
}

template <class Memory>
void log_state_backward(const CpuSchedule& s, const ScanBackwardKernelArgs<typename Memory::T>& a) {
  using T = typename Memory::T;
  Grid<const T> previous = a.h, sign = a.sign_h;
  previous.data += previous.step;
  sign.data += sign.step;
  walk_scan<scan::AnyResetOp<typename Memory::V>, Memory>(
      s,
      LogStateBackwardSource<Memory>{a.a,
                                     previous,
                                     a.dh,
                                     a.b,
                                     a.sign_b,
                                     sign,
                                     a.h0,
                                     a.sign_h0,
                                     {a.reset, s.steps},
                                     s.hidden,
                                     s.steps - 1},
      LogStateBackwardSink<Memory>({a.da, a.db, s.hidden}), BareEnds<Memory>{{}, a.dh0, s.hidden});
}

}  // namespace scanrnn::HWY_NAMESPACE
