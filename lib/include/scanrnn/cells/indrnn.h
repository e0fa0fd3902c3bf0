// SPDX-License-Identifier: Apache-2.0
// IndRNN:  h_t = phi(v + u h_{t-1})  (Li et al. 2018, arXiv 1803.04831, eq. 4)
#pragma once

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// Nonlinearity, phi in the equation, is one of UnitNonlinearities; u is a vector.
template <class Nonlinearity>
struct IndRNN : LinearCell {
  static constexpr int kGates = 1, kVectors = 1;
  static constexpr bool kDiagonal = true, kForgets = true;
  template <class V>
  struct Gates {
    V v;
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.v);
  }
  SCANRNN_HD static constexpr int peek(int) { return 0; }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g) {
    return scan::constant(Nonlinearity::value(g.v));
  }
  template <class V>
  SCANRNN_HD static Gates<V> lift_vjp(const Gates<V>& g, const AffineCotangent<V>& d) {
    return {d.b * Nonlinearity::slope(g.v)};
  }
};

}  // namespace scanrnn::cell
