// SPDX-License-Identifier: Apache-2.0
// Layer calls that run at the same time: both directions, and layers one behind the other by parts
// of the sequence, with what stands between them. Results are those of one call after the other.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/conform.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;
using Split = Way::Split;

Way at_once() { return {on_cuda() ? Strategy::persistent : Strategy::step_loop, Split::at_once}; }

// Two directions of two layers; or a chain of layers, more of them than run at the same time.
Case stack_of(const LayerOptions& options, bool chained, std::int64_t steps) {
  Case c;
  c.layer = options;
  c.layer.input_size = 5;
  c.layer.hidden_size = 12;
  c.layer.bidirectional = !chained;
  c.layer.num_layers = !chained ? 2 : steps == 11 ? dispatch::kMostAtOnce + 1 : 3;
  c.steps = steps;
  c.batch = 3;
  c.threads = 2;
  c.way = at_once();
  return c;
}

template <class F>
void for_stacks(F&& use) {
  for (const LayerOptions& options : all_variants()) {
    if (!is_dense(options)) continue;
    for (const bool chained : {false, true}) {
      for (const std::int64_t steps : {1, 5, 11, 33}) use(stack_of(options, chained, steps));
      if (testing::Test::HasFailure()) return;
    }
  }
}

int calls_at_once(const Case& c) {
  Random random(1);
  const Data data = random_data(c, random);
  return Buffers(c, data).plan_for(make_context(c.threads), Mode::training).at_once;
}

TEST(AtOnceConformance, MatchesTheOracle) {
  Random random(1801);
  for_stacks([&](Case c) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float64}) {
      if (on_cuda() && dtype == Dtype::float64) continue;
      c.layer.dtype = dtype;
      c.layer.batch_first = dtype != Dtype::float64;
      c.h0 = c.steps != 5;
      c.layer.bias = c.steps != 33;
      ASSERT_GT(calls_at_once(c), 1) << text(c);
      const Data data = random_data(c, random);
      const oracle::Answer want = oracle::run(c, data);
      expect_conforms(c, library(c, data), want);
      expect_forward(c, library_inference(c, data), want, "inference: ");
    }
  });
}

// Between layers, and in the state: what is dropped does not depend on the parts.
TEST(AtOnceConformance, DropsTheSame) {
  Random random(1802);
  for_stacks([&](Case c) {
    c.layer.dropout = 0.3;
    c.layer.zoneout = c.steps > 5 ? 0.2 : 0;
    const Data data = random_data(c, random);
    Context context = make_context(c.threads);
    const auto results = [&](Split split) {
      c.way.split = split;
      Buffers buffers(c, data);
      buffers.forward(context, Mode::training, 77);
      buffers.backward(context, 77);
      return buffers.result();
    };
    const Result got = results(Split::at_once), want = results(Split::one_by_one);
    const Tolerance near = forward_tolerance(c.layer.dtype, c.steps * c.layer.num_layers);
    EXPECT_TRUE(close("y", got.y, want.y, near)) << text(c);
    EXPECT_TRUE(close("h_n", got.hn, want.hn, near)) << text(c);
    const auto gradients = [&](const std::string& name, const Values& a, const Values& b) {
      EXPECT_TRUE(close_rms(name, a, b, 1e-5, 1e-6)) << text(c);
    };
    gradients("dx", got.dx, want.dx);
    gradients("dh_0", got.dh0, want.dh0);
    for (std::size_t i = 0; i < got.dparams.size(); ++i) {
      gradients("dparams " + std::to_string(i), got.dparams[i], want.dparams[i]);
    }
  });
}

