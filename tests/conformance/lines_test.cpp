// SPDX-License-Identifier: Apache-2.0
// Layers with options that change a step, layer_norm, reset_after=False and what meets them,
// against the oracle: every dtype, layout, stack and number of threads.
#include <gtest/gtest.h>

#include "support/by_lines.h"
#include "support/conform.h"
#include "support/lines_oracle.h"
#include "support/pairwise.h"

namespace scanrnn::test {
namespace {

std::vector<LayerOptions> layers() {
  std::vector<LayerOptions> out = layers_by_lines();
  for (const LayerOptions& options : layers_by_lines_and_more()) out.push_back(options);
  return out;
}

TEST(LinesConformance, MatchTheOracle) {
  const std::vector<LayerOptions> all = layers();
  const std::vector<std::int64_t> steps{0, 1, 2, 7, 33}, batches{0, 1, 5}, hidden{2, 9, 12, 33};
  const auto count = [](const auto& values) { return static_cast<int>(values.size()); };
  Random random(1601);
  for (const auto& row : pairwise({count(all), count(dtypes()), count(steps), count(batches),
                                   count(hidden), 2, 3, 2, 2, 2, 2, 2})) {
    const auto at = [](const auto& values, int i) { return values[static_cast<std::size_t>(i)]; };
    Case c;
    c.layer = at(all, row[0]);
    c.layer.dtype = at(dtypes(), row[1]);
    c.steps = at(steps, row[2]);
    c.batch = at(batches, row[3]);
    c.layer.hidden_size = at(hidden, row[4]);
    c.layer.input_size = row[5] ? c.layer.hidden_size : 5;
    c.threads = 1 + row[6];
    c.layer.batch_first = row[7];
    c.h0 = row[8];
    c.layer.bias = row[9];
    c.layer.num_layers = 1 + row[10];
    c.layer.bidirectional = row[11];
    fit(c.layer);
    const Data data = random_data(c, random);
    const oracle::Answer want = oracle::run(c, data);
    expect_conforms(c, library(c, data), want, "training: ");
    expect_forward(c, library_inference(c, data), want, "inference: ");
    if (HasFailure()) return;
  }
}

// A layer without these options, by both oracles.
TEST(LinesOracle, IsTheOtherOne) {
  Random random(1602);
  for (const LayerOptions& options : few_variants()) {
    if (!is_dense(options) && info(options.cell).name != "IndRNN") continue;
    if (info(options.cell).states == 4) continue;
    Case c;
    c.layer = options;
    c.layer.dtype = Dtype::float64;
    c.layer.input_size = 5, c.layer.hidden_size = 6;
    c.layer.num_layers = 2;
    c.layer.bidirectional = true;
    c.steps = 8, c.batch = 2;
    const Data data = random_data(c, random);
    const oracle::Answer got = oracle::LineOracle(c, data).run(true), want = oracle::run(c, data);
    const Tolerance tolerance{1e-15};
    EXPECT_TRUE(close("y", got.y, want.y, tolerance)) << text(c);
    EXPECT_TRUE(close("h_n", got.hn, want.hn, tolerance)) << text(c);
    EXPECT_TRUE(close("dx", got.dx, want.dx, tolerance)) << text(c);
    EXPECT_TRUE(close("dh_0", got.dh0, want.dh0, tolerance)) << text(c);
    for (std::size_t i = 0; i < want.dparams.size(); ++i) {
      EXPECT_TRUE(close("dparams", got.dparams[i], want.dparams[i], tolerance)) << text(c);
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
