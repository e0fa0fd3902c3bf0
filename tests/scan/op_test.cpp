// SPDX-License-Identifier: Apache-2.0
// The laws of the scan operators, against the same maps in long double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "scanrnn/scan/op.h"
#include "support/compare.h"
#include "support/limits.h"
#include "support/random.h"

namespace scanrnn::test {
namespace {

// With z = 1 - a of its own: near a = 1 even a long double has lost its digits.
struct Map {
  Real a, z, b;
};
Map then(const Map& f, const Map& g) { return {g.a * f.a, g.a * f.z + g.z, g.a * f.b + g.b}; }

template <class V>
scan::LogAffine<V> logarithmic(const Map& f) {
  return {static_cast<V>(f.z < 0.5L ? std::log1p(-f.z) : std::log(f.a)),
          static_cast<V>(std::log(std::fabs(f.b))), f.b < 0 ? V(-1) : V(1)};
}
template <class V>
scan::Affine<V> linear(const Map& f) {
  return {static_cast<V>(f.a), static_cast<V>(f.z), static_cast<V>(f.b)};
}
template <class V>
Map read(const scan::LogAffine<V>& f) {
  return {std::exp(static_cast<Real>(f.log_a)), -std::expm1(static_cast<Real>(f.log_a)),
          f.sign_b * std::exp(static_cast<Real>(f.log_b))};
}

template <class V>
class OperatorTest : public testing::Test {
 protected:
  // Decays from nothing to everything, inputs of either sign, at magnitudes that floats can square.
  static Map draw(Random& random) {
    const Real logit = random.uniform(-20, 20);
    return {1 / (1 + std::exp(-logit)), 1 / (1 + std::exp(logit)),
            static_cast<Real>(random.uniform(-1, 1)) *
                std::exp(static_cast<Real>(random.uniform(-20, 10)))};
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(OperatorTest, Types);

TYPED_TEST(OperatorTest, AffineIdentity) {
  using V = TypeParam;
  using Op = scan::AffineOp<V>;
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto f = linear<V>(this->draw(random));
    for (const auto& g :
         {Op::combine(Op::identity(), f), Op::combine(f, Op::identity()),
          Op::then(Op::local_identity(), f), Op::join(Op::local_identity(), f), Op::promote(f)}) {
      EXPECT_NEAR(g.a, f.a, kEpsilon<V>);  // it may be taken from z again
      EXPECT_EQ(g.z, f.z);
      EXPECT_EQ(g.b, f.b);
    }
  }
  EXPECT_EQ(Op::apply(Op::identity(), scan::carried(V(3))).h, V(3));
}

TYPED_TEST(OperatorTest, LogIdentityIsExact) {
  using V = TypeParam;
  using Op = scan::LogAffineOp<V>;
  Random random(2);
  for (int i = 0; i < 1000; ++i) {
    const auto f = logarithmic<V>(this->draw(random));
    const auto third = [&](int i) { return i == 2 ? f : Op::identity(); };
    for (const auto& g : {Op::combine(Op::identity(), f), Op::combine(f, Op::identity()),
                          Op::template combine_all<8>(third)}) {
      EXPECT_EQ(g.log_a, f.log_a);
      EXPECT_EQ(g.log_b, f.log_b);
      EXPECT_EQ(g.sign_b, f.sign_b);
    }
  }
  // Minus infinity twice: the difference of two infinities must not be taken.
  const auto one = Op::combine(Op::identity(), Op::identity());
  const auto all = Op::template combine_all<3>([](int) { return Op::identity(); });
  for (const auto& g : {one, all}) {
    EXPECT_EQ(g.log_a, V(0));
    EXPECT_EQ(g.log_b, -kInfinity<V>);
  }
  const auto promoted = Op::promote(Op::local_identity());
  EXPECT_EQ(promoted.log_a, V(0));
  EXPECT_EQ(promoted.log_b, -kInfinity<V>);
  EXPECT_EQ(Op::apply(one, scan::carried(V(3))).h, V(3));
}

// The same holds for z = 1 - a: that is what a long span of kept state lives on.
TYPED_TEST(OperatorTest, AffineIsAssociativeAndRight) {
  using V = TypeParam;
  using Op = scan::AffineOp<V>;
  Random random(3);
  for (int i = 0; i < 10000; ++i) {
    const Map m[3] = {this->draw(random), this->draw(random), this->draw(random)};
    const scan::Affine<V> f[3] = {linear<V>(m[0]), linear<V>(m[1]), linear<V>(m[2])};
    const Map want = then(then(m[0], m[1]), m[2]);
    const Real terms = m[2].a * m[1].a * std::fabs(m[0].b) + m[2].a * std::fabs(m[1].b) +
                       std::fabs(m[2].b);  // what may cancel in b
    for (const auto& got :
         {Op::combine(Op::combine(f[0], f[1]), f[2]), Op::combine(f[0], Op::combine(f[1], f[2])),
          Op::template combine_all<3>([&](int k) { return f[k]; })}) {
      ASSERT_LE(std::fabs(got.a - want.a), 8 * kEpsilon<V> * want.a);
      ASSERT_LE(std::fabs(got.z - want.z), 8 * kEpsilon<V> * want.z);
      ASSERT_LE(std::fabs(got.b - want.b), 8 * kEpsilon<V> * terms);
    }
  }
}

TYPED_TEST(OperatorTest, LogIsAssociativeAndRight) {
  using V = TypeParam;
  using Op = scan::LogAffineOp<V>;
  Random random(4);
  for (int i = 0; i < 10000; ++i) {
    const Map m[3] = {this->draw(random), this->draw(random), this->draw(random)};
    const scan::LogAffine<V> f[3] = {logarithmic<V>(m[0]), logarithmic<V>(m[1]),
                                     logarithmic<V>(m[2])};
    const Map want = then(then(m[0], m[1]), m[2]);
    const Real terms =
        m[2].a * m[1].a * std::fabs(m[0].b) + m[2].a * std::fabs(m[1].b) + std::fabs(m[2].b);
    // A logarithm of magnitude L is rounded by eps L / 2, which is a relative error of the value.
    Real magnitude = 8;
    for (const auto& g : f) magnitude += std::fabs(g.log_a) + std::fabs(g.log_b);
    for (const auto& got :
         {Op::combine(Op::combine(f[0], f[1]), f[2]), Op::combine(f[0], Op::combine(f[1], f[2])),
          Op::template combine_all<3>([&](int k) { return f[k]; })}) {
      const Map value = read(got);
      ASSERT_LE(std::fabs(value.a - want.a), magnitude * kEpsilon<V> * want.a);
      ASSERT_LE(std::fabs(value.b - want.b), magnitude * kEpsilon<V> * terms);
    }
  }
}

TYPED_TEST(OperatorTest, OrderMatters) {
  using V = TypeParam;
  const Map f{0.5, 0.5, 3}, g{0.25, 0.75, -7};  // first f, then g: 0.25 * 3 - 7
  EXPECT_EQ(scan::AffineOp<V>::combine(linear<V>(f), linear<V>(g)).b, V(-6.25));
  const auto log = scan::LogAffineOp<V>::combine(logarithmic<V>(f), logarithmic<V>(g));
  EXPECT_NEAR(static_cast<double>(read(log).b), -6.25, static_cast<double>(64 * kEpsilon<V>));
}

// Gates that repeat: a rounding error of each a, always the same, must not add up over the span.
TYPED_TEST(OperatorTest, LongSpansOfOneMap) {
  using V = TypeParam;
  using Linear = scan::AffineOp<V>;
  using Log = scan::LogAffineOp<V>;
  for (double z : {1e-7, 3e-6, 1.7e-4, 2.7e-3, 0.03}) {
    const Map step{1 - static_cast<Real>(static_cast<V>(z)), static_cast<V>(z), static_cast<V>(z)};
    Map want{1, 0, 0};
    auto joined = Linear::local_identity();
    for (int chunk = 1; chunk <= 256; ++chunk) {
      auto local = Linear::local_identity();
      for (int i = 0; i < scan::kLocalSteps; ++i) {
        local = Linear::then(local, linear<V>(step));
        want = then(want, step);
      }
      joined = Linear::join(joined, local);
    }
    const Real steps = 256 * scan::kLocalSteps;
    const Real allowed = (sizeof(V) == 4 ? 3e-7L : 1e-13L) * (1 + std::log2(steps));
    for (const auto& got : {joined, Log::linear(Log::promote(joined))}) {
      EXPECT_LE(std::fabs(got.a - want.a), allowed) << z;
      EXPECT_LE(std::fabs(got.z - want.z), allowed * want.z) << z;
      EXPECT_LE(std::fabs(got.b - want.b), allowed * want.b) << z;
    }
  }
}

// Steps that are given by logarithms: 1 - a of a run keeps its digits, however close to 1 they are.
TYPED_TEST(OperatorTest, RunsOfLoggedSteps) {
  using V = TypeParam;
  using Op = scan::LoggedAffineOp<V>;
  for (double z : {1e-7, 3e-6, 1.7e-4, 2.7e-3, 0.03, 0.3, 0.9, 0.999}) {
    const V log_a = static_cast<V>(std::log1p(-z)), log_b = static_cast<V>(std::log(z));
    const Real exact = log_a;
    const Map step{std::exp(exact), -std::expm1(exact), std::exp(static_cast<Real>(log_b))};
    Map want{1, 0, 0};
    auto run = Op::no_steps();
    for (int i = 0; i < scan::kLocalSteps; ++i) {
      run = Op::then(run, scan::lift_logged(log_a, log_b));
      want = then(want, step);
    }
    const auto got = Op::whole(run);
    const Real units = 2 * scan::kLocalSteps * kEpsilon<V>;
    EXPECT_LE(std::fabs(got.z - want.z), units * want.z) << z;
    EXPECT_LE(std::fabs(got.b - want.b), units * want.b) << z;
    EXPECT_LE(std::fabs(got.a - want.a), units * want.a + std::numeric_limits<V>::min()) << z;
    const auto after = Op::advance(scan::lift_logged(log_a, log_b), scan::carried(V(2)));
    EXPECT_LE(std::fabs(after.h - (2 * step.a + step.b)), 8 * kEpsilon<V> * after.h) << z;
  }
}

TYPED_TEST(OperatorTest, LogAndLinearFormsAgree) {
  using V = TypeParam;
  using Log = scan::LogAffineOp<V>;
  Random random(5);
  for (int i = 0; i < 10000; ++i) {
    const Map map = this->draw(random);
    const auto f = linear<V>(map);
    const auto promoted = Log::promote(f);
    const auto back = Log::linear(promoted);
    const Real loss = (8 + std::fabs(promoted.log_a)) * kEpsilon<V>;
    ASSERT_LE(std::fabs(back.a - map.a), loss * map.a);
    ASSERT_LE(std::fabs(back.z - map.z), loss * map.z);
    ASSERT_LE(std::fabs(back.b - map.b),
              (8 + std::fabs(promoted.log_b)) * kEpsilon<V> * std::fabs(map.b));
  }
}

TYPED_TEST(OperatorTest, EqualAndOppositeInputsCancel) {
  using V = TypeParam;
  V log_sum, sign;
  scan::signed_logaddexp(V(1), V(1), V(1), V(-1), log_sum, sign);
  EXPECT_EQ(log_sum, -kInfinity<V>);
  // Close to it: log(e^1 - e^(1 - d)) = 1 + log(1 - e^-d).
  const V d = std::numeric_limits<V>::epsilon() * 64;
  scan::signed_logaddexp(V(1), V(1), V(1) - d, V(-1), log_sum, sign);
  const Real gap = V(1) - (V(1) - d), want = 1 + std::log(-std::expm1(-gap));
  EXPECT_LE(std::fabs(std::exp(log_sum - want) - 1),
            (8 + std::fabs(want)) * kEpsilon<V> + kEpsilon<V> / gap);
  EXPECT_EQ(sign, V(1));
  scan::signed_logaddexp(V(-5), V(1), V(2), V(-1), log_sum, sign);
  EXPECT_EQ(sign, V(-1)) << "the sign is that of the larger";
  scan::signed_logaddexp(V(2), V(-1), V(2), V(-1), log_sum, sign);
  EXPECT_EQ(sign, V(-1));
  EXPECT_NEAR(log_sum, 2 + std::log(2.0), 8 * static_cast<double>(kEpsilon<V>));
}

TYPED_TEST(OperatorTest, InfinitiesOfLogAddExp) {
  using V = TypeParam;
  const V none = -kInfinity<V>;
  for (V sx : {V(1), V(-1)}) {
    for (V sy : {V(1), V(-1)}) {
      V log_sum, sign;
      scan::signed_logaddexp(none, sx, none, sy, log_sum, sign);
      EXPECT_EQ(log_sum, none);
      scan::signed_logaddexp(none, sx, V(3), sy, log_sum, sign);
      EXPECT_EQ(log_sum, V(3));
      EXPECT_EQ(sign, sy);
      scan::signed_logaddexp(V(3), sx, none, sy, log_sum, sign);
      EXPECT_EQ(log_sum, V(3));
      EXPECT_EQ(sign, sx);
      scan::signed_logaddexp(kInfinity<V>, sx, V(3), sy, log_sum, sign);
      EXPECT_EQ(log_sum, kInfinity<V>);
      EXPECT_EQ(sign, sx);
    }
  }
}

TYPED_TEST(OperatorTest, NanStaysNan) {
  using V = TypeParam;
  using Linear = scan::AffineOp<V>;
  using Log = scan::LogAffineOp<V>;
  const auto bad = [](V value) { return std::isnan(value); };
  for (V other : {V(-2), V(2), -kInfinity<V>}) {
    for (V s : {V(1), V(-1)}) {
      V log_sum, sign;
      scan::signed_logaddexp(kNan<V>, s, other, V(1), log_sum, sign);
      EXPECT_TRUE(bad(log_sum)) << other;
      scan::signed_logaddexp(other, s, kNan<V>, V(1), log_sum, sign);
      EXPECT_TRUE(bad(log_sum)) << other;
    }
  }
  const scan::Affine<V> ordinary = linear<V>({0.5, 0.5, 1});
  for (const auto& f :
       {scan::Affine<V>{kNan<V>, kNan<V>, V(1)}, scan::Affine<V>{V(0.5), V(0.5), kNan<V>}}) {
    EXPECT_TRUE(bad(Linear::combine(f, ordinary).b) || bad(Linear::combine(f, ordinary).a));
    EXPECT_TRUE(bad(Linear::combine(ordinary, f).b));
    EXPECT_TRUE(bad(Linear::apply(f, scan::carried(V(1))).h));
    const auto promoted = Log::promote(f);
    EXPECT_TRUE(bad(promoted.log_a) || bad(promoted.log_b));
    EXPECT_TRUE(bad(Log::apply(promoted, scan::carried(V(1))).h));
    EXPECT_TRUE(
        bad(Log::apply(Log::combine(Log::promote(ordinary), promoted), scan::carried(V(1))).h));
    EXPECT_TRUE(
        bad(Log::apply(Log::combine(promoted, Log::promote(ordinary)), scan::carried(V(1))).h));
    for (int at = 0; at < 3; ++at) {
      const auto all = Log::template combine_all<3>(
          [&](int i) { return i == at ? promoted : Log::promote(ordinary); });
      EXPECT_TRUE(bad(Log::apply(all, scan::carried(V(1))).h));
    }
  }
  // Infinities are not taken from one another.
  const auto infinite = Log::template combine_all<3>(
      [&](int i) { return scan::LogAffine<V>{V(0), i == 1 ? kInfinity<V> : V(2), V(-1)}; });
  EXPECT_EQ(infinite.log_b, kInfinity<V>);
  EXPECT_EQ(infinite.sign_b, V(-1));
  EXPECT_TRUE(bad(Linear::apply(ordinary, scan::carried(kNan<V>)).h));
}

// All or nothing: the ends of the range of a decay.
TYPED_TEST(OperatorTest, EndsOfTheDecay) {
  using V = TypeParam;
  using Log = scan::LogAffineOp<V>;
  const auto forget = Log::promote({V(0), V(1), V(-2)});
  EXPECT_EQ(forget.log_a, -kInfinity<V>);
  EXPECT_EQ(Log::apply(forget, scan::carried(V(5))).h, Log::linear(forget).b);
  const auto both = Log::combine(forget, forget);
  EXPECT_EQ(both.log_a, -kInfinity<V>);
  EXPECT_EQ(both.log_b, forget.log_b);
  EXPECT_EQ(both.sign_b, V(-1));
  const auto keep = Log::promote({V(1), V(0), V(0)});
  EXPECT_EQ(keep.log_a, V(0));
  EXPECT_EQ(Log::apply(keep, scan::carried(V(5))).h, V(5));
}

}  // namespace
}  // namespace scanrnn::test
