// SPDX-License-Identifier: Apache-2.0
// The operators of sequences that are cut, and of states with exponents of their own: identities,
// associativity, and that a zero forgets whatever came before.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "scanrnn/scan/complex.h"
#include "scanrnn/scan/log_state.h"
#include "support/random.h"

namespace scanrnn::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A step by logarithms: now and then a decay of zero, or no input.
scan::LogAffine<double> draw(Random& random) {
  const double kind = random.uniform(0, 1);
  return {kind < 0.1 ? -kInfinity : random.uniform(-2, 0),
          kind > 0.9 ? -kInfinity : random.uniform(-3, 3), random.uniform(-1, 1) < 0 ? -1.0 : 1.0};
}

// Each Op by the same steps, and what it makes of a state.
struct Linear {
  using Op = scan::ResetOp<double>;
  static Op::Step step(const scan::LogAffine<double>& f) { return lift(f); }
  static Op::State state(double h) { return scan::carried(h); }
  static double value(const Op::State& s) { return s.h + s.c; }
};
struct Log {
  using Op = scan::LogResetOp<double>;
  static Op::Step step(const scan::LogAffine<double>& f) { return lift(f); }
  static Op::State state(double h) { return scan::carried(h); }
  static double value(const Op::State& s) { return s.h + s.c; }
};
struct LogState {
  using Op = scan::LogStateOp<double>;
  static Op::Step step(const scan::LogAffine<double>& f) { return scaled_lift(f); }
  static Op::State state(double h) {
    return scan::scaled_state(std::log(std::fabs(h)), h < 0 ? -1.0 : 1.0);
  }
  static double value(const Op::State& s) { return sign_of(s) * std::exp(log_of(s)); }
};

template <class Way>
class CutOperatorTest : public testing::Test {};
using Ways = testing::Types<Linear, Log, LogState>;
TYPED_TEST_SUITE(CutOperatorTest, Ways);

TYPED_TEST(CutOperatorTest, AnyBracketsGiveTheSame) {
  using Op = typename TypeParam::Op;
  Random random(201);
  for (int i = 0; i < 2000; ++i) {
    std::vector<scan::LogAffine<double>> steps;
    for (int k = 0; k < 7; ++k) steps.push_back(draw(random));
    const double start = random.uniform(-1, 1);
    double want = start, terms = 1;
    auto walked = TypeParam::state(start);
    for (const auto& f : steps) {
      want = std::exp(f.log_a) * want + f.sign_b * std::exp(f.log_b);
      terms += std::exp(f.log_b);
      walked = Op::apply(TypeParam::step(f), walked);
    }
    const auto element = [&](std::size_t k) {
      return Op::promote(Op::then(Op::local_identity(), TypeParam::step(steps[k])));
    };
    auto first = Op::identity(), last = Op::identity();
    for (std::size_t k = 0; k < 7; ++k) {
      first = Op::combine(first, element(k));
      last = Op::combine(element(6 - k), last);
    }
    auto local = Op::local_identity();
    for (const auto& f : steps) local = Op::then(local, TypeParam::step(f));
    const auto all =
        Op::template combine_all<7>([&](int k) { return element(static_cast<std::size_t>(k)); });
    const auto begin = TypeParam::state(start);
    const double bound = 1e-13 * terms;
    ASSERT_NEAR(TypeParam::value(walked), want, bound);
    ASSERT_NEAR(TypeParam::value(Op::apply(first, begin)), want, bound);
    ASSERT_NEAR(TypeParam::value(Op::apply(last, begin)), want, bound);
    ASSERT_NEAR(TypeParam::value(Op::apply(local, begin)), want, bound);
    ASSERT_NEAR(
        TypeParam::value(Op::apply(Op::promote(Op::join(Op::local_identity(), local)), begin)),
        want, bound);
    ASSERT_NEAR(TypeParam::value(Op::apply(Op::linear(all), begin)), want, bound);
  }
}

// Whatever stands before a zero decay, in whatever brackets.
TYPED_TEST(CutOperatorTest, AZeroForgets) {
  using Op = typename TypeParam::Op;
  const scan::LogAffine<double> zero{-kInfinity, 0.5, 1}, after{-0.25, -kInfinity, 1};
  const double want = std::exp(0.25);
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
    for (bool decay : {false, true}) {
      const auto before = decay ? TypeParam::step({bad, -0.5, 1}) : TypeParam::step({-0.5, bad, 1});
      const auto cut = TypeParam::step(zero), kept = TypeParam::step(after);
      auto state = Op::apply(before, TypeParam::state(0.5));
      ASSERT_FALSE(std::isfinite(TypeParam::value(state)));
      EXPECT_NEAR(TypeParam::value(Op::apply(kept, Op::apply(cut, state))), want, 1e-14);
      EXPECT_NEAR(TypeParam::value(Op::advance(kept, Op::advance(cut, state))), want, 1e-14);
      auto local = Op::local_identity();
      for (const auto& step : {before, cut, kept}) local = Op::then(local, step);
      EXPECT_NEAR(TypeParam::value(Op::apply(local, state)), want, 1e-14);
      const auto element = [&](int i) {
        const auto& step = i == 0 ? before : i == 1 ? cut : kept;
        return Op::promote(Op::then(Op::local_identity(), step));
      };
      const auto left = Op::combine(Op::combine(element(0), element(1)), element(2));
      const auto right = Op::combine(element(0), Op::combine(element(1), element(2)));
      EXPECT_NEAR(TypeParam::value(Op::apply(left, state)), want, 1e-14);
      EXPECT_NEAR(TypeParam::value(Op::apply(right, state)), want, 1e-14);
      const auto all = Op::template combine_all<3>(element);
      EXPECT_NEAR(TypeParam::value(Op::apply(Op::linear(all), state)), want, 1e-14);
    }
  }
}

