// SPDX-License-Identifier: Apache-2.0
// SRU:  c_t = f c_{t-1} + (1 - f) u,  h_t = r g(c_t) + (1 - r) x',  f = sigma(p), r = sigma(q)
// ("Training RNNs as Fast as CNNs", arXiv 1709.02755, eq. 3-7; u = W x, without a bias.)
#pragma once

#include <cmath>

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// What x' is multiplied by where it is rescaled, so that outputs are as large as inputs while r is
// what its initial bias makes it (section 3.2).
inline double highway_scale(double bias) { return std::sqrt(1 + 2 * std::exp(bias)); }

// Activation, g in the equation, is one of Activations. The state is c, the output h; x' is the
// highway input.
template <class Activation>
struct SRU : LinearCell {
  static constexpr int kGates = 3;
  static constexpr bool kReadout = true, kHighway = true;
  template <class V>
  struct Gates {
    V u, p, q;  // candidate, and pre-activations of f and r
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0), row(1), row(2)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.u);
    row(1, g.p);
    row(2, g.q);
  }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g) {
    const auto f = logistic(g.p);
    return {f.value, f.complement, f.complement * g.u};
  }
  template <class V>
  SCANRNN_HD static Gates<V> lift_vjp(const Gates<V>& g, const AffineCotangent<V>& d) {
    const auto f = logistic(g.p);
    return {d.b * f.complement, fma(-d.b, g.u, d.a) * f.value * f.complement, V(0)};
  }

  template <class V>
  SCANRNN_HD static V readout(const Gates<V>& g, V c, V skip, V keep) {
    const auto r = logistic(g.q);
    return fma(r.value, Activation::value(c) * keep, r.complement * skip);
  }
  template <class V>
  SCANRNN_HD static ReadoutCotangent<V, Gates<V>> readout_vjp(const Gates<V>& g, V c, V skip,
                                                              V keep, V dh) {
    const auto r = logistic(g.q);
    const V dr = dh * (Activation::value(c) * keep - skip);
    return {{V(0), V(0), dr * r.value * r.complement},
            dh * keep * r.value * Activation::slope(c),
            dh * r.complement};
  }
};

}  // namespace scanrnn::cell
