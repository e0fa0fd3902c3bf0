// SPDX-License-Identifier: Apache-2.0
// The dense cells as scalars: a step against the equations in long double, its adjoint against
// finite differences of those, far into both tails.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "scanrnn/cells/gru.h"
#include "scanrnn/cells/lstm.h"
#include "scanrnn/cells/rnn.h"
#include "support/oracle_parts.h"

namespace scanrnn::test {
namespace {

using oracle::Real;
using oracle::sigmoid;
using Sums = std::array<Real, 4>;

struct Pair {
  Real h, c;
};

// The state after a step from the sums in the order of step_cell.h.
template <class Cell>
Pair equations(const Sums& s, const Pair& before);
template <>
Pair equations<cell::LSTM<>>(const Sums& s, const Pair& before) {
  const Real c = sigmoid(s[1]) * before.c + sigmoid(s[0]) * std::tanh(s[2]);
  return {sigmoid(s[3]) * std::tanh(c), c};
}
template <>
Pair equations<cell::GRU<>>(const Sums& s, const Pair& before) {
  const Real z = sigmoid(s[1]), n = std::tanh(s[2] + sigmoid(s[0]) * s[3]);
  return {sigmoid(-s[1]) * n + z * before.h, before.c};
}
template <>
Pair equations<cell::RNN<cell::Tanh>>(const Sums& s, const Pair& before) {
  return {std::tanh(s[0]), before.c};
}
template <>
Pair equations<cell::RNN<cell::Relu>>(const Sums& s, const Pair& before) {
  return {std::fmax(s[0], Real(0)), before.c};
}

template <class Cell, class V>
auto gather(const Sums& s) {
  return Cell::template gather<V>(
      [&](int i) { return static_cast<V>(s.at(static_cast<std::size_t>(i))); });
}

std::string text(const Sums& s) {
  std::ostringstream out;
  out << "at (" << s[0] << ", " << s[1] << ", " << s[2] << ", " << s[3] << ")";
  return out.str();
}

// Every combination of four of these, rounded to V.
template <class V, class F>
void for_sums(const std::vector<double>& values, F&& use) {
  const std::size_t n = values.size();
  for (std::size_t i = 0; i < n * n * n * n; ++i) {
    Sums s{};
    for (std::size_t j = 0, rest = i; j < 4; ++j, rest /= n) {
      s[j] = static_cast<V>(values[rest % n]);
    }
    use(s);
  }
}

template <class Cell>
class DenseCells : public testing::Test {};
using All = testing::Types<cell::LSTM<>, cell::GRU<>, cell::RNN<cell::Tanh>, cell::RNN<cell::Relu>>;
TYPED_TEST_SUITE(DenseCells, All);

template <class Cell, class V>
void check_step() {
  const Real eps = std::numeric_limits<V>::epsilon();
  for_sums<V>({0, 0.3, -1, 5, -16.1, 30, -100, 1000}, [&](const Sums& s) {
    for (const Pair before : {Pair{0, 0}, Pair{0.5, -0.75}, Pair{-1, 30}}) {
      const auto got = Cell::template step<V>(gather<Cell, V>(s),
                                              {static_cast<V>(before.h), static_cast<V>(before.c)});
      const Pair want = equations<Cell>(s, before);
      // A sum of few products of gates, each exact to a few units; tanh passes an error on.
      const Real size = 1 + std::fabs(before.c) + std::fabs(s[3]) * !Cell::kPair;
      ASSERT_TRUE(std::fabs(got.h - want.h) <= 8 * eps * size) << text(s) << " h " << got.h;
      ASSERT_TRUE(std::fabs(got.c - want.c) <= 8 * eps * size) << text(s) << " c " << got.c;
    }
  });
}
TYPED_TEST(DenseCells, StepFloat) { check_step<TypeParam, float>(); }
TYPED_TEST(DenseCells, StepDouble) { check_step<TypeParam, double>(); }

// Every input of a step, one after the other: the sums, then h and c.
template <class Cell>
void check_vjp() {
  constexpr Real kStep = 1e-5L;
  for_sums<double>({0.3, -0.3, 1.5, -6, 16}, [&](const Sums& s) {
    for (const Pair before : {Pair{0.5, -0.75}, Pair{-1, 2}}) {
      const Pair d{-1.5, 0.75};
      const auto got = Cell::template step_vjp<double>(
          gather<Cell, double>(s), {static_cast<double>(before.h), static_cast<double>(before.c)},
          {static_cast<double>(d.h), static_cast<double>(d.c)});
      std::vector<Real> all(6);
      Cell::template scatter<double>(
          got.gates, [&](int i, double value) { all.at(static_cast<std::size_t>(i)) = value; });
      all[4] = got.before.h;
      all[5] = got.before.c;
      for (std::size_t i = 0; i < 6; ++i) {
        const auto moved = [&](Real by) {
          Sums sums = s;
          Pair state = before;
          (i < 4 ? sums[i] : i == 4 ? state.h : state.c) += by;
          const Pair after = equations<Cell>(sums, state);
          return d.h * after.h + d.c * after.c;
        };
        const Real want = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        ASSERT_TRUE(std::fabs(all[i] - want) <= 1e-9L * std::fabs(want) + 1e-10L)
            << text(s) << " input " << i << ": " << all[i] << " want " << want;
      }
    }
  });
}
TYPED_TEST(DenseCells, VjpAgainstFiniteDifferences) { check_vjp<TypeParam>(); }

// Whatever is finite gives no NaN; a gate that is infinite is shut or open.
template <class Cell, class V>
void check_finite() {
  const double huge = static_cast<double>(std::numeric_limits<V>::max()) / 4;
  for_sums<V>({0, 1, -30, 1000, -1e30, huge, -huge}, [&](const Sums& s) {
    const cell::StepState<V> before{V(-1), V(3)};
    const auto after = Cell::template step<V>(gather<Cell, V>(s), before);
    ASSERT_FALSE(std::isnan(after.h) || std::isnan(after.c)) << text(s);
    if constexpr (!std::is_same_v<Cell, cell::RNN<cell::Relu>>) {
      ASSERT_LE(std::fabs(after.h), V(1)) << text(s);
    }
    const auto d = Cell::template step_vjp<V>(gather<Cell, V>(s), before, {V(1), V(-1)});
    ASSERT_FALSE(std::isnan(d.before.h) || std::isnan(d.before.c)) << text(s);
    Cell::template scatter<V>(d.gates, [&](int i, V value) {
      ASSERT_FALSE(std::isnan(value)) << text(s) << " sum " << i;
    });
  });
}
TYPED_TEST(DenseCells, FiniteSumsGiveNoNanFloat) { check_finite<TypeParam, float>(); }
TYPED_TEST(DenseCells, FiniteSumsGiveNoNanDouble) { check_finite<TypeParam, double>(); }

TYPED_TEST(DenseCells, GatherAndScatterAreInverse) {
  constexpr int kSums = TypeParam::kPreactivations;
  std::vector<int> read(kSums), written(kSums);
  const auto gates = TypeParam::template gather<double>([&](int i) {
    ++read.at(static_cast<std::size_t>(i));
    return 10.0 + i;
  });
  TypeParam::template scatter<double>(gates, [&](int i, double value) {
    ++written.at(static_cast<std::size_t>(i));
    EXPECT_EQ(value, 10.0 + i);
  });
  EXPECT_EQ(read, std::vector<int>(kSums, 1));
  EXPECT_EQ(written, std::vector<int>(kSums, 1));
}

TEST(RecurrentSum, OfTheLastBlocksIsTheirOwn) {
  for (int block = 0; block < 4; ++block)
    EXPECT_EQ(cell::recurrent_sum<cell::LSTM<>>(block), block);
  EXPECT_EQ(cell::recurrent_sum<cell::GRU<>>(0), 0);
  EXPECT_EQ(cell::recurrent_sum<cell::GRU<>>(1), 1);
  EXPECT_EQ(cell::recurrent_sum<cell::GRU<>>(2), 3) << "the candidate's, which r scales";
}

}  // namespace
}  // namespace scanrnn::test
