// SPDX-License-Identifier: Apache-2.0
// The scan operators of decays and states of any size, against the same maps in long double.
#include "scanrnn/scan/any_op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/limits.h"
#include "support/random.h"

namespace scanrnn::test {
namespace {

template <class Op>
class AnyOperatorTest : public testing::Test {};
using Ops = testing::Types<scan::AnyAffineOp<float>, scan::AnyAffineOp<double>,
                           scan::AnyPlainOp<float>, scan::AnyPlainOp<double>>;
TYPED_TEST_SUITE(AnyOperatorTest, Ops);
template <class Op>
using ValueOf = decltype(Op::local_identity().a);

// Maps whose decays are of any size and sign, composed as kernels do it: runs of a few steps, which
// are joined. z is what a leaves of 1, whatever cancels on its way there.
template <class Op>
void compose_decays_of_any_size(int run_steps) {
  using V = ValueOf<Op>;
  Random random(11);
  for (int i = 0; i < 3000; ++i) {
    const double spread = i % 3 == 0 ? 0.3 : i % 3 == 1 ? 3 : 9;
    auto joined = Op::local_identity(), appended = Op::local_identity();
    Real want = 1;
    for (int part = 0; part < 6; ++part) {
      auto run = Op::no_steps();
      for (int k = 0; k < run_steps; ++k) {
        // Back towards 1, so that what was lost of z would count.
        const double size = std::exp(spread * random.uniform(-1, 1)) *
                            std::pow(static_cast<double>(std::fabs(want)), -0.5);
        const V a = static_cast<V>(random.uniform(-1, 3) < 0 ? -size : size);
        const scan::Affine<V> step{a, V(1) - a, V(0)};
        want *= static_cast<Real>(a);
        run = Op::then(run, step);
        appended = Op::then(appended, step);
      }
      joined = Op::join(joined, Op::whole(run));
    }
    for (const auto& got : {joined, appended}) {
      ASSERT_LE(std::fabs(got.a - want), 100 * kEpsilon<V> * std::fabs(want));
      ASSERT_LE(std::fabs(got.z - (1 - want)),
                100 * kEpsilon<V> * std::max<Real>(1, std::fabs(want)));
    }
  }
}
TYPED_TEST(AnyOperatorTest, DecaysOfAnySize) {
  for (const int steps : {scan::kLocalSteps, scan::kLocalSteps - 1, 1}) {
    compose_decays_of_any_size<TypeParam>(steps);
  }
}

// Where most is kept, z has the digits that 1 - a has lost.
TYPED_TEST(AnyOperatorTest, DecaysNearOne) {
  using Op = TypeParam;
  using V = ValueOf<Op>;
  Random random(12);
  for (int i = 0; i < 3000; ++i) {
    auto run = Op::no_steps();
    Real want = 1;
    for (int k = 0; k < scan::kLocalSteps - i % 2; ++k) {
      const V a = static_cast<V>(1 - std::ldexp(random.uniform(0, 1), -i % 8 - 1));
      want *= static_cast<Real>(a);
      run = Op::then(run, {a, V(1) - a, V(0)});
    }
    const Real z = Op::whole(run).z;
    ASSERT_LE(std::fabs(z - (1 - want)), 4 * kEpsilon<V> * (1 - want));
  }
}

TYPED_TEST(AnyOperatorTest, InfiniteStatesStay) {
  using Op = TypeParam;
  using V = ValueOf<Op>;
  const V a = V(0.9);
  const scan::Affine<V> keeps{a, V(1) - a, V(1)}, jumps{a, V(1) - a, kInfinity<V>};
  auto state = Op::apply(keeps, scan::carried(V(3)));
  state = Op::apply(keeps, Op::apply(jumps, state));
  EXPECT_EQ(state.h, kInfinity<V>);
  const auto all = Op::join(Op::join(keeps, jumps), keeps);
  EXPECT_EQ(all.b, kInfinity<V>);
  EXPECT_EQ(Op::apply(keeps, Op::apply(all, scan::carried(V(-3)))).h, kInfinity<V>);
}

TYPED_TEST(AnyOperatorTest, ZeroThroughProductsBeyondTheRange) {
  using Op = TypeParam;
  using V = ValueOf<Op>;
  const V large = std::numeric_limits<V>::max() / 2, nan = kNan<V>;
  const scan::Affine<V> grows{large, V(1) - large, V(0)}, ends{V(0), V(1), V(3)};
  const auto through = [&](const scan::Affine<V>& f) { return Op::join(Op::join(grows, f), ends); };
  const auto all = through(Op::join(grows, grows));
  EXPECT_EQ(all.b, V(3));
  EXPECT_EQ(Op::apply(all, scan::carried(V(0))).h, V(3));
  const auto lost = through(Op::alone({nan, nan, V(0)}));
  EXPECT_TRUE(std::isnan(Op::apply(lost, scan::carried(V(0))).h));
  EXPECT_TRUE(std::isnan(Op::apply_step({nan, nan, V(0)}, scan::carried(V(0))).h));
}

TYPED_TEST(AnyOperatorTest, RunsThroughProductsBeyondTheRange) {
  using Op = TypeParam;
  using V = ValueOf<Op>;
  const V large = std::numeric_limits<V>::max() / 2;
  const scan::Affine<V> grows{large, V(1) - large, V(0)}, ends{V(0), V(1), V(3)};
  const scan::Affine<V> clears{V(0), V(1), V(0)};
  for (const int odd : {0, 1}) {  // wherever a pair of steps begins
    auto run = Op::no_steps();
    if (odd) run = Op::then(run, clears);
    for (int k = 0; k < 4; ++k) run = Op::then(run, grows);
    EXPECT_EQ(Op::whole(run).b, V(0));
    EXPECT_EQ(Op::whole(Op::then(run, ends)).b, V(3));
    run = Op::then(Op::then(Op::then(Op::no_steps(), clears), grows), grows);
    EXPECT_EQ(Op::whole(run).a, V(0));
    EXPECT_EQ(Op::whole(run).z, V(1));
  }
}

}  // namespace
}  // namespace scanrnn::test
