// SPDX-License-Identifier: Apache-2.0
// Every cell with every variant, as scalars: its maps and their adjoints against the equations in
// long double and against finite differences of those, far into both tails.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "scanrnn/cells/indrnn.h"
#include "scanrnn/cells/mingru.h"
#include "scanrnn/cells/minlstm.h"
#include "scanrnn/cells/peepholesru.h"
#include "scanrnn/cells/qrnn.h"
#include "scanrnn/cells/rglru.h"
#include "scanrnn/cells/sru.h"
#include "support/linear_oracle.h"

namespace scanrnn::test {
namespace {

using oracle::Equations;
using Real = long double;
using Reals = std::array<Real, 3>;

// Calls check(cell, equations) for each linear cell of cells.def and each variant.
template <class Cell>
struct Tag {
  using type = Cell;
};
template <template <class> class Cell, class... Options, class F>
void for_variants(const char* name, cell::Variants<Options...>, F&& check) {
  (check(Tag<Cell<Options>>(), Equations{name, Options::name}), ...);
}
template <class F>
void for_cells(F&& check) {
#define SCANRNN_LINEAR_CELL(name, option, list, ...) \
  for_variants<cell::name>(#name, cell::list(), check);
#include "scanrnn/cells.def"
}

// Every combination of these pre-activations, rounded to V.
template <class Cell, class V, class F>
void for_gates(const std::vector<double>& logits, F&& use) {
  const std::size_t n = logits.size();
  std::size_t combinations = 1;
  for (int g = 0; g < Cell::kGates; ++g) combinations *= n;
  for (std::size_t i = 0; i < combinations; ++i) {
    std::size_t rest = i;
    Reals k{};
    for (int g = 0; g < Cell::kGates; ++g, rest /= n) {
      k[static_cast<std::size_t>(g)] = static_cast<V>(logits[rest % n]);
    }
    use(k);
  }
}

template <class Cell, class V>
auto gather(const Reals& k) {
  return Cell::template gather<V>(
      [&](int g) { return static_cast<V>(k.at(static_cast<std::size_t>(g))); });
}
template <class Cell, class V>
Reals scatter(const typename Cell::template Gates<V>& gates) {
  Reals out{};
  Cell::template scatter<V>(gates,
                            [&](int g, V value) { out.at(static_cast<std::size_t>(g)) = value; });
  return out;
}

// What a cell that reads them has of x and of a vector's parameter.
constexpr double kX = 0.75, kLambda = 0.5;
template <class Cell, class V>
auto lift(const typename Cell::template Gates<V>& gates) {
  if constexpr (Cell::kReadsOwn) {
    return Cell::lift(gates, {V(kX), {Cell::vector(V(kLambda))}});
  } else {
    return Cell::lift(gates);
  }
}
template <class Cell, class V>
auto lift_vjp(const typename Cell::template Gates<V>& gates, const cell::AffineCotangent<V>& d) {
  if constexpr (Cell::kReadsOwn) {
    return Cell::lift_vjp(gates, {V(kX), {Cell::vector(V(kLambda))}}, d).gates;
  } else {
    return Cell::lift_vjp(gates, d);
  }
}

std::string text(const Equations& equations, const Reals& k) {
  std::ostringstream out;
  out << equations.cell << ' ' << equations.variant << " at (" << k[0] << ", " << k[1] << ", "
      << k[2] << ")";
  return out.str();
}

const std::vector<double> kLogits = {0,   0.3, -0.3, 1,  -1,  5,   -5,   16.1, -16.1, 30,
                                     -30, 60,  -60,  85, -85, 200, -200, 1000, -1000};

// Roundings of a map: those of its few operations, and of the differences of logits that minLSTM
// exponentiates, where half a unit of the difference is a relative error of the result.
template <class V>
Real roundings(const Equations& equations, const Reals& k) {
  const Real arguments = equations.cell == "MinLSTM" ? std::fabs(k[0]) + std::fabs(k[1])
                         : equations.reads_own_x()
                             ? std::fabs(Equations::decay(k[0], kLambda).log_a)
                             : 0;
  return (8 + arguments) * std::numeric_limits<V>::epsilon();
}
// Where V's numbers end: below the smallest normal one, a product of tails has no digits left.
// Past the bound of the exponential a tail stays at it, which is a few of those.
template <class V>
Real tail(const Reals& k) {
  const Real bound = scan::kLargestExponent<V>;
  Real largest = 1;
  for (Real value : k) largest = std::fmax(largest, std::fabs(value));
  return 4 * (largest < bound ? std::numeric_limits<V>::min() : largest * std::exp(-bound));
}

// And of what RG-LRU takes the root of.
template <class V>
Real root_of_tail(const Equations& equations, const Reals& k) {
  const bool bounded = std::fabs(k[0]) > scan::kLargestExponent<V>;
  return equations.reads_own_x() && bounded ? 16 * std::sqrt(tail<V>(k)) : tail<V>(k);
}

template <class V>
void check_lift() {
  for_cells([](auto tag, const Equations& equations) {
    using Cell = typename decltype(tag)::type;
    for_gates<Cell, V>(kLogits, [&](const Reals& k) {
      const auto got = lift<Cell, V>(gather<Cell, V>(k));
      const auto want = equations.lift(k.data(), kX, kLambda);
      const Real relative = roundings<V>(equations, k), floor = tail<V>(k);
      ASSERT_TRUE(std::fabs(got.a - want.a) <= relative * want.a + floor)
          << text(equations, k) << ": a " << got.a << " want " << want.a;
      ASSERT_TRUE(std::fabs(got.z - want.z) <= relative * want.z + floor)
          << text(equations, k) << ": z " << got.z << " want " << want.z;
      ASSERT_TRUE(std::fabs(got.b - want.b) <=
                  relative * std::fabs(want.b) + root_of_tail<V>(equations, k))
          << text(equations, k) << ": b " << got.b << " want " << want.b;
    });
  });
}
TEST(Cells, LiftFloat) { check_lift<float>(); }
TEST(Cells, LiftDouble) { check_lift<double>(); }

// An infinite gate forgets or keeps all, to the bound of the exponential.
template <class V>
void check_infinite_gate() {
  constexpr V kInfinity = std::numeric_limits<V>::infinity();
  const double floor = 4 * std::exp(-scan::kLargestExponent<V>);
  using GRU = cell::MinGRU<cell::Linear>;
  using Unit = cell::SRU<cell::Identity>;
  using LSTM = cell::MinLSTM<cell::Linear>;
  const auto forget = GRU::lift<V>({kInfinity, 3}), keep = GRU::lift<V>({-kInfinity, 3});
  EXPECT_NEAR(forget.a, 0, floor);
  EXPECT_EQ(forget.z, V(1));
  EXPECT_EQ(forget.b, V(3));
  EXPECT_EQ(keep.a, V(1));
  EXPECT_NEAR(keep.z, 0, floor);
  EXPECT_NEAR(keep.b, 0, floor);
  const auto full = Unit::lift<V>({3, kInfinity, 0}), empty = Unit::lift<V>({3, -kInfinity, 0});
  EXPECT_EQ(full.a, V(1));
  EXPECT_NEAR(full.b, 0, floor);
  EXPECT_NEAR(empty.a, 0, floor);
  EXPECT_EQ(empty.b, V(3));
  EXPECT_EQ((Unit::readout<V>({3, 0, kInfinity}, 5, 7, 1)), V(5));
  EXPECT_EQ((Unit::readout<V>({3, 0, -kInfinity}, 5, 7, 1)), V(7));
  const auto both = LSTM::lift<V>({kInfinity, kInfinity, 3});
  EXPECT_EQ(both.a, V(0.5));
  EXPECT_EQ(both.b, V(1.5));
  const auto neither = LSTM::lift<V>({-kInfinity, -kInfinity, 3});
  EXPECT_EQ(neither.a, V(0.5));
  EXPECT_EQ(neither.b, V(1.5));
  for (const V other : {V(0), V(-1e4), V(1e4), kInfinity}) {
    const auto anew = LSTM::lift<V>({-kInfinity, other, 3});
    EXPECT_NEAR(anew.a, 0, floor);
    EXPECT_EQ(anew.b, V(3));
    const auto kept = LSTM::lift<V>({other, -kInfinity, 3});
    EXPECT_EQ(kept.a, V(1));
    EXPECT_NEAR(kept.b, 0, 3 * floor);
  }
}
TEST(Cells, InfiniteGateFloat) { check_infinite_gate<float>(); }
TEST(Cells, InfiniteGateDouble) { check_infinite_gate<double>(); }

template <class V>
void check_finite() {
  const double huge = static_cast<double>(std::numeric_limits<V>::max()) / 2;
  for_cells([&](auto tag, const Equations& equations) {
    using Cell = typename decltype(tag)::type;
    for_gates<Cell, V>(
        {0, 1, -1, 30, -30, 1000, -1000, 1e30, -1e30, huge, -huge}, [&](const Reals& k) {
          const auto gates = gather<Cell, V>(k);
          const auto f = lift<Cell, V>(gates);
          ASSERT_FALSE(std::isnan(f.a) || std::isnan(f.z) || std::isnan(f.b)) << text(equations, k);
          for (V sign : {V(1), V(-1)}) {
            for (Real d : scatter<Cell, V>(lift_vjp<Cell, V>(gates, {sign, V(1)}))) {
              ASSERT_FALSE(std::isnan(d)) << text(equations, k);
            }
            if constexpr (Cell::kReadout) {
              ASSERT_FALSE(std::isnan(Cell::readout(gates, sign, V(2), V(1))))
                  << text(equations, k);
              const auto d = Cell::readout_vjp(gates, sign, V(2), V(1), V(1));
              ASSERT_FALSE(std::isnan(d.state) || std::isnan(d.skip)) << text(equations, k);
              for (Real value : scatter<Cell, V>(d.gates)) {
                ASSERT_FALSE(std::isnan(value)) << text(equations, k);
              }
            }
          }
        });
  });
}
TEST(Cells, FiniteGatesGiveNoNanFloat) { check_finite<float>(); }
TEST(Cells, FiniteGatesGiveNoNanDouble) { check_finite<double>(); }

// The adjoint by the chain rule, both cotangents apart, so that nothing cancels in the reference.
template <class V>
void check_lift_vjp() {
  for_cells([](auto tag, const Equations& equations) {
    using Cell = typename decltype(tag)::type;
    for_gates<Cell, V>(kLogits, [&](const Reals& k) {
      const V da = V(0.75), db = V(-1.25);
      const Reals got = scatter<Cell, V>(lift_vjp<Cell, V>(gather<Cell, V>(k), {da, db}));
      Reals by_a{}, by_b{};
      equations.lift_vjp(k.data(), da, 0, by_a.data(), kX, kLambda);
      equations.lift_vjp(k.data(), 0, db, by_b.data(), kX, kLambda);
      // 1 - tanh^2 is what it is to a few units of 1, however small.
      const Real saturated = equations.variant == "tanh" || equations.cell == "QRNN"
                                 ? 4 * std::numeric_limits<V>::epsilon() * std::fabs(db)
                                 : 0;
      for (std::size_t g = 0; g < 3; ++g) {
        const Real allowed =
            2 * roundings<V>(equations, k) * (std::fabs(by_a[g]) + std::fabs(by_b[g])) +
            root_of_tail<V>(equations, k) + saturated;
        ASSERT_TRUE(std::fabs(got[g] - by_a[g] - by_b[g]) <= allowed)
            << text(equations, k) << " gate " << g << ": " << got[g] << " want "
            << by_a[g] + by_b[g];
      }
    });
  });
}
TEST(Cells, LiftVjpFloat) { check_lift_vjp<float>(); }
TEST(Cells, LiftVjpDouble) { check_lift_vjp<double>(); }

constexpr Real kStep = 1e-5L;  // central differences in long double: good to about 1e-10

template <class F>
Real slope(F&& f) {
  return (f(kStep) - f(-kStep)) / (2 * kStep);
}

// Away from the corners of g (0) and relu.
const std::vector<double> kSmooth = {0.3, -0.3, 1.5, -1.5, 6, -6, 16, -16};

TEST(Cells, LiftVjpAgainstFiniteDifferences) {
  for_cells([](auto tag, const Equations& equations) {
    using Cell = typename decltype(tag)::type;
    for_gates<Cell, double>(kSmooth, [&](const Reals& k) {
      const double da = 0.75, db = -1.25;
      const Reals got =
          scatter<Cell, double>(lift_vjp<Cell, double>(gather<Cell, double>(k), {da, db}));
      for (std::size_t g = 0; g < 3; ++g) {
        const Real want = slope([&](Real step) {
          Reals moved = k;
          moved[g] += step;
          const auto f = equations.lift(moved.data(), kX, kLambda);
          return da * f.a + db * f.b;
        });
        ASSERT_TRUE(std::fabs(got[g] - want) <= 1e-9L * std::fabs(want) + 1e-12L)
            << text(equations, k) << " gate " << g << ": " << got[g] << " want " << want;
      }
    });
  });
}

// What a cell gives back to x of its own unit and, summed over tokens, to its vector.
TEST(Cells, OwnVjpAgainstFiniteDifferences) {
  using Cell = cell::RGLRU<>;
  const Equations equations{"RGLRU", ""};
  for (double lambda : {-50.0, -9.0, -0.5, 0.5, 3.0, 30.0}) {
    for (double x : {-1.5, 0.25}) {
      for_gates<Cell, double>({0.3, -0.3, 6, -6}, [&](const Reals& k) {
        const double da = 0.75, db = -1.25;
        const auto got =
            Cell::lift_vjp<double>(gather<Cell, double>(k), {x, {Cell::vector(lambda)}}, {da, db});
        const auto moved = [&](Real dx, Real dlambda) {
          const auto f = equations.lift(k.data(), x + dx, lambda + dlambda);
          return da * f.a + db * f.b;
        };
        const Real by_x = slope([&](Real step) { return moved(step, 0); });
        const Real by_lambda = slope([&](Real step) { return moved(0, step); });
        const double of_lambda = Cell::vector_vjp(lambda, got.own.vector[0]);
        ASSERT_TRUE(std::fabs(got.own.x - by_x) <= 1e-9L * std::fabs(by_x) + 1e-12L)
            << text(equations, k) << ", x " << x << ", lambda " << lambda;
        ASSERT_TRUE(std::fabs(of_lambda - by_lambda) <= 1e-9L * std::fabs(by_lambda) + 1e-12L)
            << text(equations, k) << ", x " << x << ", lambda " << lambda << ": " << of_lambda
            << " want " << by_lambda;
      });
    }
  }
}

TEST(Cells, ReadoutAndItsVjp) {
  int readouts = 0;
  for_cells([&](auto tag, const Equations& equations) {
    using Cell = typename decltype(tag)::type;
    ASSERT_EQ(Cell::kReadout, equations.reads_out());
    if constexpr (Cell::kReadout) {
      ++readouts;
      for (double c : {0.4, -0.4, 3.0, -3.0}) {
        for (const auto& [skip, keep] : {std::pair(-2.0, 1.0), {0.7, 1.25}, {0.7, 0.0}}) {
          // g(0) is 0 in all of them.
          const auto readout = [&, skip = skip, keep = keep](const Reals& k, Real state,
                                                             Real more) {
            const Real without = equations.readout(k.data(), 0, skip + more);
            return without + keep * (equations.readout(k.data(), state, skip + more) - without);
          };
          for_gates<Cell, double>(kSmooth, [&, skip = skip, keep = keep](const Reals& k) {
            const auto gates = gather<Cell, double>(k);
            const double dh = -1.5;
            const Real want = readout(k, c, 0);
            ASSERT_TRUE(std::fabs(Cell::readout(gates, c, skip, keep) - want) <= 1e-14L)
                << text(equations, k);
            const auto got = Cell::readout_vjp(gates, c, skip, keep, dh);
            const Reals dk = scatter<Cell, double>(got.gates);
            for (std::size_t g = 0; g < 3; ++g) {
              const Real by_gate = slope([&](Real step) {
                Reals moved = k;
                moved[g] += step;
                return dh * readout(moved, c, 0);
              });
              ASSERT_TRUE(std::fabs(dk[g] - by_gate) <= 1e-9L * std::fabs(by_gate) + 1e-12L)
                  << text(equations, k) << " gate " << g;
            }
            const Real by_state = slope([&](Real step) { return dh * readout(k, c + step, 0); });
            const Real by_skip = slope([&](Real step) { return dh * readout(k, c, step); });
            ASSERT_TRUE(std::fabs(got.state - by_state) <= 1e-9L) << text(equations, k);
            ASSERT_TRUE(std::fabs(got.skip - by_skip) <= 1e-9L) << text(equations, k);
          });
        }
      }
    }
  });
  EXPECT_EQ(readouts, 7) << "SRU of both kinds with its three activations, and QRNN";
}

TEST(Cells, GatherAndScatterAreInverse) {
  for_cells([](auto tag, const Equations& equations) {
    using Cell = typename decltype(tag)::type;
    ASSERT_EQ(Cell::kGates, equations.gates());
    std::vector<int> read(Cell::kGates), written(Cell::kGates);
    const auto gates = Cell::template gather<double>([&](int g) {
      ++read.at(static_cast<std::size_t>(g));
      return 10.0 + g;
    });
    Cell::template scatter<double>(gates, [&](int g, double value) {
      ++written.at(static_cast<std::size_t>(g));
      EXPECT_EQ(value, 10.0 + g) << equations.cell;
    });
    EXPECT_EQ(read, std::vector<int>(Cell::kGates, 1)) << equations.cell;
    EXPECT_EQ(written, std::vector<int>(Cell::kGates, 1)) << equations.cell;
  });
}

}  // namespace
}  // namespace scanrnn::test
