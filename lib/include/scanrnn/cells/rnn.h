// SPDX-License-Identifier: Apache-2.0
// RNN:  h_t = phi(v)                    (Elman 1990; as torch.nn.RNN.)
#pragma once

#include "scanrnn/cells/step_cell.h"

namespace scanrnn::cell {

// Activation, phi in the equation, is one of Nonlinearities.
template <class Activation>
struct RNN : StepCell {
  static constexpr int kGates = 1, kPreactivations = 1;
  static constexpr bool kByLines = true;
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
  SCANRNN_HD static StepState<V, 1> step(const Gates<V>& g, const StepState<V, 1>&) {
    return {Activation::value(g.v)};
  }
  template <class V>
  SCANRNN_HD static StepCotangent<V, Gates<V>, 1> step_vjp(const Gates<V>& g,
                                                           const StepState<V, 1>&,
                                                           const StepState<V, 1>& d) {
    return {{d.h * Activation::slope(g.v)}, {V(0)}};
  }
};

}  // namespace scanrnn::cell
