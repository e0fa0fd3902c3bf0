// SPDX-License-Identifier: Apache-2.0
// Pointwise functions that cells are built from, each with its derivative. V is a float or double,
// on host or device, or a SIMD vector of them.
#pragma once

#include "scanrnn/scan/hd.h"

namespace scanrnn::cell {

using scan::abs;
using scan::any;
using scan::bounded_exp;
using scan::fast_exp;
using scan::fma;
using scan::less;
using scan::log1p;
using scan::max;
using scan::min;
using scan::reciprocal;
using scan::select;
using scan::sqrt;
using scan::tanh;

// sigma(x) = 1 / (1 + e^-x) and 1 - sigma(x), both to full relative precision in both tails as far
// as bounded_exp goes.
template <class V>
struct Logistic {
  V value, complement;
};

template <class V>
SCANRNN_HD Logistic<V> logistic(V x) {
  const V e = bounded_exp(x);
  const V complement = reciprocal(V(1) + e);
  return {e * complement, complement};
}

// An activation: value f(x), and slope f'(x).

struct Identity {
  static constexpr const char* name = "identity";
  template <class V>
  SCANRNN_HD static V value(V x) {
    return x;
  }
  template <class V>
  SCANRNN_HD static V slope(V) {
    return V(1);
  }
};

struct Linear : Identity {
  static constexpr const char* name = "linear";
};

struct Tanh {
  static constexpr const char* name = "tanh";
  template <class V>
  SCANRNN_HD static V value(V x) {
    return tanh(x);
  }
  template <class V>
  SCANRNN_HD static V slope(V x) {
    // 1 - tanh^2 would have no digits where tanh is nearly 1.
    const auto s = logistic(x + x);
    return V(4) * s.value * s.complement;
  }
};

struct Relu {
  static constexpr const char* name = "relu";
  template <class V>
  SCANRNN_HD static V value(V x) {
    return select(less(x, V(0)), V(0), x);  // this way round a NaN stays a NaN
  }
  template <class V>
  SCANRNN_HD static V slope(V x) {
    return select(less(V(0), x), V(1), V(0));
  }
};

// g(x) = x + 1/2 for x >= 0, else sigma(x): the positive candidate of Feng et al. 2024
// (arXiv 2410.01201, appendix B).
struct PositiveG {
  static constexpr const char* name = "g";
  template <class V>
  SCANRNN_HD static V value(V x) {
    return select(less(x, V(0)), logistic(x).value, x + V(0.5));  // which slope() needs as well
  }
  template <class V>
  SCANRNN_HD static V slope(V x) {
    const auto s = logistic(x);
    return select(less(x, V(0)), s.value * s.complement, V(1));
  }
};

// What a cell can be instantiated with; the first is the default.
template <class...>
struct Variants {};
using Candidates = Variants<PositiveG, Linear, Tanh>;
using Activations = Variants<Identity, Tanh, Relu>;
using Nonlinearities = Variants<Tanh, Relu>;
using UnitNonlinearities = Variants<Relu, Tanh>;
// The list of a cell that has nothing to choose.
struct Only {
  static constexpr const char* name = "";
};
using One = Variants<Only>;

}  // namespace scanrnn::cell