// A product of decays that underflows is no zero: a NaN goes through it.
TYPED_TEST(CutOperatorTest, AnUnderflowForgetsNothing) {
  using Op = typename TypeParam::Op;
  const auto step = TypeParam::step({-700, -kInfinity, 1});
  const auto nan = Op::apply(TypeParam::step({0, std::numeric_limits<double>::quiet_NaN(), 1}),
                             TypeParam::state(1));
  const auto local = Op::then(Op::then(Op::local_identity(), step), step);
  EXPECT_TRUE(std::isnan(TypeParam::value(Op::apply(local, nan))));
  const auto element = Op::promote(Op::then(Op::local_identity(), step));
  EXPECT_TRUE(std::isnan(TypeParam::value(Op::apply(Op::combine(element, element), nan))));
}

// However large the state before a zero decay: what follows is beside nothing of it.
template <class V>
void expect_forgotten() {
  using Op = scan::LogStateOp<V>;
  const V infinity = std::numeric_limits<V>::infinity();
  const auto before = scaled_lift(scan::LogAffine<V>{V(3), V(1), V(1)});
  const auto zero = scaled_lift(scan::LogAffine<V>{-infinity, V(0.5), V(-1)});
  const auto after = scaled_lift(scan::LogAffine<V>{V(-0.25), -infinity, V(1)});
  for (V log_h : {V(-1e6), V(0), V(700), V(1e6)}) {
    const auto state = scan::scaled_state(log_h, V(1));
    auto local = Op::local_identity();
    for (const auto& step : {before, zero, after}) local = Op::then(local, step);
    auto cut_first = Op::local_identity();
    for (const auto& step : {zero, after}) cut_first = Op::then(cut_first, step);
    const auto joined = Op::join(Op::then(Op::local_identity(), before), cut_first);
    for (const auto& map : {local, cut_first, joined}) {
      const auto end = Op::apply(map, state);
      EXPECT_NEAR(log_of(end), 0.25, 1e-6) << log_h;
      EXPECT_EQ(sign_of(end), V(-1)) << log_h;
    }
  }
}
TEST(LogStateTest, AZeroForgetsAnyState) {
  expect_forgotten<float>();
  expect_forgotten<double>();
}

// Powers of two and exponents, bit by bit; e^x far beyond the range of V.
TEST(LogStateTest, Exponents) {
  for (int n = -126; n < 128; ++n) {
    EXPECT_EQ(scan::power_of_two(static_cast<float>(n)), std::ldexp(1.0f, n));
    EXPECT_EQ(scan::exponent_of(std::ldexp(-1.75f, n)), static_cast<float>(n));
  }
  for (int n = -1022; n < 1024; ++n) {
    EXPECT_EQ(scan::power_of_two(static_cast<double>(n)), std::ldexp(1.0, n));
    EXPECT_EQ(scan::exponent_of(std::ldexp(1.75, n)), static_cast<double>(n));
  }
  EXPECT_EQ(scan::power_of_two(-1e9f), 0.0f);
  EXPECT_EQ(scan::power_of_two(-1e9), 0.0);
  for (double x : {-9e29, 1e22, -1.5e8, -1e6, -3.5, -0.3, 0.0, 0.6, 1e5, 7e8, 1e15}) {
    const auto state = scan::scaled_state(static_cast<float>(x), -1.0f);
    EXPECT_NEAR(scan::log_of(state), static_cast<double>(static_cast<float>(x)),
                2e-7 * std::fmax(1, std::fabs(x)));
    EXPECT_EQ(scan::sign_of(state), -1.0f);
  }
  EXPECT_EQ(scan::log_of(scan::scaled_state(-INFINITY, 1.0f)), -INFINITY);
  EXPECT_EQ(scan::log_of(scan::scaled_state(INFINITY, 1.0f)), INFINITY);
}

// 1 - e^x keeps its digits at any x.
TEST(LogStateTest, OneMinusExp) {
  for (float x = -20; x < 20; x += 0.0078125f) {
    for (float tiny : {1.0f, 1e-3f, 1e-8f}) {
      const float at = x * tiny;
      const double want = -std::expm1(static_cast<double>(at));
      const float got = scan::one_minus_exp(at, std::exp(at));
      ASSERT_NEAR(got, want, 5e-7 * std::fabs(want)) << at;
    }
  }
}

// The parts of a complex number are those of std::complex's.
TEST(ComplexTest, Arithmetic) {
  using C = scan::Complex<double>;
  const C a{1.5, -2}, b{0.25, 3}, c{-1, 0.5};
  const C product = a * b, sum = fma(a, b, c), flipped = scan::conj(a);
  EXPECT_EQ(product.re, 6.375);
  EXPECT_EQ(product.im, 4.0);
  EXPECT_EQ(sum.re, 5.375);
  EXPECT_EQ(sum.im, 4.5);
  EXPECT_EQ(flipped.im, 2.0);
  EXPECT_TRUE(is_small(C(0.3, 0.3)));
  EXPECT_FALSE(is_small(C(0.4, 0.4)));
  EXPECT_TRUE(is_zero(C(0)));
  EXPECT_FALSE(is_zero(C(0, 1e-300)));
}

}  // namespace
}  // namespace scanrnn::test
