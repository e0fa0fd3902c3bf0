// SPDX-License-Identifier: Apache-2.0
// A NaN goes where the equations take it and nowhere else: its own batch row, from its own step on.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/library.h"

namespace scanrnn::test {
namespace {

constexpr std::int64_t kSteps = 53, kBatch = 3, kRow = 1, kStep = 21;

Case nan_case(const LayerOptions& options, const Way& way, bool bidirectional) {
  Case c;
  c.layer = options;
  c.layer.input_size = 4;
  c.layer.hidden_size = 18;
  c.layer.bidirectional = bidirectional;
  c.layer.num_layers = bidirectional ? 1 : 2;
  fit(c.layer);
  c.way = way;
  c.steps = kSteps;
  c.batch = kBatch;
  c.threads = 2;
  return c;
}

// `reached(t, b, column)` says where a NaN must be; everywhere else the values are those of a run
// without it.
template <class F>
void expect_nan(const Values& got, const Values& clean, std::int64_t width, F&& reached,
                const std::string& what) {
  ASSERT_EQ(got.size(), clean.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t column = at % width, b = at / width % kBatch, t = at / width / kBatch;
    if (reached(t, b, column)) {
      ASSERT_TRUE(std::isnan(got[i])) << what << " at t=" << t << " b=" << b << ": " << got[i];
    } else {
      ASSERT_EQ(got[i], clean[i]) << what << " at t=" << t << " b=" << b;
    }
  }
}

template <class F>
void for_cases(F&& check) {
  for (const LayerOptions& options : all_variants()) {
    for (const Way& way : ways(options)) {
      for (bool bidirectional : {false, true}) {
        for (Domain domain : {Domain::log, Domain::linear}) {
          Case c = nan_case(options, way, bidirectional);
          c.layer.domain = domain;
          SCOPED_TRACE(text(c));
          Random random(31);
          check(c, random_data(c, random));
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(Nan, InOneInput) {
  for_cases([](const Case& c, const Data& data) {
    const Result clean = library(c, data);
    Data bad = data;
    const std::int64_t input = c.layer.input_size;
    for (std::int64_t i = 0; i < input; ++i) {
      bad.x[static_cast<std::size_t>((kStep * kBatch + kRow) * input + i)] = NAN;
    }
    const Result got = library(c, bad);
    const std::int64_t hidden = c.layer.hidden_size, width = c.directions() * hidden;
    expect_nan(
        got.y, clean.y, width,
        [&](std::int64_t t, std::int64_t b, std::int64_t column) {
          return b == kRow && (column < hidden ? t >= kStep : t <= kStep);
        },
        "y");
    expect_nan(
        got.hn, clean.hn, hidden,
        [](std::int64_t, std::int64_t b, std::int64_t) { return b == kRow; }, "h_n");
    // Backward: all of that row may be reached, no other row is; a sum over tokens is lost.
    for (std::size_t i = 0; i < got.dx.size(); ++i) {
      if (static_cast<std::int64_t>(i) / input % kBatch == kRow) continue;
      ASSERT_EQ(got.dx[i], clean.dx[i]) << i;
    }
    EXPECT_TRUE(std::isnan(got.dparams[0][0]));
  });
}

TEST(Nan, InOneInitialState) {
  for_cases([](const Case& c, const Data& data) {
    const Result clean = library_inference(c, data);
    Data bad = data;
    const std::int64_t hidden = c.layer.hidden_size;
    bad.h0[static_cast<std::size_t>(kRow * hidden + 5)] = NAN;  // of the first layer and direction
    const Result got = library_inference(c, bad);
    const bool one_layer = c.layer.num_layers == 1;
    // A matrix takes it to all units of its direction, in the first step.
    const std::int64_t first = is_dense(c.layer) ? 0 : 5;
    const std::int64_t last = is_dense(c.layer) ? hidden - 1 : 5;
    expect_nan(
        got.y, clean.y, c.directions() * hidden,
        [&](std::int64_t, std::int64_t b, std::int64_t column) {
          return b == kRow && ((column >= first && column <= last) || !one_layer);
        },
        "y");
  });
}

// An infinite input is an infinite output or a saturated gate, but never another row's business.
TEST(Nan, InfinityStaysInItsRow) {
  for_cases([](const Case& c, const Data& data) {
    const Result clean = library_inference(c, data);
    Data bad = data;
    bad.x[static_cast<std::size_t>((kStep * kBatch + kRow) * c.layer.input_size)] = INFINITY;
    const Result got = library_inference(c, bad);
    const std::int64_t width = c.directions() * c.layer.hidden_size;
    for (std::size_t i = 0; i < got.y.size(); ++i) {
      if (static_cast<std::int64_t>(i) / width % kBatch == kRow) continue;
      ASSERT_EQ(got.y[i], clean.y[i]) << i;
    }
  });
}

}  // namespace
}  // namespace scanrnn::test
