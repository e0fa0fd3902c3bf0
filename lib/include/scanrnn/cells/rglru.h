// SPDX-License-Identifier: Apache-2.0
// RG-LRU:  h_t = a h_{t-1} + sqrt(1 - a^2) (i x_t),  log a = -8 softplus(w) r,  r, i = sigma(p, q)
// (De et al. 2024, arXiv 2402.19427, eq. 1-4.)
#pragma once

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// own.x is x of the same unit; the vector is -8 softplus of the parameter w.
template <class = Only>
struct RGLRU : LinearCell {
  static constexpr int kGates = 2, kVectors = 1;
  static constexpr bool kReadsOwn = true;
  template <class V>
  struct Gates {
    V p, q;  // pre-activations of r and i
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0), row(1)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.p);
    row(1, g.q);
  }

  template <class V>
  SCANRNN_HD static V vector(V w) {
    return V(-8) * softplus(w);
  }
  // The cotangent that is summed is that of log(-vector), whose slope is sigma(w) / softplus(w).
  template <class V>
  SCANRNN_HD static V vector_vjp(V w, V d) {
    return d * select(less(w, V(-40)), V(1), logistic(w).value / softplus(w));
  }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g, const Own<V, 1>& own) {
    const auto d = decay(g, own);
    return {d.a, d.z, d.root * logistic(g.q).value * own.x};
  }
  template <class V>
  SCANRNN_HD static OwnCotangent<V, Gates<V>, 1> lift_vjp(const Gates<V>& g, const Own<V, 1>& own,
                                                          const AffineCotangent<V>& d) {
    const auto i = logistic(g.q);
    const auto f = decay(g, own);
    const V gated = f.root * d.b;
    // d(root) / d(log a) = -a^2 / root, which times log a stays small where a goes to 1.
    const V by_log = f.a * fma(d.a, f.log_a, -(d.b * i.value * own.x) * f.a * f.log_by_root);
    return {{by_log * logistic(g.p).complement, gated * own.x * i.value * i.complement},
            {gated * i.value, {by_log}}};
  }

 private:
  template <class V>
  struct Decay {
    V a, z, log_a, root, log_by_root;
  };
  template <class V>
  SCANRNN_HD static V softplus(V w) {
    return max(w, V(0)) + log1p(bounded_exp(-abs(w)));
  }
  template <class V>
  SCANRNN_HD static Decay<V> decay(const Gates<V>& g, const Own<V, 1>& own) {
    const V log_a = own.vector[0] * logistic(g.p).value;
    const V a = fast_exp(log_a), z = scan::one_minus_exp(log_a, a);
    const V root = sqrt(fma(z, a, z));
    return {a, z, log_a, root, select(less(V(0), root), log_a * reciprocal(root), V(0))};
  }
};

}  // namespace scanrnn::cell
