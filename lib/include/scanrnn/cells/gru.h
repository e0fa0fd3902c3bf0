// SPDX-License-Identifier: Apache-2.0
// GRU:  h_t = (1 - z) n + z h_{t-1},  n = tanh(v + r m),  r, z = sigma(p, q),  m = R_n h_{t-1} + b
// (Cho et al. 2014, arXiv 1406.1078v1: reset after the product with R, as torch.nn.GRU and cuDNN.)
// Or n = tanh(v + m),  m = R_n (r h_{t-1}) + b  (arXiv 1406.1078v3: reset before the product.)
#pragma once

#include "scanrnn/cells/step_cell.h"

namespace scanrnn::cell {

template <class = Only>
struct GRU : StepCell {
  static constexpr int kGates = 3, kPreactivations = 4;
  static constexpr bool kByLines = true, kResets = true;
  template <class V>
  struct Gates {
    V p, q, v, m;  // pre-activations of r and z, and the two parts of n's: of x, and of h
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& sum) {
    return {sum(0), sum(1), sum(2), sum(3)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& sum) {
    sum(0, g.p);
    sum(1, g.q);
    sum(2, g.v);
    sum(3, g.m);
  }

  template <class V>
  SCANRNN_HD static StepState<V, 1> step(const Gates<V>& g, const StepState<V, 1>& before) {
    const auto z = logistic(g.q);
    const V n = tanh(fma(logistic(g.p).value, g.m, g.v));
    return {fma(z.complement, n, z.value * before.h)};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 1> step_vjp(const Gates<V>& g,
                                                           const StepState<V, 1>& before,
                                                           const StepState<V, 1>& d) {
    const auto r = logistic(g.p), z = logistic(g.q);
    const V n = tanh(fma(r.value, g.m, g.v));
    const V dv = d.h * z.complement * fma(-n, n, V(1));
    return {{dv * g.m * r.value * r.complement, d.h * (before.h - n) * z.value * z.complement, dv,
             dv * r.value},
            {d.h * z.value}};
  }

  template <class V>
  SCANRNN_HD static V reset(const Gates<V>& g, const V& h) {
    return logistic(g.p).value * h;
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 1> reset_vjp(const Gates<V>& g, const V& h,
                                                            const V& d) {
    const auto r = logistic(g.p);
    return {{d * h * r.value * r.complement, V(0), V(0), V(0)}, {d * r.value}};
  }
  // Nothing is left for r to multiply.
  template <class V>
  SCANRNN_HD static Gates<V> after_reset(const Gates<V>& g) {
    return {g.p, g.q, g.v + g.m, V(0)};
  }
};

}  // namespace scanrnn::cell
