// SPDX-License-Identifier: Apache-2.0
// QRNN:  c_t = f c_{t-1} + (1 - f) tanh(v),  h_t = o c_t,  f, o = sigma(p, q)
// (Bradbury et al. 2016, arXiv 1611.01576: fo-pooling, a filter of width 1.)
#pragma once

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// The state is c, the output h.
template <class = Only>
struct QRNN : LinearCell {
  static constexpr int kGates = 3;
  static constexpr bool kReadout = true, kHighway = false;
  template <class V>
  struct Gates {
    V v, p, q;  // candidate, and pre-activations of f and o
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0), row(1), row(2)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.v);
    row(1, g.p);
    row(2, g.q);
  }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g) {
    const auto f = logistic(g.p);
    return {f.value, f.complement, f.complement * tanh(g.v)};
  }
  template <class V>
  SCANRNN_HD static Gates<V> lift_vjp(const Gates<V>& g, const AffineCotangent<V>& d) {
    const auto f = logistic(g.p);
    return {d.b * f.complement * Tanh::slope(g.v),
            fma(-d.b, tanh(g.v), d.a) * f.value * f.complement, V(0)};
  }

  template <class V>
  SCANRNN_HD static V readout(const Gates<V>& g, V c, V, V keep) {
    return logistic(g.q).value * (c * keep);
  }
  template <class V>
  SCANRNN_HD static ReadoutCotangent<V, Gates<V>> readout_vjp(const Gates<V>& g, V c, V, V keep,
                                                              V dh) {
    const auto o = logistic(g.q);
    const V kept = dh * keep;
    return {{V(0), V(0), kept * c * o.value * o.complement}, kept * o.value, V(0)};
  }
};

}  // namespace scanrnn::cell
