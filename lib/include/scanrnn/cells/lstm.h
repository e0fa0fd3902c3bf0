// SPDX-License-Identifier: Apache-2.0
// LSTM:  c_t = f c_{t-1} + i g,  h_t = o tanh(c_t),  i, f, o = sigma(p, q, s),  g = tanh(v)
// (Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000; as torch.nn.LSTM.)
#pragma once

#include "scanrnn/cells/step_cell.h"

namespace scanrnn::cell {

template <class = Only>
struct LSTM : StepCell {
  static constexpr int kGates = 4, kPreactivations = 4, kStates = 2;
  template <class V>
  struct Gates {
    V p, q, v, s;  // pre-activations of i, f, g and o
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
    sum(3, g.s);
  }

  template <class V>
  SCANRNN_HD static StepState<V, 2> step(const Gates<V>& g, const StepState<V, 2>& before) {
    const V c = fma(logistic(g.q).value, before.c, logistic(g.p).value * tanh(g.v));
    return {logistic(g.s).value * tanh(c), c};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 2> step_vjp(const Gates<V>& gates,
                                                           const StepState<V, 2>& before,
                                                           const StepState<V, 2>& d) {
    const auto i = logistic(gates.p), f = logistic(gates.q), o = logistic(gates.s);
    const V g = tanh(gates.v);
    const V y = tanh(fma(f.value, before.c, i.value * g));
    const V dc = fma(d.h * o.value, fma(-y, y, V(1)), d.c);
    return {{dc * g * i.value * i.complement, dc * before.c * f.value * f.complement,
             dc * i.value * fma(-g, g, V(1)), d.h * y * o.value * o.complement},
            {V(0), dc * f.value}};
  }
};

}  // namespace scanrnn::cell
