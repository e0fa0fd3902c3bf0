// SPDX-License-Identifier: Apache-2.0
// A recurrence over vectors as a schedule says: how time and rows are split.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace scanrnn::HWY_NAMESPACE {

template <class T>
scan::Extent extent_of(const CpuSchedule& s) {
  return {s.lines, (s.hidden + Vec<T>::kLanes - 1) / Vec<T>::kLanes, s.steps};
}

template <class T>
scan::Carried<Vec<T>>* carry_of(const CpuSchedule& s) {
  return static_cast<scan::Carried<Vec<T>>*>(s.carry) + s.first_line * extent_of<T>(s).rows;
}

template <class Op, class Source, class Sink, class Arrangement = scan::OneStep>
void run(const CpuSchedule& s, const scan::Extent& extent, const Source& source, const Sink& sink,
         const Arrangement& arranged = {}) {
  auto* carry = static_cast<typename Op::State*>(s.carry) + s.first_line * extent.rows;
  auto* totals = static_cast<typename Op::Element*>(s.totals);
  auto* starts = static_cast<typename Op::State*>(s.starts);
  if (s.chunk == 0) {
    scan::sequential<Op>(s.team, extent, source, sink, {0, s.steps}, carry, arranged);
  } else {
    scan::parallel<Op>(s.team, extent, source, sink, s.chunk, totals, starts, carry, arranged);
  }
}

}  // namespace scanrnn::HWY_NAMESPACE
