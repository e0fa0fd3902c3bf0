// SPDX-License-Identifier: Apache-2.0
// The bounds of 16-bit gradients: they hold for an oracle that stores what CUDA stores, a quarter
// of them does not, and at the jumps of relu and of g, from which the tests' data keep away,
// results are within the wider bound.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/conform.h"

namespace scanrnn::test {
namespace {

const Dtype kHalves[] = {Dtype::bfloat16, Dtype::float16};

Case bounds_case(const LayerOptions& options, Dtype dtype) {
  Case c;
  c.layer = options;
  c.layer.dtype = dtype;
  c.layer.input_size = 9;
  c.layer.hidden_size = 11;
  c.layer.num_layers = 2;
  c.layer.bidirectional = true;
  fit(c.layer);
  c.steps = 41;
  c.batch = 3;
  c.threads = 2;
  return c;
}
std::int64_t elements(const Case& c) { return c.steps * c.batch * c.layer.hidden_size; }

TEST(GradientBounds, HoldForWhatCudaStores) {
  Random random(131);
  for (const LayerOptions& options : all_variants()) {
    for (Dtype dtype : kHalves) {
      for (int layers : {1, 2}) {
        Case c = bounds_case(options, dtype);
        c.layer.num_layers = layers;
        fit(c.layer);
        const Data data = random_data(c, random);
        expect_backward(c, oracle::run(c, data, true, true), oracle::run(c, data), "", 0, true);
      }
    }
  }
}

TEST(GradientBounds, AQuarterOfThemDoesNot) {
  Random random(132);
  for (const LayerOptions& options : all_variants()) {
    for (Dtype dtype : kHalves) {
      Case c = bounds_case(options, dtype);
      c.layer.num_layers = 1;
      const Data data = random_data(c, random);
      const oracle::Answer want = oracle::run(c, data), got = oracle::run(c, data, true, true);
      const double bound =
          gradient_tolerance(dtype, 1, want.terms.logit_error, want.dx.size(), true);
      EXPECT_FALSE(close_rms("dx", got.dx, want.dx, bound / 4, 0)) << text(c);
      EXPECT_LE(bound, accuracy(dtype).gradient) << "maths.md says less: " << text(c);
    }
  }
}

TEST(GradientBounds, AtTheJumps) {
  Random random(133);
  for (const LayerOptions& options : all_variants()) {
    if (!has_jump(options)) continue;
    for (Dtype dtype : dtypes()) {
      Case c = bounds_case(options, dtype);
      const Data data = free_data(c, random);
      const oracle::Answer want = oracle::run(c, data);
      for (const Way& way : ways(options)) {
        c.way = way;
        const Result got = library(c, data);
        expect_forward(c, got, want);
        expect_backward(c, got, want, "", jump_tolerance(dtype, elements(c)));
      }
      if (size_of(dtype) > 2) continue;
      expect_backward(c, oracle::run(c, data, true, true), want,
                      "as CUDA stores: ", jump_tolerance(dtype, elements(c), true), true);
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
