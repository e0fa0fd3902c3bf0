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

// Sums, and the sums of the squares of what was added.
struct Sum {
  Reals values, squares;
  explicit Sum(std::size_t count) : values(count), squares(count) {}
  void add(std::size_t i, Real term) {
    values[i] += term;
    squares[i] += term * term;
  }
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
