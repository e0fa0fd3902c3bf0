// SPDX-License-Identifier: Apache-2.0
// The contract of a dense cell: gates read x_t and, through a matrix, h_{t-1}, so that time can
// only be walked.
//
// W x_t + b_ih and R h_{t-1} + b_hh have kGates row blocks of H each. A step reads P =
// kPreactivations sums of them: row block i of W x adds to sum i, and so does row block i of R h,
// but for the last P - kGates row blocks of R h, which have sums of their own behind all others.
//
// A cell is a struct of static functions on values in registers:
//   kGates, kPreactivations       as above
//   kPair                         whether the state is the pair (h, c) or h alone
//   Gates<V>                      the sums of one unit at one step, by name
//   gather(f), scatter(gates, f)  Gates from and to f(sum): the one place that orders them
//   step(gates, before)           the state after the step; its h is the output
//   step_vjp(gates, before, d)    the adjoint of step, from the cotangent d of the state after:
//                                 that of the gates, and that of the state before but for what
//                                 comes back through R
// Nothing else is kept for backward but the sums and the states.
#pragma once

#include "scanrnn/cells/activation.h"

namespace scanrnn::cell {

// One unit's state or its cotangent. A cell whose state is h alone passes c on and ignores it.
template <class V>
struct StepState {
  V h, c;
};

template <class V, class Gates>
struct StepCotangent {
  Gates gates;
  StepState<V> before;
};

// The sum that row block `block` of R h adds to.
template <class Cell>
SCANRNN_HD constexpr int recurrent_sum(int block) {
  constexpr int kOwn = Cell::kPreactivations - Cell::kGates;
  return block < Cell::kGates - kOwn ? block : block + kOwn;
}

}  // namespace scanrnn::cell
