// SPDX-License-Identifier: Apache-2.0
// The pointwise functions: values in both tails, slopes against finite differences, and NaN.
#include "scanrnn/cells/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/oracle_parts.h"

namespace scanrnn::test {
namespace {

using Real = long double;

template <class V>
class ActivationTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationTest, Types);

template <class... Options, class F>
void for_each(cell::Variants<Options...>, F&& check) {
  (check(Options()), ...);
}

// An exponential is bounded, so a tail that would be below this is this instead.
template <class V>
const Real kFloor = std::exp(-static_cast<Real>(scan::kLargestExponent<V>));

TYPED_TEST(ActivationTest, LogisticKeepsItsDigitsInBothTails) {
  using V = TypeParam;
  for (double x : {0.0, 1e-9, 0.5, 1.0, 10.0, 16.118, 30.0, 79.0, 85.9, 200.0, 702.0, 1000.0}) {
    for (V v : {static_cast<V>(x), static_cast<V>(-x)}) {
      const auto got = cell::logistic(v);
      const Real allowed = 4 * static_cast<Real>(std::numeric_limits<V>::epsilon());
      const Real tail = std::fabs(v) <= scan::kLargestExponent<V> ? 0 : 2 * kFloor<V>;
      const Real value = oracle::sigmoid(v), complement = oracle::sigmoid(-static_cast<Real>(v));
      EXPECT_LE(std::fabs(got.value - value), allowed * value + tail) << v;
      EXPECT_LE(std::fabs(got.complement - complement), allowed * complement + tail) << v;
      EXPECT_GE(got.value, V(0));
      EXPECT_GE(got.complement, V(0));
    }
  }
}

TYPED_TEST(ActivationTest, ValueAndSlope) {
  using V = TypeParam;
  const auto check = [](auto option) {
    using Option = decltype(option);
    for (double x : {0.0, -0.0, 1e-6, -1e-6, 0.5, -0.5, 2.0, -2.0, 30.0, -30.0, 1000.0, -1000.0}) {
      const V v = static_cast<V>(x);
      const Real allowed = 4 * static_cast<Real>(std::numeric_limits<V>::epsilon());
      const Real tiny = std::fabs(x) < 100 ? 0 : 5 * kFloor<V>;
      const Real value = oracle::value_of(Option::name, v),
                 slope = oracle::slope_of(Option::name, v);
      EXPECT_LE(std::fabs(Option::value(v) - value), allowed * std::fabs(value) + tiny)
          << Option::name << " at " << x;
      EXPECT_LE(std::fabs(Option::slope(v) - slope), allowed * std::fabs(slope) + tiny)
          << Option::name << " at " << x;
    }
    EXPECT_TRUE(std::isnan(Option::value(std::numeric_limits<V>::quiet_NaN()))) << Option::name;
  };
  for_each(cell::Candidates(), check);
  for_each(cell::Activations(), check);
}

TEST(Activation, SlopesAreDerivatives) {
  const auto check = [](auto option) {
    using Option = decltype(option);
    for (double x : {0.5, -0.5, 2.0, -2.0, 8.0, -8.0}) {
      const double step = 1e-5;
      const double want = (Option::value(x + step) - Option::value(x - step)) / (2 * step);
      EXPECT_NEAR(Option::slope(x), want, 1e-9) << Option::name << " at " << x;
    }
  };
  for_each(cell::Candidates(), check);
  for_each(cell::Activations(), check);
}

// g is positive and continuous, which is what its logarithm rests on.
TEST(Activation, PositiveGIsPositiveAndContinuous) {
  EXPECT_EQ(cell::PositiveG::value(0.0), 0.5);
  EXPECT_NEAR(cell::PositiveG::value(-1e-12), 0.5, 1e-12);
  for (double x = -700; x < 700; x += 0.37) EXPECT_GT(cell::PositiveG::value(x), 0.0) << x;
}

// The default of a cell is its first variant.
TEST(Activation, Names) {
  std::vector<std::string> candidates, activations;
  for_each(cell::Candidates(), [&](auto option) { candidates.emplace_back(option.name); });
  for_each(cell::Activations(), [&](auto option) { activations.emplace_back(option.name); });
  EXPECT_EQ(candidates, (std::vector<std::string>{"g", "linear", "tanh"}));
  EXPECT_EQ(activations, (std::vector<std::string>{"identity", "tanh", "relu"}));
}

}  // namespace
}  // namespace scanrnn::test
