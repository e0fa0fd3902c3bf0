// SPDX-License-Identifier: Apache-2.0
// The bare recurrence whose states are logarithms: against the plainest loop in long double, where
// its range holds them, and beyond any float against the exact answer.
#include "support/scan_case.h"

namespace scanrnn::test {
namespace {

// docs/maths.md: |error of log|h|| <= 3e-7 (1 + log2 T) max(1, |log|h||) where nothing cancels; the
// double and the half formats have their own.
double allowed(const ScanCase& c, double log_h) {
  const Accuracy a = accuracy(c.dtype);
  const double doublings = 1 + std::log2(static_cast<double>(std::max<std::int64_t>(c.steps, 1)));
  const double size = std::fmax(1, std::fabs(log_h));
  // A rounded logarithm L of an input is an error of |L| units; these stay below 16.
  return (2 * a.forward * doublings + a.rounding) * size;
}

testing::AssertionResult matches(const ScanCase& c, const ScanNumbers& got,
                                 const ScanNumbers& want) {
  for (std::size_t i = 0; i < c.count(); ++i) {
    const auto log_h = static_cast<double>(got.h[i].real());
    const auto exact = static_cast<double>(want.h[i].real());
    const bool zero = exact == -INFINITY;
    const bool close =
        zero ? log_h == -INFINITY
             : std::fabs(log_h - exact) <= allowed(c, exact) && got.sign_h[i] == want.sign_h[i];
    if (!close) {
      return testing::AssertionFailure()
             << "log|h| at " << i << ": got " << log_h << " sign " << got.sign_h[i] << ", want "
             << exact << " sign " << want.sign_h[i] << ", allowed " << allowed(c, exact);
    }
  }
  return testing::AssertionSuccess();
}
testing::AssertionResult gradients_match(const ScanCase& c, const ScanNumbers& got,
                                         const ScanNumbers& want) {
  const double share = 4 * gradient_tolerance(c.dtype, 1, 0, c.count());
  const double floor = accuracy(c.dtype).floor;
  for (auto [name, of] :
       {std::pair("dlog_a", &ScanNumbers::da), std::pair("dlog_b", &ScanNumbers::db),
        std::pair("dlog_h_0", &ScanNumbers::dh0)}) {
    auto result = close_rms(name, flat(got.*of), flat(want.*of), share, floor);
    if (!result) return result;
  }
  return testing::AssertionSuccess();
}

TEST(ScanLogOutput, MatchesTheLoop) {
  Random random(181);
  Context context = make_context(3);
  for (Dtype dtype : dtypes()) {
    for (const Way& way : scan_ways()) {
      for (std::int64_t steps : {0, 1, 2, 17, 1000}) {
        for (Order order : kOrders) {
          ScanCase c{steps, 2, steps == 17 ? 33 : 5, dtype, ScanForm::log_output, way};
          c.order = order;
          c.reverse = (steps + static_cast<int>(order)) % 2;
          c.signs = false;  // nothing cancels
          c.h0 = steps != 1000;
          c.reset_share = order == Order::rows_apart ? -1 : steps == 1000 ? 0.01 : 0.3;
          ScanNumbers n = draw(c, random);
          walk_exactly(c, n);
          const ScanNumbers got = run(c, n, context);
          EXPECT_TRUE(matches(c, got, n)) << text(c);
          EXPECT_TRUE(gradients_match(c, got, n)) << text(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// With signs the error is that of the states themselves, relative to the largest of the row.
TEST(ScanLogOutput, SignsCancel) {
  Random random(182);
  Context context = make_context(3);
  for (Dtype dtype : {Dtype::float64, Dtype::float32}) {
    for (const Way& way : scan_ways()) {
      ScanCase c{1000, 1, 7, dtype, ScanForm::log_output, way};
      c.reset_share = 0.01;
      ScanNumbers n = draw(c, random);
      walk_exactly(c, n);
      const ScanNumbers got = run(c, n, context, false);
      Values states, exact;
      for (std::size_t i = 0; i < c.count(); ++i) {
        states.push_back(static_cast<double>(got.sign_h[i].real() * std::exp(got.h[i].real())));
        exact.push_back(static_cast<double>(n.sign_h[i].real() * std::exp(n.h[i].real())));
      }
      Tolerance tolerance = forward_tolerance(dtype, c.steps);
      tolerance.scale *= 2;
      EXPECT_TRUE(close("h", states, exact, tolerance)) << text(c);
    }
  }
}

// A step of a forward algorithm multiplies what all observations so far are worth; after 10^6 of
// them it is near exp(-10^6). Beside a float64 loop over logarithms with compensation.
TEST(ScanLogOutput, AMillionObservations) {
  Random random(183);
  Context context = make_context(2);
  constexpr std::int64_t kSteps = 1000000;
  for (const Way& way : scan_ways()) {
    ScanCase c{kSteps, 1, 2, Dtype::float32, ScanForm::log_output, way};
    c.signs = false;
    ScanNumbers n = draw(c, random);
    long double want[2] = {};
    Values exact(c.count());
    for (std::int64_t t = 0; t < kSteps; ++t) {
      for (std::size_t row = 0; row < 2; ++row) {
        const std::size_t at = c.at(t, row);
        n.a[at] = rounded(random.uniform(-2, 0), c.dtype);
        // Row 0 is a chain alone; to row 1 something comes that is as small as it is by then.
        const double input = row == 0 ? -INFINITY : static_cast<double>(want[1]) - 3;
        n.b[at] = rounded(input, c.dtype);
        if (t == 0) want[row] = n.h0[row].real();
        const long double kept = want[row] + n.a[at].real(), added = n.b[at].real();
        const long double hi = std::fmax(kept, added), lo = std::fmin(kept, added);
        want[row] = hi + std::log1p(std::exp(lo - hi));
        exact[at] = static_cast<double>(want[row]);
      }
    }
    ASSERT_LT(exact[c.at(kSteps - 1, 0)], -9e5);
    const ScanNumbers got = run(c, n, context, false);
    double worst = 0;
    for (std::size_t i = 0; i < c.count(); ++i) {
      const double error = std::fabs(static_cast<double>(got.h[i].real()) - exact[i]);
      worst = std::fmax(worst, error / allowed(c, exact[i]));
      ASSERT_LE(error, allowed(c, exact[i])) << text(c) << " at " << i << ", want " << exact[i];
    }
    RecordProperty("share_of_the_bound", std::to_string(worst));
  }
}

// Logarithms of 1 to 1e30, far beyond what the digits of the dtype tell apart, beside a loop in
// float64: a chain alone, one that grows, one that meets inputs as large as it is, and one that
// comes back to where it began.
TEST(ScanLogOutput, LogarithmsThatDwarfTheirDigits) {
  Random random(187);
  Context context = make_context(2);
  constexpr std::int64_t kSteps = 3000, kRows = 4;
  for (const Way& way : scan_ways()) {
    for (double most : {1e-3, 1.0, 1e3, 3e4, 1e7, 1e12, 1e17, 3e26}) {
      ScanCase c{kSteps, 1, kRows, Dtype::float32, ScanForm::log_output, way};
      c.signs = false;
      ScanNumbers n = draw(c, random);
      Values exact(c.count()), bound(c.count());
      for (std::size_t row = 0; row < kRows; ++row) {
        auto log_h = static_cast<double>(n.h0[row].real());
        double largest = 1;
        for (std::int64_t t = 0; t < kSteps; ++t) {
          const std::size_t at = c.at(t, row);
          const bool grows = row == 1 || (row == 3 && t >= kSteps / 2);
          const double log_a = rounded(random.uniform(0, most) * (grows ? 1 : -1), c.dtype);
          const bool met = row == 2 && t % 3 == 0;
          const double log_b = met ? rounded(log_h + random.uniform(-2, 2), c.dtype) : -INFINITY;
          // The way back is that of the way there, to the bit.
          n.a[at] = row == 3 && grows ? -n.a[c.at(kSteps - 1 - t, row)] : Wide(log_a);
          n.b[at] = log_b;
          const double kept = log_h + static_cast<double>(n.a[at].real());
          const double hi = std::fmax(kept, log_b), lo = std::fmin(kept, log_b);
          log_h = hi + std::log1p(std::exp(lo - hi));
          largest = std::fmax(largest, std::fabs(log_h));
          exact[at] = log_h;
          // Two units of the output, what float64 does to the largest, what a tree of compositions
          // rounds, and what single steps do, less where they keep nearly all.
          const auto steps = static_cast<double>(t + 1);
          bound[at] = 0x1p-22 * std::fmax(1, std::fabs(log_h)) + 0x1p-41 * largest +
                      3e-7 * (1 + std::log2(steps)) + 3e-7 * steps * std::fmin(1, 1e-2 + most);
        }
      }
      const ScanNumbers got = run(c, n, context, false);
      for (std::size_t i = 0; i < c.count(); ++i) {
        const auto log_h = static_cast<double>(got.h[i].real());
        ASSERT_LE(std::fabs(log_h - exact[i]), bound[i])
            << text(c) << " steps of " << most << " at " << i << ": got " << log_h << ", want "
            << exact[i];
      }
    }
  }
}

// Where nothing is lost for a million steps every rounding would stay: h is about 1 throughout.
TEST(ScanLogOutput, NearlyAllIsKept) {
  Random random(184);
  Context context = make_context(2);
  for (const Way& way : scan_ways()) {
    ScanCase c{std::int64_t{1} << 20, 1, 1, Dtype::float32, ScanForm::log_output, way};
    c.signs = false;
    ScanNumbers n = draw(c, random);
    for (std::size_t i = 0; i < c.count(); ++i) {
      const double z = random.uniform(0, 1e-5);
      n.a[i] = rounded(std::log1p(-z), c.dtype);
      n.b[i] = rounded(std::log(random.uniform(0, 2e-5)), c.dtype);
    }
    walk_exactly(c, n);
    EXPECT_TRUE(matches(c, run(c, n, context, false), n)) << text(c);
  }
}

// Zeros, decays of zero, and numbers far beyond the dtype on either side.
TEST(ScanLogOutput, TheEndsOfTheRange) {
  Random random(185);
  Context context = make_context(2);
  for (Dtype dtype : {Dtype::float32, Dtype::float64}) {
    for (const Way& way : scan_ways()) {
      ScanCase c{300, 1, 5, dtype, ScanForm::log_output, way};
      c.signs = false;
      c.h0 = false;
      ScanNumbers n = draw(c, random);
      std::fill(n.b.begin(), n.b.end(), Wide(-INFINITY));
      const ScanNumbers nothing = run(c, n, context);
      for (std::size_t i = 0; i < c.count(); ++i) {
        ASSERT_EQ(nothing.h[i], Wide(-INFINITY)) << text(c);
        ASSERT_EQ(nothing.sign_h[i], Wide(1)) << text(c);
        ASSERT_EQ(nothing.da[i], Wide(0)) << text(c) << " at " << i;
        ASSERT_EQ(nothing.db[i], Wide(0)) << text(c) << " at " << i;
      }
      // exp(+-20 t), and a step that starts anew.
      for (std::size_t i = 0; i < c.count(); ++i) {
        n.a[i] = i % 5 == 0 ? 20.0L : -20.0L;
        if (i / 5 == 200) n.a[i] = -INFINITY;
        if (i / 5 == 0 || i / 5 == 200) n.b[i] = 1.0L;
      }
      const ScanNumbers far = run(c, n, context, false);
      for (std::size_t i = 0; i < c.count(); ++i) {
        const auto t = static_cast<double>(i / 5 < 200 ? i / 5 : i / 5 - 200);
        const double want = 1 + (i % 5 == 0 ? 20 : -20) * t;
        ASSERT_NEAR(static_cast<double>(far.h[i].real()), want, allowed(c, want)) << text(c);
      }
      // What becomes infinite stays so, behind numbers beyond the dtype and before others.
      for (std::size_t i = 0; i < c.count(); ++i) {
        n.a[i] = i % 5 < 3 ? -0.1L : -200.0L;
        n.b[i] = i / 5 == 0 ? 2000.0L : i / 5 == 100 ? INFINITY : 0.0L;
      }
      const ScanNumbers infinite = run(c, n, context, false);
      for (std::size_t i = 0; i < c.count(); ++i) {
        ASSERT_EQ(infinite.h[i] == Wide(INFINITY), i / 5 >= 100) << text(c) << " at " << i;
        ASSERT_EQ(infinite.sign_h[i], Wide(1)) << text(c) << " at " << i;
      }
    }
  }
}

TEST(ScanLogOutput, NothingCrossesAReset) {
  Random random(186);
  Context context = make_context(3);
  constexpr std::int64_t kCut = 70;
  for (const Way& way : scan_ways()) {
    for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      ScanCase c{1000, 1, 5, Dtype::float32, ScanForm::log_output, way};
      c.signs = false;
      c.reset_share = 0;
      ScanNumbers n = draw(c, random);
      for (std::size_t row = 0; row < c.states(); ++row) n.reset[c.at(kCut, row)] = 1;
      const ScanNumbers clean = run(c, n, context);
      n.b[c.at(3, 1)] = bad;
      n.dh[c.at(kCut + 40, 2)] = NAN;
      const ScanNumbers got = run(c, n, context);
      for (std::size_t row = 0; row < c.states(); ++row) {
        for (std::int64_t t = 0; t < c.steps; ++t) {
          const std::size_t at = c.at(t, row);
          if (row == 1 && t >= 3 && t < kCut) {
            ASSERT_FALSE(std::isfinite(got.h[at].real())) << text(c) << " t " << t;
          } else {
            ASSERT_EQ(got.h[at], clean.h[at]) << text(c) << " t " << t << " row " << row;
          }
          const bool untouched = row != 1 && (row != 2 || t < kCut || t > kCut + 40);
          if (untouched) {
            ASSERT_EQ(got.da[at], clean.da[at]) << text(c) << " t " << t;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
