// SPDX-License-Identifier: Apache-2.0
// What the oracle's equations are written in.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/case.h"

namespace scanrnn::test::oracle {

using Real = long double;
using Reals = std::vector<Real>;

inline Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

// A candidate or an activation by its name, and its slope.
inline Real value_of(const std::string& name, Real x) {
  if (name == "g") return x >= 0 ? x + 0.5L : sigmoid(x);
  if (name == "tanh") return std::tanh(x);
  if (name == "relu") return x > 0 ? x : 0;
  if (name == "linear" || name == "identity") return x;
  throw std::logic_error(name);
}
inline Real slope_of(const std::string& name, Real x) {
  if (name == "g") return x >= 0 ? 1 : sigmoid(x) * sigmoid(-x);
  if (name == "tanh") return 1 / (std::cosh(x) * std::cosh(x));
  if (name == "relu") return x > 0 ? 1 : 0;
  if (name == "linear" || name == "identity") return 1;
  throw std::logic_error(name);
}

// Sums, and the sums of the squares of what was added.
struct Sum {
  Reals values, squares;
  explicit Sum(std::size_t count) : values(count), squares(count) {}
  void add(std::size_t i, Real term) {
    values[i] += term;
    squares[i] += term * term;
  }
};

// What CUDA keeps in the tensors' dtype: the number itself, or, where the oracle is to store as
// CUDA does, what is left of it there. Watches what that costs the pre-activations.
struct Storage {
  Dtype dtype = Dtype::float64;
  bool rounds = false;

  explicit Storage(Dtype type, bool as_cuda) : dtype(type), rounds(as_cuda) {}
  Real operator()(Real value) const {
    return rounds ? rounded(static_cast<double>(value), dtype) : value;
  }
  void operator()(Reals& values) const {
    for (Real& value : values) value = (*this)(value);
  }
  // A pre-activation.
  Real logit(Real value) {
    if (size_of(dtype) > 2) return value;
    const Real kept = rounded(static_cast<double>(value), dtype);
    squares += (kept - value) * (kept - value);
    ++count;
    return rounds ? kept : value;
  }
  double logit_error() const {
    return static_cast<double>(std::sqrt(squares / std::max(count, Real(1))));
  }

 private:
  Real squares = 0, count = 0;
};

inline Values narrow(const Reals& values) { return {values.begin(), values.end()}; }
inline Values roots(const Reals& squares) {
  Values out;
  for (Real value : squares) out.push_back(static_cast<double>(std::sqrt(value)));
  return out;
}

struct Answer : Result {
  Terms terms;
};

}  // namespace scanrnn::test::oracle
