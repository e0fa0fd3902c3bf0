// SPDX-License-Identifier: Apache-2.0
// The contract of a linear cell, h_t = a_t h_{t-1} + b_t with a and b read from x_t alone, and of a
// diagonal one, whose gates read the same unit's h_{t-1} as well.
//
// A cell is a struct of static functions on values in registers, derived from LinearCell:
//   kGates                        rows of H in weight_ih, in the order of the fields of Gates
//   Gates<V>                      the pre-activations of one unit at one step, by name
//   gather(f), scatter(gates, f)  Gates from and to f(row block): the one place that orders them
//   lift(gates)                   the affine map (a, 1 - a, b)
//   lift_vjp(gates, cotangent)    the adjoint of lift
//   kReadout, kHighway            whether the output differs from the state, and reads x; if so:
//   readout(gates, state, skip, keep)   the output; skip is the highway input x', zero without
//                                 kHighway; keep is what training multiplies the state's part by
//   readout_vjp(..., dh)          its adjoint
// A cell may have kVectors vectors, parameters of one value a unit. Those of a diagonal cell,
//   kDiagonal, peek(k)            are times h_{t-1}: vector k adds to row block peek(k), before
//                                 anything reads the gates
//   kForgets                      h_{t-1} comes into the step by that alone: lift's a is zero
// and a cell that reads them itself, and x of its own unit (so that C = H), has
//   kReadsOwn                     lift(gates, own) and lift_vjp(gates, own, cotangent), which gives
//                                 the cotangents of all three (OwnCotangent)
//   vector(p)                     what own.vector is of a parameter, worked out once
//   vector_vjp(p, d)              the parameter's cotangent, given the sum of vector's over tokens
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

// What a unit has beside its gates: x, which is the highway input or its own, and its vectors.
template <class V, int kVectors>
struct Own {
  V x, vector[kVectors] = {};
};
template <class V>
struct Own<V, 0> {
  V x;
};
template <class V, class Gates, int kVectors>
struct OwnCotangent {
  Gates gates;
  Own<V, kVectors> own;
};

// Base of the cells: what most of them are.
struct LinearCell {
  static constexpr bool kReadout = false, kHighway = false;
  static constexpr bool kDiagonal = false, kForgets = false, kReadsOwn = false;
  static constexpr int kVectors = 0;
};

}  // namespace scanrnn::cell
