// SPDX-License-Identifier: Apache-2.0
// minGRU:  h_t = (1 - z) h_{t-1} + z g(v),  z = sigma(k)        (Feng et al. 2024, arXiv
// 2410.01201)
#pragma once

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// Candidate is one of Candidates.
template <class Candidate>
struct MinGRU : LinearCell {
  static constexpr int kGates = 2;
  template <class V>
  struct Gates {
    V k, v;
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0), row(1)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.k);
    row(1, g.v);
  }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g) {
    const auto z = logistic(g.k);
    return {z.complement, z.value, z.value * Candidate::value(g.v)};
  }
  template <class V>
  SCANRNN_HD static Gates<V> lift_vjp(const Gates<V>& g, const AffineCotangent<V>& d) {
    const auto z = logistic(g.k);
    const V dz = fma(Candidate::value(g.v), d.b, -d.a);
    return {dz * z.value * z.complement, d.b * z.value * Candidate::slope(g.v)};
  }
};

}  // namespace scanrnn::cell
