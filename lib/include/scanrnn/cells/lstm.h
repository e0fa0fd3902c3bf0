// SPDX-License-Identifier: Apache-2.0
// LSTM:  c_t = f c_{t-1} + i g,  h_t = o tanh(c_t),  i, f, o = sigma(p, q, s),  g = tanh(v)
// (Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000; as torch.nn.LSTM.)
#pragma once

#include "scanrnn/cells/step_cell.h"

namespace scanrnn::cell {

template <class = Only>
struct LSTM : StepCell {
  static constexpr int kGates = 4, kPreactivations = 4, kStates = 2;
  static constexpr bool kByLines = true;
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

  // What the gates let through. A step is what is remembered, and the output of it.
  template <class V>
  struct Values {
    Logistic<V> i, f, o;
    V g;
  };
  template <class V>
  SCANRNN_HD static Values<V> values(const Gates<V>& g) {
    return {logistic(g.p), logistic(g.q), logistic(g.s), tanh(g.v)};
  }
  template <class V>
  SCANRNN_HD static V remember(const Values<V>& by, const V& before) {
    return fma(by.f.value, before, by.i.value * by.g);
  }
  template <class V>
  SCANRNN_HD static V output(const Values<V>& by, const V& seen) {
    return by.o.value * tanh(seen);
  }
  template <class V>
  SCANRNN_HD static StepState<V, 2> step(const Gates<V>& g, const StepState<V, 2>& before) {
    const auto by = values(g);
    const V c = remember(by, before.c);
    return {output(by, c), c};
  }

  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 2> remember_vjp(const Values<V>& by, const V& before,
                                                               const V& d) {
    return {{d * by.g * by.i.value * by.i.complement, d * before * by.f.value * by.f.complement,
             d * by.i.value * fma(-by.g, by.g, V(1)), V(0)},
            {V(0), d * by.f.value}};
  }
  template <class V>
  struct OutputCotangent {
    V s, c;
  };
  template <class V>
  SCANRNN_HD static OutputCotangent<V> output_vjp(const Values<V>& by, const V& seen,
                                                  const StepState<V, 2>& d) {
    const V y = tanh(seen);
    return {d.h * y * by.o.value * by.o.complement, fma(d.h * by.o.value, fma(-y, y, V(1)), d.c)};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 2> step_vjp(const Gates<V>& gates,
                                                           const StepState<V, 2>& before,
                                                           const StepState<V, 2>& d) {
    const auto by = values(gates);
    const auto out = output_vjp(by, remember(by, before.c), d);
    auto back = remember_vjp(by, before.c, out.c);
    back.gates.s = out.s;
    return back;
  }
};

}  // namespace scanrnn::cell
