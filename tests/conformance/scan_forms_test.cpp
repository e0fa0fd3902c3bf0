// SPDX-License-Identifier: Apache-2.0
// The bare recurrence in every form, dtype, layout and direction, with resets, forward and
// backward, against the plainest loop in long double.
#include "support/scan_case.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

const std::vector<Dtype>& all_dtypes() {
  static const std::vector<Dtype> all{Dtype::float64, Dtype::float32,   Dtype::bfloat16,
                                      Dtype::float16, Dtype::complex64, Dtype::complex128};
  return all;
}
std::vector<ScanForm> forms(Dtype dtype) {
  if (is_complex(dtype)) return {ScanForm::linear};
  return {ScanForm::linear, ScanForm::log};
}

// A rounded logarithm L is a relative error of |L| units; these stay below 16. Gradients are
// products with states that were stored, in backward of a 16-bit dtype.
testing::AssertionResult matches(const ScanCase& c, const ScanNumbers& got, const ScanNumbers& want,
                                 bool backward) {
  Tolerance forward = forward_tolerance(c.dtype, c.steps);
  if (c.logs()) forward.scale *= 2;
  auto result = close("h", flat(got.h), flat(want.h), forward);
  if (!result || !backward) return result;
  const double share = 2 * gradient_tolerance(c.dtype, 1, 0, c.count());
  const double floor = accuracy(c.dtype).floor;
  for (auto [name, of] : {std::pair("da", &ScanNumbers::da), std::pair("db", &ScanNumbers::db),
                          std::pair("dh0", &ScanNumbers::dh0)}) {
    result = close_rms(name, flat(got.*of), flat(want.*of), share, floor);
    if (!result) return result;
  }
  return result;
}

void check(const ScanCase& c, Random& random, Context& context) {
  ScanNumbers n = draw(c, random);
  walk_exactly(c, n);
  EXPECT_TRUE(matches(c, run(c, n, context), n, true)) << text(c);
}