// A chain that is one launch, or some: lines of one or more groups, layers of more than a launch.
template <class F>
void for_chains(F&& use) {
  for (const LayerOptions& options : all_variants()) {
    if (!is_dense(options)) continue;
    for (const std::int64_t steps : {1, 5, 11, 33}) {
      Case c = stack_of(options, true, steps);
      c.layer.hidden_size = steps == 33 ? 64 : 32;
      c.batch = steps == 5 ? 19 : 3;
      c.way = {Strategy::persistent, Split::as_one};
      use(c);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(AtOnceConformance, ChainsMatchTheOracle) {
  if (!on_cuda()) GTEST_SKIP() << "layers are one launch on CUDA alone";
  Random random(1804);
  for_chains([&](Case c) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
      c.layer.dtype = dtype;
      c.layer.batch_first = dtype == Dtype::float32;
      c.h0 = c.steps != 5;
      c.layer.bias = c.steps != 33;
      const Data data = random_data(c, random);
      Context context = make_context(c.threads);
      Buffers buffers(c, data);
      const dispatch::Plan plan = buffers.plan_for(context, Mode::training);
      ASSERT_GT(plan.persistent.layers, 1) << text(c) << dispatch::explain(plan);
      ASSERT_GT(plan.persistent_vjp.layers, 1) << text(c);
      const oracle::Answer want = oracle::run(c, data);
      expect_conforms(c, library(c, data), want);
      expect_forward(c, library_inference(c, data), want, "inference: ");
      std::vector<std::uint8_t> first;
      for (int i = 0; i < 2; ++i) {
        buffers.forward(context, Mode::training);
        buffers.backward(context);
        if (i == 0) first = buffers.bits();
        EXPECT_TRUE(buffers.bits() == first) << text(c);
        buffers.poison_outputs();
      }
    }
  });
}

// Each pass of a chain in a way of its own; what forward keeps lies as backward reads it.
TEST(AtOnceConformance, PassesApartMatchTheOracle) {
  Random random(1805);
  for_chains([&](Case c) {
    c.way = {at_once().strategy, Split::apart};
    c.layer.batch_first = true;
    const Data data = random_data(c, random);
    const auto plan = Buffers(c, data).plan_for(make_context(c.threads), Mode::training);
    ASSERT_EQ(plan.part_steps, 0) << text(c);
    ASSERT_GT(plan.part_steps_vjp, 0) << text(c);
    ASSERT_EQ(plan.at_once > 1, on_cuda()) << text(c) << dispatch::explain(plan);
    expect_conforms(c, library(c, data), oracle::run(c, data));
  });
}

TEST(AtOnceConformance, RepeatedRunsGiveTheSameBits) {
  Random random(1803);
  for_stacks([&](const Case& c) {
    const Data data = random_data(c, random);
    Context context = make_context(c.threads);
    Buffers buffers(c, data);
    std::vector<std::uint8_t> first;
    for (int i = 0; i < 3; ++i) {
      buffers.forward(context, Mode::training);
      buffers.backward(context);
      if (i == 0) first = buffers.bits();
      EXPECT_TRUE(buffers.bits() == first) << text(c);
      buffers.poison_outputs();
    }
  });
}

// What is made around a call, or read by all of its steps, keeps calls apart.
TEST(AtOnce, StacksThatCannot) {
  const auto at_once = [](auto change) {
    LayerOptions options;
    options.cell = Cell::LSTM;
    options.input_size = options.hidden_size = 8;
    options.num_layers = 2;
    change(options);
    return Layer(options).problem({30, 2}, Mode::training, MatmulPrecision::highest,
                                  Strategy::automatic);
  };
  EXPECT_EQ(at_once([](auto&) {}).at_once, 2);
  EXPECT_TRUE(at_once([](auto&) {}).chained);
  EXPECT_EQ(at_once([](auto& o) { o.bidirectional = true; }).at_once, 2);
  EXPECT_FALSE(at_once([](auto& o) { o.bidirectional = true; }).chained);
  EXPECT_EQ(at_once([](auto& o) { o.num_layers = 1; }).at_once, 1);
  EXPECT_EQ(at_once([](auto& o) { o.proj_size = 3; }).at_once, 1);
  EXPECT_EQ(at_once([](auto& o) { o.num_heads = 2; }).at_once, 1);
  EXPECT_EQ(at_once([](auto& o) { o.dropconnect = 0.1; }).at_once, 1);
  EXPECT_EQ(at_once([](auto& o) { o.layer_norm = true; }).at_once, 1);
  EXPECT_EQ(at_once([](auto& o) { o.input_dropout = 0.1; }).at_once, 1);
  EXPECT_EQ(at_once([](auto& o) { o.cell = Cell::MinGRU; }).at_once, 1);
}

}  // namespace
}  // namespace scanrnn::test
