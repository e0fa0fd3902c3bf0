// SPDX-License-Identifier: Apache-2.0
// SLSTM:  c_t = f' c_{t-1} + i' tanh(z),  n_t = f' n_{t-1} + i',  h_t = sigma(o) c_t / n_t
// (Beck et al. 2024, arXiv 2405.04517, sLSTM, by its stabiliser m: appendix A.2.)
#pragma once

#include <limits>

#include "scanrnn/cells/step_cell.h"

namespace scanrnn::cell {

// m_t = max(log sigma(f) + m_{t-1}, i), i' = exp(i - m_t), f' = exp(log sigma(f) + m_{t-1} - m_t).
// h does not depend on m, which is a constant to the adjoint.
template <class = Only>
struct SLSTM : StepCell {
  static constexpr int kGates = 4, kPreactivations = 4, kStates = 4;
  SCANRNN_HD static constexpr double fresh(int i) {
    return i == 3 ? -std::numeric_limits<double>::infinity() : 0;
  }
  template <class V>
  struct Gates {
    V i, f, z, o;
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& sum) {
    return {sum(0), sum(1), sum(2), sum(3)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& sum) {
    sum(0, g.i);
    sum(1, g.f);
    sum(2, g.z);
    sum(3, g.o);
  }

  template <class V>
  SCANRNN_HD static StepState<V, 4> step(const Gates<V>& g, const StepState<V, 4>& before) {
    const auto x = inside(g, before);
    return {logistic(g.o).value * x.c * reciprocal(x.n), x.c, x.n, max(x.kept, g.i)};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 4> step_vjp(const Gates<V>& g,
                                                           const StepState<V, 4>& before,
                                                           const StepState<V, 4>& d) {
    const auto x = inside(g, before);
    const auto o = logistic(g.o);
    const V scale = reciprocal(x.n), y = x.c * scale, dy = d.h * o.value * scale;
    const V dc = d.c + dy, dn = fma(-dy, y, d.n);
    return {
        {fma(dc, x.z, dn) * x.i, fma(dc, before.c, dn * before.n) * x.f * logistic(g.f).complement,
         dc * x.i * fma(-x.z, x.z, V(1)), d.h * y * o.value * o.complement},
        {V(0), dc * x.f, dn * x.f, V(0)}};
  }

 private:
  template <class V>
  struct Inside {
    V kept, i, f, z, c, n;  // kept: log sigma(f) + m_{t-1}; i, f: i' and f'
  };
  // One of i' and f' is 1.
  template <class V>
  SCANRNN_HD static Inside<V> inside(const Gates<V>& g, const StepState<V, 4>& before) {
    Inside<V> x;
    x.kept = min(g.f, V(0)) - log1p(fast_exp(-abs(g.f))) + before.m;
    const V gap = x.kept - g.i, other = fast_exp(-abs(gap));
    const auto keeps = less(V(0), gap);
    x.i = select(keeps, other, V(1));
    x.f = select(keeps, V(1), other);
    x.z = tanh(g.z);
    x.c = fma(x.f, before.c, x.i * x.z);
    x.n = fma(x.f, before.n, x.i);
    return x;
  }
};

}  // namespace scanrnn::cell