TEST(ScanForms, MatchTheLoop) {
  Random random(171);
  Context context = make_context(3);
  for (Dtype dtype : all_dtypes()) {
    for (ScanForm form : forms(dtype)) {
      for (const Way& way : scan_ways()) {
        for (std::int64_t steps : {0, 1, 2, 17, 1000}) {
          for (Order order : kOrders) {
            ScanCase c{steps, 2, steps == 17 ? 33 : 5, dtype, form, way};
            c.order = order;
            c.reverse = (steps + static_cast<int>(order)) % 2;
            c.signs = steps != 2;
            c.h0 = steps != 1000;
            c.reset_share = order == Order::rows_apart ? -1 : steps == 1000 ? 0.01 : 0.3;
            check(c, random, context);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(ScanForms, ALongOne) {
  Random random(172);
  Context context = make_context(2);
  for (Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::complex64}) {
    for (ScanForm form : forms(dtype)) {
      for (const Way& way : scan_ways()) {
        for (Order order : {Order::rows_adjacent, Order::time_adjacent}) {
          ScanCase c{100003, 1, 3, dtype, form, way};
          c.order = order;
          c.reset_share = order == Order::time_adjacent ? 1e-4 : -1;
          c.reverse = order == Order::time_adjacent;
          check(c, random, context);
        }
      }
    }
  }
}

// Rows that lie right behind one another, as one run of memory: shorter and longer than what a lane
// takes of it, and a warp; of so many steps that the run has whole vectors, and not.
TEST(ScanForms, RowsBehindOneAnother) {
  struct Size {
    std::int64_t steps, lines, rows;
  };
  Random random(179);
  Context context = make_context(2);
  for (const Size& size : {Size{2, 1, 64},
                           {2, 3, 43},
                           {3, 2, 90},
                           {4, 1, 64},
                           {4, 5, 1},
                           {4, 3, 41},
                           {5, 3, 31},
                           {8, 3, 50},
                           {9, 1, 1},
                           {17, 2, 33},
                           {37, 1, 5003},
                           {100, 5, 41},
                           {256, 1, 30},
                           {257, 1, 7},
                           {700, 2, 9},
                           {1001, 1, 601}}) {
    for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64}) {
      for (ScanForm form : {ScanForm::linear, ScanForm::log}) {
        for (const bool reverse : {false, true}) {
          ScanCase c{size.steps, size.lines, size.rows, dtype, form, Strategy::parallel_scan,
                     reverse};
          c.order = Order::time_packed;
          c.signs = size.steps == 17;
          c.h0 = size.steps % 2 == (reverse ? 1 : 0);
          check(c, random, context);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// One step, of which rows are one run of memory or not, and whole vectors of it or not.
TEST(ScanForms, OneStep) {
  Random random(182);
  Context context = make_context(2);
  for (Dtype dtype : all_dtypes()) {
    for (ScanForm form : forms(dtype)) {
      for (Order order : kOrders) {
        for (const auto& [lines, rows] :
             {std::pair{1, 29}, {40, 1}, {3, 64}, {2, 1003}, {1, 1000}}) {
          for (int bits = 0; bits < 4; ++bits) {
            ScanCase c{1, lines, rows, dtype, form};
            c.order = order;
            c.h0 = bits & 1;
            c.signs = bits & 2;
            c.reverse = rows == 64;
            check(c, random, context);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// What is no number in one of them reaches no other one.
TEST(ScanForms, RowsBehindOneAnotherAreApart) {
  Random random(180);
  Context context = make_context(2);
  for (Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
    for (const bool reverse : {false, true}) {
      ScanCase c{21, 2, 40, dtype, ScanForm::linear, Strategy::parallel_scan, reverse};
      c.order = Order::time_packed;
      ScanNumbers n = draw(c, random);
      const ScanNumbers clean = run(c, n, context);
      const std::size_t poisoned = 47;  // a state
      n.b[c.at(5, poisoned)] = INFINITY;
      n.a[c.at(9, poisoned)] = NAN;
      n.dh[c.at(13, poisoned)] = -INFINITY;
      const ScanNumbers got = run(c, n, context);
      for (std::size_t i = 0; i < c.count(); ++i) {
        if (i % c.states() == poisoned) continue;
        ASSERT_EQ(got.h[i], clean.h[i]) << text(c) << " at " << i;
        ASSERT_EQ(got.da[i], clean.da[i]) << text(c) << " at " << i;
        ASSERT_EQ(got.db[i], clean.db[i]) << text(c) << " at " << i;
      }
      for (std::size_t i = 0; i < c.states(); ++i) {
        if (i == poisoned) continue;
        ASSERT_EQ(got.dh0[i], clean.dh0[i]) << text(c) << " at " << i;
      }
    }
  }
}

// All rows of a line are cut at the same steps, which is told once: few, many, at tiles' borders.
TEST(ScanForms, ResetsThatRowsShare) {
  Random random(178);
  Context context = make_context(3);
  for (Dtype dtype : all_dtypes()) {
    for (ScanForm form : forms(dtype)) {
      for (const Way& way : scan_ways()) {
        for (std::int64_t steps : {1, 16, 33, 1000}) {
          for (double share : {0.0, 0.02, 0.4, 1.0}) {
            ScanCase c{steps, 2, steps == 33 ? 37 : 34, dtype, form, way};
            c.reverse = share == 0.4;
            c.reset_share = share;
            c.shares_resets = true;
            ScanNumbers n = draw(c, random);
            for (std::size_t i = 0; i < c.count(); ++i) {
              if (n.reset[i]) n.a[i] = i % 2 ? NAN : INFINITY;
            }
            walk_exactly(c, n);
            EXPECT_TRUE(matches(c, run(c, n, context), n, true)) << text(c);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// One step's decay is cut at the first step, the last, everywhere or nowhere; a cut decay may be
// anything.
TEST(ScanForms, Resets) {
  Random random(173);
  Context context = make_context(3);
  for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::complex64}) {
    for (ScanForm form : forms(dtype)) {
      for (const Way& way : scan_ways()) {
        for (int kind = 0; kind < 4; ++kind) {
          for (bool reverse : {false, true}) {
            ScanCase c{150, 2, 6, dtype, form, way};
            c.reverse = reverse;
            c.reset_share = kind == 3 ? 1 : 0;
            ScanNumbers n = draw(c, random);
            for (std::size_t row = 0; kind < 2 && row < c.states(); ++row) {
              n.reset[(kind == 0 ? 0 : 149 * c.states()) + row] = 1;
            }
            for (std::size_t i = 0; i < c.count(); ++i) {
              if (n.reset[i]) n.a[i] = i % 2 ? NAN : INFINITY;
            }
            walk_exactly(c, n);
            EXPECT_TRUE(matches(c, run(c, n, context), n, true)) << text(c) << " kind " << kind;
          }
        }
      }
    }
  }
}

// A reset stops NaN and infinities, forward and backward.
TEST(ScanForms, NothingCrossesAReset) {
  Random random(174);
  Context context = make_context(3);
  constexpr std::int64_t kCut = 70;
  for (Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16, Dtype::complex64}) {
    for (ScanForm form : forms(dtype)) {
      for (const Way& way : scan_ways()) {
        for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
          ScanCase c{1000, 1, std::isnan(bad) ? 5 : 35, dtype, form, way};
          c.shares_resets = !std::isnan(bad);
          c.reset_share = 0;
          ScanNumbers n = draw(c, random);
          for (std::size_t row = 0; row < c.states(); ++row) n.reset[c.at(kCut, row)] = 1;
          const ScanNumbers clean = run(c, n, context);
          n.b[c.at(3, 1)] = bad;           // in forward's first segment
          n.dh[c.at(kCut + 40, 2)] = NAN;  // in backward's
          const ScanNumbers got = run(c, n, context);
          for (std::size_t row = 0; row < c.states(); ++row) {
            for (std::int64_t t = 0; t < c.steps; ++t) {
              const std::size_t at = c.at(t, row);
              if (row == 1 && t >= 3 && t < kCut) {
                ASSERT_FALSE(std::isfinite(std::abs(got.h[at]))) << text(c) << " t " << t;
              } else {
                ASSERT_EQ(got.h[at], clean.h[at]) << text(c) << " t " << t << " row " << row;
              }
              if (row == 2 && t >= kCut && t <= kCut + 40) {
                ASSERT_TRUE(std::isnan(std::abs(got.db[at]))) << text(c) << " t " << t;
              } else if (row != 1 || t > kCut) {
                ASSERT_EQ(got.db[at], clean.db[at]) << text(c) << " t " << t << " row " << row;
                ASSERT_EQ(got.da[at], clean.da[at]) << text(c) << " t " << t << " row " << row;
              }
            }
          }
          ASSERT_EQ(got.dh0[2], clean.dh0[2]) << text(c);
        }
      }
    }
  }
}

// A NaN stays where decays only underflow: their product is no reset.
TEST(ScanForms, AnUnderflowIsNoReset) {
  Random random(175);
  Context context = make_context(3);
  for (const Way& way : scan_ways()) {
    for (ScanForm form : {ScanForm::linear, ScanForm::log}) {
      ScanCase c{4000, 1, 3, Dtype::float32, form, way};
      ScanNumbers n = draw(c, random);
      for (Wide& a : n.a) a = form == ScanForm::log ? std::log(0.4L) : Wide(0.4L);
      n.b[c.at(5, 1)] = NAN;
      const ScanNumbers got = run(c, n, context, false);
      for (std::int64_t t = 5; t < c.steps; ++t) {
        ASSERT_TRUE(std::isnan(got.h[c.at(t, 1)].real())) << text(c) << " t " << t;
      }
    }
  }
}

// Inputs may repeat: one decay for all rows, one reset for all lines and rows.
TEST(ScanForms, InputsThatRepeat) {
  Random random(176);
  Context context = make_context(2);
  for (Dtype dtype : {Dtype::float32, Dtype::float16}) {
    for (const Way& way : scan_ways()) {
      ScanCase c{70, 3, 34, dtype, ScanForm::linear, way};
      c.reset_share = 0.2;
      ScanNumbers n = draw(c, random);
      for (std::size_t i = 0; i < c.count(); ++i) {
        n.a[i] = n.a[i / c.states() * c.states()];
        n.reset[i] = n.reset[i / c.states() * c.states()];
      }
      walk_exactly(c, n);
      const auto repeat = [](auto& args) {
        args.a.strides[1] = args.a.strides[2] = 0;
        args.reset.strides[1] = args.reset.strides[2] = 0;
      };
      EXPECT_TRUE(matches(c, run(c, n, context, true, repeat, repeat), n, true)) << text(c);
    }
  }
}

// Without lines tensors are [T,N] and [N]; what is not wanted is left out.
TEST(ScanForms, OneLineAndSomeOutputs) {
  Random random(177);
  Context context = make_context(2);
  ScanCase c{90, 1, 20};
  c.order = Order::lines_inside;
  ScanNumbers n = draw(c, random);
  walk_exactly(c, n);
  const auto flatten = [&](TensorView& view, std::size_t line) {
    if (!view) return;
    for (std::size_t i = line; i + 1 < 3; ++i) {
      view.sizes[i] = view.sizes[i + 1];
      view.strides[i] = view.strides[i + 1];
    }
    view.sizes[2] = view.strides[2] = 0;
    --view.rank;
    if (line == 0) view.sizes[1] = view.strides[1] = 0;
  };
  const auto change = [&](ScanArgs& args) {
    for (TensorView* view : {&args.a, &args.b, &args.h}) flatten(*view, 1);
    flatten(args.h0, 0);
  };
  const auto back = [&](ScanBackwardArgs& args) {
    for (TensorView* view : {&args.dh, &args.da}) flatten(*view, 1);
    args.db = args.dh0 = {};
  };
  const ScanNumbers got = run(c, n, context, true, change, back);
  EXPECT_TRUE(close("h", flat(got.h), flat(n.h), forward_tolerance(c.dtype, c.steps)));
  EXPECT_TRUE(close_rms("da", flat(got.da), flat(n.da), 4e-6, 0));
}

TEST(ScanForms, SameBitsAgain) {
  Random random(178);
  Context context = make_context(3);
  for (const Way& way : scan_ways()) {
    ScanCase c{3001, 1, 19, Dtype::float32, ScanForm::log, way};
    const ScanNumbers n = draw(c, random);
    const ScanNumbers first = run(c, n, context), again = run(c, n, context);
    EXPECT_EQ(first.h, again.h);
    EXPECT_EQ(first.da, again.da);
    EXPECT_EQ(first.db, again.db);
    EXPECT_EQ(first.dh0, again.dh0);
  }
}

}  // namespace
}  // namespace scanrnn::test
