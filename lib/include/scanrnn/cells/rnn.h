// SPDX-License-Identifier: Apache-2.0
// RNN:  h_t = phi(v)                    (Elman 1990; as torch.nn.RNN.)
#pragma once

#include "scanrnn/cells/step_cell.h"

namespace scanrnn::cell {

// Activation, phi in the equation, is one of Nonlinearities.
template <class Activation>
struct RNN {
  static constexpr int kGates = 1, kPreactivations = 1;
  static constexpr bool kPair = false;
  template <class V>
  struct Gates {
    V v;
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& sum) {
    return {sum(0)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& sum) {
    sum(0, g.v);
  }

  template <class V>
  SCANRNN_HD static StepState<V> step(const Gates<V>& g, const StepState<V>& before) {
    return {Activation::value(g.v), before.c};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>> step_vjp(const Gates<V>& g, const StepState<V>&,
                                                        const StepState<V>& d) {
    return {{d.h * Activation::slope(g.v)}, {V(0), d.c}};
  }
};

}  // namespace scanrnn::cell
