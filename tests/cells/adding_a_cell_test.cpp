// SPDX-License-Identifier: Apache-2.0
// The cell that docs/adding_a_cell.md builds: the page's code is the region between the marks, and
// is checked here against its equation and finite differences of that. It is in no registry.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

// [cell]
#include "scanrnn/cells/linear_cell.h"

namespace scanrnn::cell {

// Candidate, g in the equation, is one of Candidates.
template <class Candidate>
struct GatedAverage : LinearCell {
  static constexpr int kGates = 3;
  template <class V>
  struct Gates {
    V p, q, v;
  };

  template <class V, class F>
  SCANRNN_HD static Gates<V> gather(F&& row) {
    return {row(0), row(1), row(2)};
  }
  template <class V, class F>
  SCANRNN_HD static void scatter(const Gates<V>& g, F&& row) {
    row(0, g.p);
    row(1, g.q);
    row(2, g.v);
  }

  template <class V>
  SCANRNN_HD static scan::Affine<V> lift(const Gates<V>& g) {
    const auto s = logistic(g.p), r = logistic(g.q);
    const V z = s.value * r.value;
    // 1 - s r = (1 - s) + s (1 - r): a sum of positive terms, so no digits cancel.
    return {fma(s.value, r.complement, s.complement), z, z * Candidate::value(g.v)};
  }
  template <class V>
  SCANRNN_HD static Gates<V> lift_vjp(const Gates<V>& g, const AffineCotangent<V>& d) {
    const auto s = logistic(g.p), r = logistic(g.q);
    const V z = s.value * r.value;
    const V dz = fma(Candidate::value(g.v), d.b, -d.a);
    return {dz * z * s.complement, dz * z * r.complement, d.b * z * Candidate::slope(g.v)};
  }
};

}  // namespace scanrnn::cell
// [cell]

namespace scanrnn::test {
namespace {

using Cell = cell::GatedAverage<cell::Tanh>;
using Real = long double;

Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

struct Map {
  Real a, z, b;
};
Map equation(Real p, Real q, Real v) {
  const Real z = sigmoid(p) * sigmoid(q);
  return {sigmoid(-p) + sigmoid(p) * sigmoid(-q), z, z * std::tanh(v)};
}

// Every combination of three of these.
template <class F>
void for_gates(std::initializer_list<double> logits, F&& use) {
  for (double p : logits) {
    for (double q : logits) {
      for (double v : logits) use(p, q, v);
    }
  }
}

TEST(AddingACell, LiftKeepsItsDigitsInBothTails) {
  constexpr Real kRelative = 8 * std::numeric_limits<float>::epsilon();
  for_gates({0, 0.3, -0.3, 5, -5, 16, -16, 40, -40}, [&](double p, double q, double v) {
    const auto got =
        Cell::lift<float>({static_cast<float>(p), static_cast<float>(q), static_cast<float>(v)});
    const Map want = equation(static_cast<float>(p), static_cast<float>(q), static_cast<float>(v));
    const auto close = [](Real x, Real y) { return std::fabs(x - y) <= kRelative * std::fabs(y); };
    ASSERT_TRUE(close(got.a, want.a) && close(got.z, want.z) && close(got.b, want.b))
        << p << ' ' << q << ' ' << v << ": " << got.a << ' ' << got.z << ' ' << got.b << ", want "
        << want.a << ' ' << want.z << ' ' << want.b;
  });
}

TEST(AddingACell, VjpAgainstFiniteDifferences) {
  for_gates({0.3, -0.3, 2, -2, 9, -9}, [](double p, double q, double v) {
    const double da = 0.75, db = -1.25;
    const auto got = Cell::lift_vjp<double>({p, q, v}, {da, db});
    const auto slope = [&](Real dp, Real dq, Real dv) {
      constexpr Real h = 1e-5L;
      const Map up = equation(p + h * dp, q + h * dq, v + h * dv);
      const Map down = equation(p - h * dp, q - h * dq, v - h * dv);
      return (da * (up.a - down.a) + db * (up.b - down.b)) / (2 * h);
    };
    const auto close = [](Real x, Real y) {
      return std::fabs(x - y) <= 1e-9L * std::fabs(y) + 1e-12L;
    };
    ASSERT_TRUE(close(got.p, slope(1, 0, 0)) && close(got.q, slope(0, 1, 0)) &&
                close(got.v, slope(0, 0, 1)))
        << p << ' ' << q << ' ' << v;
  });
}

TEST(AddingACell, GatherAndScatterAreInverse) {
  const auto gates = Cell::gather<double>([](int row) { return 10.0 + row; });
  int written = 0;
  Cell::scatter<double>(gates, [&](int row, double value) {
    EXPECT_EQ(value, 10.0 + row);
    ++written;
  });
  EXPECT_EQ(written, Cell::kGates);
}

}  // namespace
}  // namespace scanrnn::test
