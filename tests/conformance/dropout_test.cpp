// SPDX-License-Identifier: Apache-2.0
// Dropout between layers: the share that it says, from the seed alone, in training only, and the
// gradient of exactly the function that ran.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/conform.h"

namespace scanrnn::test {
namespace {

Case dropout_case(double share, Dtype dtype = Dtype::float64) {
  Case c;
  c.layer.input_size = c.layer.hidden_size = 16;
  c.layer.num_layers = 2;
  c.layer.dropout = share;
  c.layer.dtype = dtype;
  c.steps = 20;
  c.batch = 3;
  c.threads = 2;
  return c;
}

Values forward(const Case& c, const Data& data, Mode mode, std::uint64_t seed) {
  Context context = make_context(c.threads);
  Buffers buffers(c, data);
  buffers.forward(context, mode, seed);
  return buffers.result().y;
}

// What is zero of `some`, as a share; the rest is `all`, scaled up.
double share_of_zeros(const Values& some, const Values& all, double share) {
  double zeros = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (some[i] == 0) {
      ++zeros;
    } else {
      EXPECT_NEAR(some[i], all[i] / (1 - share), 1e-12 * std::fabs(all[i])) << i;
    }
  }
  return zeros / static_cast<double>(all.size());
}
// Five standard deviations of so many coins with this bias.
double deviations(double share, double count) { return 5 * std::sqrt(share * (1 - share) / count); }

// A second layer of SRU with no weights reads out half of its input, so what it was given shows.
TEST(Dropout, DropsItsShareAndScalesTheRest) {
  for (double share : {0.1, 0.5, 0.9}) {
    Case c = dropout_case(share);
    c.layer.cell = Cell::SRU;
    c.layer.bias = false;
    c.steps = 500;
    c.h0 = false;
    Random random(61);
    Data data = random_data(c, random);
    std::fill(data.params[1].begin(), data.params[1].end(), 0.0);
    const Values all = forward(c, data, Mode::inference, 7),
                 some = forward(c, data, Mode::training, 7);
    const auto count = static_cast<double>(all.size());
    EXPECT_NEAR(share_of_zeros(some, all, share), share, deviations(share, count));
  }
}

TEST(Dropout, IsItsSeeds) {
  for (Dtype dtype : dtypes()) {
    const Case c = dropout_case(0.5, dtype);
    Random random(62);
    const Data data = random_data(c, random);
    const Values one = forward(c, data, Mode::training, 1);
    EXPECT_EQ(forward(c, data, Mode::training, 1), one);
    EXPECT_NE(forward(c, data, Mode::training, 2), one);
  }
}

TEST(Dropout, IsNotOfTheThreadsTheLayoutOrTheStrategy) {
  Case c = dropout_case(0.5);
  Random random(63);
  const Data data = random_data(c, random);
  const Values want = forward(c, data, Mode::training, 1);
  const Tolerance tolerance = forward_tolerance(c.layer.dtype, c.steps, 2);
  for (int threads : {1, 3}) {
    for (const Way& way : ways(c.layer)) {
      for (bool batch_first : {false, true}) {
        c.threads = threads;
        c.way = way;
        c.layer.batch_first = batch_first;
        EXPECT_TRUE(close("y", forward(c, data, Mode::training, 1), want, tolerance)) << text(c);
      }
    }
  }
}

TEST(Dropout, NoneInInferenceOrBehindTheLastLayer) {
  Case c = dropout_case(0.5);
  Random random(64);
  const Data data = random_data(c, random);
  const Values dropped = forward(c, data, Mode::inference, 1);
  c.layer.dropout = 0;
  EXPECT_EQ(forward(c, data, Mode::inference, 1), dropped);
  Case one = c;
  one.layer.num_layers = 1;
  Random again(65);
  const Data less = random_data(one, again);
  const Values plain = forward(one, less, Mode::training, 1);
  one.layer.dropout = 0.5;
  EXPECT_EQ(forward(one, less, Mode::training, 1), plain);
}

// A layer whose output is its input.
TEST(InputDropout, DropsTheSameInAllStepsOfASequence) {
  constexpr double kShare = 0.3;
  Case c = dropout_case(0);
  c.layer.cell = Cell::IndRNN;
  c.layer.num_layers = 1;
  c.layer.bias = c.h0 = false;
  c.layer.input_dropout = kShare;
  c.layer.input_size = c.layer.hidden_size = 60;
  c.batch = 20;
  Random random(67);
  Data data = random_data(c, random);
  for (double& value : data.x) value = std::fabs(value);
  std::fill(data.params[0].begin(), data.params[0].end(), 0.0);
  for (std::size_t i = 0; i < 60; ++i) data.params[0][i * 61] = 1;
  std::fill(data.params[1].begin(), data.params[1].end(), 0.0);
  const Values all = forward(c, data, Mode::inference, 7),
               some = forward(c, data, Mode::training, 7);
  EXPECT_EQ(all, data.x);
  const std::size_t row = 20 * 60;
  EXPECT_NEAR(share_of_zeros(some, all, kShare), kShare, deviations(kShare, row));
  for (std::size_t i = row; i < some.size(); ++i) ASSERT_EQ(some[i] == 0, some[i - row] == 0);
  EXPECT_NE(forward(c, data, Mode::training, 8), some);
}

// States that are rows of the identity read R out.
TEST(Dropconnect, DropsElementsOfR) {
  constexpr double kShare = 0.4;
  Case c = dropout_case(0);
  c.layer.cell = Cell::RNN;
  c.layer.variant = 1;  // relu
  c.layer.num_layers = 1;
  c.layer.bias = false;
  c.layer.dropconnect = kShare;
  c.layer.hidden_size = c.batch = 40;
  c.steps = 1;
  Random random(68);
  Data data = random_data(c, random);
  std::fill(data.params[0].begin(), data.params[0].end(), 0.0);
  for (double& value : data.params[1]) value = std::fabs(value) + 0.1;
  std::fill(data.h0.begin(), data.h0.end(), 0.0);
  for (std::size_t i = 0; i < 40; ++i) data.h0[i * 41] = 1;
  const Values all = forward(c, data, Mode::inference, 7),
               some = forward(c, data, Mode::training, 7);
  EXPECT_NEAR(share_of_zeros(some, all, kShare), kShare, deviations(kShare, 1600));
  EXPECT_EQ(forward(c, data, Mode::training, 7), some);
  EXPECT_NE(forward(c, data, Mode::training, 8), some);
}

// With the seed fixed, the layer is a function, and backward is its derivative along any direction.
class DerivativeTest : public testing::TestWithParam<int> {};

TEST_P(DerivativeTest, OfALayerThatDrops) {
  for (const LayerOptions& options : few_variants()) {
    Case c = dropout_case(GetParam() & 1 ? 0.4 : 0);
    c.layer.cell = options.cell;
    c.layer.variant = options.variant;
    if (GetParam() & 2) c.layer.input_dropout = 0.3;
    if (GetParam() & 4 && is_dense(options)) c.layer.dropconnect = 0.2;
    if (GetParam() & 8) {
      c.layer.zoneout = 0.3;
      if (info(options.cell).states == 2) c.layer.zoneout_cell = 0.2;
      if (info(options.cell).readout) c.layer.state_dropout = 0.25;
    }
    c.layer.bidirectional = true;
    c.layer.num_layers = 3;
    c.layer.hidden_size = 6;
    if (GetParam() & 4) c.layer.input_size = 6;  // a highway without a projection
    fit(c.layer);
    Random random(66);
    Data data = random_data(c, random);
    forget_scale(c, data);
    Context context = make_context(c.threads);
    Buffers buffers(c, data);
    constexpr std::uint64_t kSeed = 11;
    buffers.forward(context, Mode::training, kSeed);
    buffers.backward(context, kSeed);
    const Result gradient = buffers.result();

    Data direction = random_data(c, random);
    if (c.is_scaled()) std::fill(direction.more0[2].begin(), direction.more0[2].end(), 0.0);
    const double step = 1e-6;
    const auto loss = [&](double by) {
      Data moved = data;
      const auto add = [&](Values& values, const Values& along) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += by * along[i];
      };
      add(moved.x, direction.x);
      add(moved.h0, direction.h0);
      for (std::size_t i = 0; i < c.more_states(); ++i) add(moved.more0[i], direction.more0[i]);
      for (std::size_t i = 0; i < moved.params.size(); ++i)
        add(moved.params[i], direction.params[i]);
      Buffers there(c, moved);
      there.forward(context, Mode::training, kSeed);
      const Result result = there.result();
      double out = 0;
      for (std::size_t i = 0; i < result.y.size(); ++i) out += result.y[i] * data.dy[i];
      for (std::size_t i = 0; i < result.hn.size(); ++i) out += result.hn[i] * data.dhn[i];
      for (std::size_t k = 0; k < c.more_states(); ++k) {
        const Values &cells = result.moren[k], &cotangents = data.dmoren[k];
        for (std::size_t i = 0; i < cells.size(); ++i) out += cells[i] * cotangents[i];
      }
      return out;
    };
    double want = 0, terms = 0;
    const auto dot = [&](const Values& a, const Values& b) {
      for (std::size_t i = 0; i < a.size(); ++i)
        want += a[i] * b[i], terms += std::fabs(a[i] * b[i]);
    };
    dot(gradient.dx, direction.x);
    dot(gradient.dh0, direction.h0);
    for (std::size_t i = 0; i < c.more_states(); ++i) dot(gradient.dmore0[i], direction.more0[i]);
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      dot(gradient.dparams[i], direction.params[i]);
    }
    EXPECT_NEAR((loss(step) - loss(-step)) / (2 * step), want, 1e-7 * terms) << text(c);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, DerivativeTest, testing::Values(1, 2, 4, 6, 7, 8, 15));

}  // namespace
}  // namespace scanrnn::test
