// SPDX-License-Identifier: Apache-2.0
// The contract of a dense cell: gates read x_t and, through a matrix, h_{t-1}, so that time can
// only be walked.
//
// W x_t + b_ih and R h_{t-1} + b_hh have kGates row blocks of H each. A step reads P =
// kPreactivations sums of them: row block i of W x adds to sum i, and so does row block i of R h,
// but for the last P - kGates row blocks of R h, which have sums of their own behind all others.
//
// A cell is a struct of static functions on values in registers, derived from StepCell:
//   kGates, kPreactivations       as above
//   kStates                       tensors of the state: 1, h alone, 2, (h, c), or 4, (h, c, n, m)
//   fresh(i)                      what tensor i is where there is no state before; that of h is 0
//   Gates<V>                      the sums of one unit at one step, by name
//   gather(f), scatter(gates, f)  Gates from and to f(sum): the one place that orders them
//   step(gates, before)           the state after the step; its h is the output
//   step_vjp(gates, before, d)    the adjoint of step, from the cotangent d of the state after:
//                                 that of the gates, and that of the state before but for what
//                                 comes back through R; of the state before it reads h where that
//                                 is all, and else the tensors behind it alone
// A cell may have kVectors vectors, parameters of one value a unit. Then these are
//   step(gates, vectors, before)
//   step_vjp(gates, vectors, before, d)   which gives the vectors' cotangents of that step, too
// Nothing else is kept for backward but the sums and the states.
//
// A cell of kByLines can be walked by whole lines (recurrence/line.h), which options need that read
// more of a line than a unit's own sums. It may have, beside the above,
//   kResets                       a reset of h before the product with R:
//     reset(gates, h)             what the last row blocks of R multiply in place of h
//     reset_vjp(gates, h, d)      its adjoint: the cotangents of the gates, and of h
//     after_reset(gates)          the gates that step reads then
//   two tensors of the state, and between c and h a norm that the walk makes:
//     values(gates)               what the gates let through, which the others read
//     remember(values, c)         c after the step
//     output(values, seen)        h, of what the walk makes of c
//     remember_vjp(values, c, d)  from the cotangent of c after the step, those of its gates and
//                                 of c before
//     output_vjp(values, seen, d) from the cotangent of the state after it, the output gate's, and
//                                 that of c, seen here and after
#pragma once

#include "scanrnn/cells/activation.h"

namespace scanrnn::cell {

// One unit's state or its cotangent: `of` makes it of value(i) for each tensor i, `at` finds them.
template <class V, int kStates>
struct StepState;
template <class V>
struct StepState<V, 1> {
  V h;

  template <class F>
  SCANRNN_HD static StepState of(F&& value) {
    return {value(0)};
  }
  SCANRNN_HD V& at(int) { return h; }
  SCANRNN_HD const V& at(int) const { return h; }
};
template <class V>
struct StepState<V, 2> {
  V h, c;

  template <class F>
  SCANRNN_HD static StepState of(F&& value) {
    return {value(0), value(1)};
  }
  SCANRNN_HD V& at(int i) { return i == 0 ? h : c; }
  SCANRNN_HD const V& at(int i) const { return i == 0 ? h : c; }
};
template <class V>
struct StepState<V, 4> {
  V h, c, n, m;

  template <class F>
  SCANRNN_HD static StepState of(F&& value) {
    return {value(0), value(1), value(2), value(3)};
  }
  SCANRNN_HD V& at(int i) { return i == 0 ? h : i == 1 ? c : i == 2 ? n : m; }
  SCANRNN_HD const V& at(int i) const { return i == 0 ? h : i == 1 ? c : i == 2 ? n : m; }
};

// One unit's vectors or their cotangents.
template <class V, int kVectors>
struct Vectors {
  V value[kVectors];

  template <class F>
  SCANRNN_HD static Vectors of(F&& value) {
    Vectors out;
    for (int i = 0; i < kVectors; ++i) out.value[i] = value(i);
    return out;
  }
};
template <class V>
struct Vectors<V, 0> {
  template <class F>
  SCANRNN_HD static Vectors of(F&&) {
    return {};
  }
};

template <class V, class Gates, int kStates, int kVectors = 0>
struct StepCotangent {
  Gates gates;
  StepState<V, kStates> before;
  Vectors<V, kVectors> vectors = {};
};

// Base of the cells: what most of them are.
struct StepCell {
  static constexpr int kStates = 1, kVectors = 0;
  static constexpr bool kByLines = false, kResets = false;
  SCANRNN_HD static constexpr double fresh(int) { return 0; }
};

// The sum that row block `block` of R h adds to.
template <class Cell>
SCANRNN_HD constexpr int recurrent_sum(int block) {
  constexpr int kOwn = Cell::kPreactivations - Cell::kGates;
  return block < Cell::kGates - kOwn ? block : block + kOwn;
}
// The row block that adds to a sum: of R h, or of W x; -1 where there is none.
template <class Cell>
SCANRNN_HD constexpr int row_block(int sum, bool recurrent) {
  constexpr int kOwn = Cell::kPreactivations - Cell::kGates;
  if (!recurrent) return sum < Cell::kGates ? sum : -1;
  if (sum >= Cell::kGates) return sum - kOwn;
  return sum < Cell::kGates - kOwn ? sum : -1;
}

}  // namespace scanrnn::cell
