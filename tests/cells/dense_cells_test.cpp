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
#include "scanrnn/cells/peepholelstm.h"
#include "scanrnn/cells/rnn.h"
#include "scanrnn/cells/slstm.h"
#include "support/dense_units.h"

namespace scanrnn::test {
namespace {

using oracle::Real;
using Sums = std::array<Real, 4>;
using State = std::array<Real, 4>;    // h, c, n, m
using Weights = std::array<Real, 3>;  // of the vectors

template <class Cell>
struct Known;
template <>
struct Known<cell::LSTM<>> {
  static constexpr const char *name = "LSTM", *variant = "";
};
template <>
struct Known<cell::PeepholeLSTM<>> {
  static constexpr const char *name = "PeepholeLSTM", *variant = "";
};
template <>
struct Known<cell::SLSTM<>> {
  static constexpr const char *name = "SLSTM", *variant = "";
};
template <>
struct Known<cell::GRU<>> {
  static constexpr const char *name = "GRU", *variant = "";
};
template <class Nonlinearity>
struct Known<cell::RNN<Nonlinearity>> {
  static constexpr const char *name = "RNN", *variant = Nonlinearity::name;
};

// The state after a step from the sums in the order of step_cell.h.
template <class Cell>
State equations(const Sums& s, const Weights& w, const State& before) {
  oracle::DenseUnit unit;
  for (int i = 0; i < Cell::kGates; ++i) {
    const auto k = static_cast<std::size_t>(i);
    unit.x[k] = i < Cell::kPreactivations ? s[k] : 0;
    // The last sums may be of R h alone.
    const int sum = cell::recurrent_sum<Cell>(i);
    if (sum >= Cell::kGates) unit.r[k] = s[static_cast<std::size_t>(sum)];
  }
  if (Cell::kVectors > 0) unit.w = w;
  unit.state = before;
  return oracle::state_after(Known<Cell>::name, Known<Cell>::variant, unit);
}

template <class Cell, class V>
auto gather(const Sums& s) {
  return Cell::template gather<V>(
      [&](int i) { return static_cast<V>(s.at(static_cast<std::size_t>(i))); });
}
template <class Cell, class V>
auto state_of(const State& s) {
  return cell::StepState<V, Cell::kStates>::of(
      [&](int i) { return static_cast<V>(s.at(static_cast<std::size_t>(i))); });
}
template <class Cell, class V>
auto vectors_of(const Weights& w) {
  return cell::Vectors<V, Cell::kVectors>::of(
      [&](int i) { return static_cast<V>(w.at(static_cast<std::size_t>(i))); });
}
template <class Cell, class V>
auto step(const Sums& s, const Weights& w, const State& before) {
  if constexpr (Cell::kVectors > 0) {
    return Cell::template step<V>(gather<Cell, V>(s), vectors_of<Cell, V>(w),
                                  state_of<Cell, V>(before));
  } else {
    return Cell::template step<V>(gather<Cell, V>(s), state_of<Cell, V>(before));
  }
}
template <class Cell, class V>
auto step_vjp(const Sums& s, const Weights& w, const State& before, const State& d) {
  if constexpr (Cell::kVectors > 0) {
    return Cell::template step_vjp<V>(gather<Cell, V>(s), vectors_of<Cell, V>(w),
                                      state_of<Cell, V>(before), state_of<Cell, V>(d));
  } else {
    return Cell::template step_vjp<V>(gather<Cell, V>(s), state_of<Cell, V>(before),
                                      state_of<Cell, V>(d));
  }
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
using All = testing::Types<cell::LSTM<>, cell::GRU<>, cell::RNN<cell::Tanh>, cell::RNN<cell::Relu>,
                           cell::PeepholeLSTM<>, cell::SLSTM<>>;
TYPED_TEST_SUITE(DenseCells, All);

template <class Cell, class V>
void check_step() {
  const Real eps = std::numeric_limits<V>::epsilon();
  const Weights w{0.5, -0.25, 1};
  for_sums<V>({0, 0.3, -1, 5, -16.1, 30, -100, 1000}, [&](const Sums& s) {
    for (const State before :
         {State{0, 0, 0, Real(Cell::fresh(3))}, State{0.5, -0.75, 0.5, -2}, State{-1, 30, 2, 8}}) {
      const auto got = step<Cell, V>(s, w, before);
      const State want = equations<Cell>(s, w, before);
      // A sum of few products of gates, each exact to a few units; tanh passes an error on.
      const Real size = 1 + std::fabs(before[1]) + std::fabs(s[3]) * (Cell::kStates == 1);
      for (int i = 0; i < Cell::kStates; ++i) {
        ASSERT_TRUE(std::fabs(got.at(i) - want[static_cast<std::size_t>(i)]) <= 8 * eps * size)
            << text(s) << " tensor " << i << ": " << got.at(i);
      }
    }
  });
}
TYPED_TEST(DenseCells, StepFloat) { check_step<TypeParam, float>(); }
TYPED_TEST(DenseCells, StepDouble) { check_step<TypeParam, double>(); }

// Every input of a step, one after the other: the sums, the state, the vectors.
template <class Cell>
void check_vjp() {
  constexpr Real kStep = 1e-5L;
  const Weights w{0.5, -0.25, 1};
  for_sums<double>({0.3, -0.3, 1.5, -6, 16}, [&](const Sums& s) {
    for (const State before : {State{0.5, -0.75, 0.5, -2}, State{-1, 2, 2, 1}}) {
      const State d{-1.5, 0.75, 0.5, 0};
      const auto got = step_vjp<Cell, double>(s, w, before, d);
      std::array<Real, 11> all{};
      Cell::template scatter<double>(
          got.gates, [&](int i, double value) { all.at(static_cast<std::size_t>(i)) = value; });
      for (int i = 0; i < Cell::kStates; ++i)
        all[4 + static_cast<std::size_t>(i)] = got.before.at(i);
      if constexpr (Cell::kVectors > 0) {
        for (std::size_t i = 0; i < Cell::kVectors; ++i) all[8 + i] = got.vectors.value[i];
      }
      const Real scale = equations<Cell>(s, w, before)[3];
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (i == 7) {
          ASSERT_EQ(all[i], 0) << "m is a constant";
          continue;
        }
        const auto moved = [&](Real by) {
          Sums sums = s;
          State state = before;
          Weights weights = w;
          (i < 4 ? sums[i] : i < 8 ? state[i - 4] : weights[i - 8]) += by;
          const State after = equations<Cell>(sums, weights, state);
          // c and n as they are by the m of no move.
          const Real same_scale = std::exp(after[3] - scale);
          return d[0] * after[0] + (d[1] * after[1] + d[2] * after[2]) * same_scale;
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
  const Weights w{0.5, -0.25, 1};
  for_sums<V>({0, 1, -30, 200, -200, 1000, -1e30, huge, -huge}, [&](const Sums& s) {
    for (const State before :
         {State{-1, 3, 0.5, -2}, State{-1, 1e30, 1e30, 1e30}, State{-1, -1e30, 1e30, -1e30}}) {
      const auto after = step<Cell, V>(s, w, before);
      for (int i = 0; i < Cell::kStates; ++i) ASSERT_FALSE(std::isnan(after.at(i))) << text(s);
      if (!std::is_same_v<Cell, cell::RNN<cell::Relu>> && Cell::kStates < 4) {
        ASSERT_LE(std::fabs(after.h), V(1)) << text(s);
      }
      const auto d = step_vjp<Cell, V>(s, w, before, {1, -1, 1, 1});
      for (int i = 0; i < Cell::kStates; ++i) ASSERT_FALSE(std::isnan(d.before.at(i))) << text(s);
      Cell::template scatter<V>(d.gates, [&](int i, V value) {
        ASSERT_FALSE(std::isnan(value)) << text(s) << " sum " << i;
      });
    }
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
