// SPDX-License-Identifier: Apache-2.0
// The contract of a linear cell: h_t = a_t h_{t-1} + b_t, with a and b read from x_t alone.
//
// A cell is a struct of static functions on values in registers:
//   kGates                        rows of H in weight_ih, in the order of the fields of Gates
//   Gates<V>                      the pre-activations of one unit at one step, by name
//   gather(f), scatter(gates, f)  Gates from and to f(row block): the one place that orders them
//   lift(gates)                   the affine map (a, 1 - a, b)
//   lift_vjp(gates, cotangent)    the adjoint of lift
//   kReadout, kHighway            whether the output differs from the state, and reads x; if so:
//   readout(gates, state, skip)   the output; skip is the highway input x', zero without kHighway
//   readout_vjp(...)              its adjoint
// Everything else about a recurrence (its adjoint, strategies, types, directions) is the engine's.
#pragma once

#include "scanrnn/cells/activation.h"
#include "scanrnn/scan/op.h"

namespace scanrnn::cell {

// The cotangents of a_t and b_t: lambda_t h_{t-1} and lambda_t.
template <class V>
struct AffineCotangent {
  V a, b;
};

// What readout_vjp gives back: cotangents of the gates it read, of the state and of the skip input.
template <class V, class Gates>
struct ReadoutCotangent {
  Gates gates;
  V state, skip;
};

// Base of the cells whose output is their state.
struct StateIsOutput {
  static constexpr bool kReadout = false, kHighway = false;
};

}  // namespace scanrnn::cell
