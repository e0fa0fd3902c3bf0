// SPDX-License-Identifier: Apache-2.0
// LSTM whose gates read the cell, too, by a vector each: w_i c_{t-1} adds to p, w_f c_{t-1} to q,
// w_o c_t to s of cells/lstm.h (Gers, Schraudolph and Schmidhuber 2002).
#pragma once

#include "scanrnn/cells/lstm.h"

namespace scanrnn::cell {

template <class = Only>
struct PeepholeLSTM : LSTM<> {
  static constexpr int kVectors = 3;  // w_i, w_f and w_o
  static constexpr bool kByLines = false;

  template <class V>
  SCANRNN_HD static StepState<V, 2> step(const Gates<V>& gates, const Vectors<V, 3>& w,
                                         const StepState<V, 2>& before) {
    const V i = logistic(fma(w.value[0], before.c, gates.p)).value;
    const V f = logistic(fma(w.value[1], before.c, gates.q)).value;
    const V c = fma(f, before.c, i * tanh(gates.v));
    return {logistic(fma(w.value[2], c, gates.s)).value * tanh(c), c};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 2, 3> step_vjp(const Gates<V>& gates,
                                                              const Vectors<V, 3>& w,
                                                              const StepState<V, 2>& before,
                                                              const StepState<V, 2>& d) {
    const auto i = logistic(fma(w.value[0], before.c, gates.p));
    const auto f = logistic(fma(w.value[1], before.c, gates.q));
    const V g = tanh(gates.v);
    const V c = fma(f.value, before.c, i.value * g);
    const auto o = logistic(fma(w.value[2], c, gates.s));
    const V y = tanh(c);
    const V ds = d.h * y * o.value * o.complement;
    const V dc = fma(ds, w.value[2], fma(d.h * o.value, fma(-y, y, V(1)), d.c));
    const V dp = dc * g * i.value * i.complement, dq = dc * before.c * f.value * f.complement;
    return {{dp, dq, dc * i.value * fma(-g, g, V(1)), ds},
            {V(0), fma(dp, w.value[0], fma(dq, w.value[1], dc * f.value))},
            {{dp * before.c, dq * before.c, ds * c}}};
  }
};

}  // namespace scanrnn::cell
