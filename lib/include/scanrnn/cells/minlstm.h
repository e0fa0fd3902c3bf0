// SPDX-License-Identifier: Apache-2.0
// minLSTM:  h_t = f' h_{t-1} + i' g(v),  f' = f / (f + i),  i' = i / (f + i),  f = sigma(p), i =
// sigma(q) (Feng et al. 2024, arXiv 2410.01201)
#pragma once

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// Candidate is one of Candidates.
template <class Candidate>
struct MinLSTM : LinearCell {
  static constexpr int kGates = 3;
  template <class V>
  struct Gates {
    V p, q, v;  // pre-activations of f, of i, and of the candidate
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0), row(1), row(2)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.p);
    row(1, g.q);
    row(2, g.v);
  }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g) {
    const auto s = shares(g);
    return {s.forget, s.input, s.input * Candidate::value(g.v)};
  }
  template <class V>
  SCANRNN_HD static Gates<V> lift_vjp(const Gates<V>& g, const AffineCotangent<V>& d) {
    const auto s = shares(g);
    // i' = sigma(u), f' = sigma(-u), u = softplus(-p) - softplus(-q)
    const V du = fma(Candidate::value(g.v), d.b, -d.a) * s.forget * s.input;
    return {-du * logistic(g.p).complement, du * logistic(g.q).complement,
            d.b * s.input * Candidate::slope(g.v)};
  }

 private:
  template <class V>
  struct Shares {
    V forget, input;
  };
  // f / (f + i) = (1 + e^-q) / ((1 + e^-p) + (1 + e^-q)): a sum of positive terms, so no epsilon
  // and no cancellation. Where an exponential would overflow, every term is lowered by e^-shift,
  // for an infinite gate by that of the largest number.
  template <class V>
  SCANRNN_HD static Shares<V> shares(const Gates<V>& g) {
    V shift = max(V(-scan::kLargestExponent<V>) - min(g.p, g.q), V(0)), one(1);
    if (any(less(V(0), shift))) {
      shift = min(shift, V(scan::kLargestNumber<V>));
      one = bounded_exp(-shift);
    }
    const V not_f = one + bounded_exp(-g.p - shift);
    const V not_i = one + bounded_exp(-g.q - shift);
    const V scale = reciprocal(not_f + not_i);
    return {not_i * scale, not_f * scale};
  }
};

}  // namespace scanrnn::cell
