// SPDX-License-Identifier: Apache-2.0
// The persistent kernels of dense cells: every way in which a layer is cut into slices, groups,
// launches and items, against the oracle and against the step loop.
#include "support/by_lines.h"
#include "support/conform.h"
#include "support/cuda.h"
#include "support/ragged_case.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

class CudaPersistentTest : public CudaTest {
 protected:
  static Case persistent_case(const LayerOptions& options, Dtype dtype, std::int64_t hidden,
                              std::int64_t batch, std::int64_t steps) {
    Case c;
    c.layer = options;
    c.layer.dtype = dtype;
    c.layer.input_size = 9;
    c.layer.hidden_size = hidden;
    c.batch = batch;
    c.steps = steps;
    c.way = Strategy::persistent;
    return c;
  }
  // In training and in inference.
  static void expect_right(const Case& c, Random& random) {
    const Data data = random_data(c, random);
    const oracle::Answer want = oracle::run(c, data);
    expect_conforms(c, library(c, data), want);
    expect_forward(c, library_inference(c, data), want, "inference: ");
  }
  static void expect_near_step_loop(Case c, double tolerance) {
    Random random(91);
    const Data data = random_data(c, random);
    const Result got = library(c, data);
    c.way = Strategy::step_loop;
    expect_near(c, got, library(c, data), tolerance);
  }
  static void expect_near(const Case& c, const Result& got, const Result& want, double tolerance) {
    EXPECT_TRUE(close("y", got.y, want.y, {tolerance, 0, 0})) << text(c);
    EXPECT_TRUE(close("h_n", got.hn, want.hn, {tolerance, 0, 0})) << text(c);
    for (std::size_t i = 0; i < c.more_states(); ++i) {
      EXPECT_TRUE(close(letter(i + 1) + "_n", got.moren[i], want.moren[i], {tolerance, 0, 0}))
          << text(c);
    }
    EXPECT_TRUE(close_rms("dx", got.dx, want.dx, tolerance, 0)) << text(c);
    EXPECT_TRUE(close_rms("dh_0", got.dh0, want.dh0, tolerance, 0)) << text(c);
    for (std::size_t i = 0; i < c.more_states(); ++i) {
      EXPECT_TRUE(
          close_rms("d" + letter(i + 1) + "_0", got.dmore0[i], want.dmore0[i], tolerance, 0))
          << text(c);
    }
    for (std::size_t i = 0; i < want.dparams.size(); ++i) {
      EXPECT_TRUE(close_rms("dparams", got.dparams[i], want.dparams[i], tolerance, 0)) << text(c);
    }
  }
};

class CudaSizesTest : public CudaPersistentTest,
                      public testing::WithParamInterface<LayerOptions> {};

TEST_P(CudaSizesTest, AnyHiddenSizeAndBatch) {
  Random random(90);
  for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    for (std::int64_t hidden : {1, 7, 8, 37, 64, 129, 200, 257}) {
      for (std::int64_t batch : {1, 2, 9, 17}) {
        Case c = persistent_case(GetParam(), dtype, hidden, batch, hidden % 2 ? 9 : 40);
        c.layer.bidirectional = hidden < 64;
        c.layer.batch_first = batch % 2;
        c.layer.num_layers = hidden == 37 ? 2 : 1;
        c.layer.bias = batch != 2;
        c.h0 = batch != 9;
        expect_right(c, random);
        if (HasFailure()) return;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dense, CudaSizesTest, testing::ValuesIn(dense_variants()), variant_name);

// Heads of any size, those that blocks take whole and those of several slices; more of them than a
// device has room for at the same time; and what is drawn for their units and of their weights.
TEST_F(CudaPersistentTest, Heads) {
  Random random(95);
  for (const LayerOptions& options : dense_variants()) {
    for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
      for (const auto& [heads, units] :
           {std::pair{2, 1}, {3, 7}, {2, 64}, {12, 16}, {2, 129}, {5, 40}, {300, 2}}) {
        for (std::int64_t batch : {1, 9, 17}) {
          Case c = persistent_case(options, dtype, heads * units, batch, units % 2 ? 9 : 20);
          c.layer.num_heads = heads;
          c.layer.bidirectional = heads * units < 64;
          c.layer.batch_first = batch == 9;
          c.layer.num_layers = units == 7 ? 2 : 1;
          c.layer.bias = batch != 9;
          c.h0 = batch != 1;
          expect_right(c, random);
          if (HasFailure()) return;
        }
      }
    }
  }
}
TEST_F(CudaPersistentTest, LargeHeads) {
  struct Size {
    int heads;
    std::int64_t units, batch, steps;
  };
  for (const LayerOptions& options : dense_variants()) {
    for (const auto& [heads, units, batch, steps] : {Size{12, 64, 16, 40},
                                                     {4, 256, 16, 40},
                                                     {3, 300, 5, 20},
                                                     {2, 512, 64, 20},
                                                     {12, 64, 200, 9},
                                                     {4, 200, 100, 9},
                                                     {2, 768, 16, 20},
                                                     {16, 96, 7, 1500}}) {
      for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
        if (dtype == Dtype::float32 && steps > 100) continue;  // which say no more of it
        Case c = persistent_case(options, dtype, heads * units, batch, steps);
        c.layer.num_heads = heads;
        c.layer.zoneout = units == 256 ? 0.2 : 0;
        c.layer.dropconnect = batch == 5 ? 0.2 : 0;
        expect_near_step_loop(c, dtype == Dtype::float32 ? 1e-5 : 0.03);
      }
    }
  }
}

// Draws are made for some steps at a time, in either direction, of whole lines or ragged ones.
TEST_F(CudaPersistentTest, DrawsAreThoseOfSteps) {
  Random random(97);
  for (LayerOptions options : with_layers_by_lines(dense_variants())) {
    if (!is_dense(options)) continue;
    options.zoneout = 0.3;
    if (info(options.cell).states == 2) options.zoneout_cell = 0.2;
    options.bidirectional = true;
    RaggedCase c = ragged_case(options, {37, 0, 20, 36}, false);
    c.whole.layer.dtype = Dtype::float32;
    const Data data = random_data(c.whole, random);
    Context& context = shared_context(1);
    const Arguments arguments(c, false, context);
    const auto add = [&](auto& args) { args.ragged = arguments.ragged(); };
    const auto result = [&](Strategy way) {
      c.whole.way = way;
      Buffers buffers(c.whole, data);
      buffers.forward(context, Mode::training, 0, add);
      buffers.backward(context, 0, add);
      return buffers.result();
    };
    expect_near(c.whole, result(Strategy::persistent), result(Strategy::step_loop), 1e-5);
    c.whole.layout = dispatch::Batch::rectangular;
    c.whole.way = Strategy::persistent;
    expect_near_step_loop(c.whole, 1e-5);
  }
}

// Where a group has more lines than the eight of a fragment, and where R fills the registers, and
// shared memory.
TEST_F(CudaPersistentTest, LargeLayers) {
  for (const LayerOptions& options : dense_variants()) {
    for (const auto& [hidden, batch] :
         {std::pair{512, 32}, {768, 16}, {1000, 5}, {1024, 64}, {1300, 40}, {2048, 20}}) {
      // R of 2048 units takes 128 multiprocessors.
      if (hidden > 1300 && shared_context(1).limits().units < 128) continue;
      expect_near_step_loop(persistent_case(options, Dtype::bfloat16, hidden, batch, 20), 0.03);
      if (hidden > 1024) continue;  // the weights of a float32 layer are too large
      expect_near_step_loop(persistent_case(options, Dtype::float32, hidden, batch, 20), 1e-5);
    }
  }
}

// More steps than one launch's exchange has room for, and more lines than one launch steps.
TEST_F(CudaPersistentTest, SeveralLaunches) {
  for (const LayerOptions& options : dense_variants()) {
    const int count =
        info(options.cell).gates > 1 ? 1500 : 3000;  // what is exchanged follows gates
    Case steps = persistent_case(options, Dtype::float16, 768, 16, count);
    const Layer layer(steps.layer);
    const Context context = make_context(1);
    const auto shape =
        layer.plan(context, count, 16, Mode::training, Strategy::persistent).persistent_vjp;
    EXPECT_LT(shape.steps, count);
    expect_near_step_loop(steps, 0.02);
    Case lines = persistent_case(options, Dtype::float16, 64, 2500, 9);
    EXPECT_LT(Layer(lines.layer)
                  .plan(context, 9, 2500, Mode::training, Strategy::persistent)
                  .persistent.lines,
              2500);
    expect_near_step_loop(lines, 0.02);
  }
}

TEST_F(CudaPersistentTest, SameBitsTwice) {
  Random random(92);
  for (const LayerOptions& options : dense_variants()) {
    const Case c = persistent_case(options, Dtype::bfloat16, 768, 16, 100);
    const Data data = random_data(c, random);
    Context context = make_context(1);
    std::vector<std::uint8_t> first;
    for (int run = 0; run < 3; ++run) {
      Buffers buffers(c, data);
      buffers.poison_outputs();
      buffers.forward(context, Mode::training);
      buffers.backward(context);
      if (run == 0) first = buffers.bits();
      EXPECT_TRUE(buffers.bits() == first) << text(c);
    }
  }
}

// A NaN is what an absent word looks like, and must pass through all the same.
TEST_F(CudaPersistentTest, NansPass) {
  Random random(93);
  for (const LayerOptions& options : dense_variants()) {
    for (Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
      const Case c = persistent_case(options, dtype, 40, 3, 12);
      Data data = random_data(c, random);
      for (std::int64_t i = 0; i < c.layer.input_size; ++i) {
        data.x[static_cast<std::size_t>(5 * 3 * c.layer.input_size + i)] = std::nan("");
      }
      const Result got = library(c, data);
      const auto line = static_cast<std::size_t>(c.layer.hidden_size);
      for (std::size_t i = 0; i < got.y.size(); ++i) {
        const bool touched = i / line % 3 == 0 && i / line / 3 >= 5;
        EXPECT_EQ(std::isnan(got.y[i]), touched) << i;
      }
    }
  }
}

// TF32 where the caller allows it: operands rounded to 11 bits, sums in float32. Few lines are
// exact all the same, where each has blocks of its own.
TEST_F(CudaPersistentTest, Float32AsTf32) {
  Random random(94);
  ContextOptions options;
  options.device = test_device();
  options.matmul_precision = MatmulPrecision::high;
  for (const LayerOptions& layer : dense_variants()) {
    for (const auto& [hidden, batch, exact] : {std::tuple{5, 6, false},
                                               {64, 6, false},
                                               {131, 6, true},
                                               {131, 40, false},
                                               {300, 70, false}}) {
      const Case c = persistent_case(layer, Dtype::float32, hidden, batch, batch > 6 ? 9 : 30);
      const Data data = random_data(c, random);
      Context context(options);
      Buffers buffers(c, data);
      const dispatch::Plan plan = buffers.plan_for(context, Mode::training);
      EXPECT_EQ(plan.persistent.split_products, exact) << text(c);
      EXPECT_EQ(plan.persistent_vjp.split_products, exact) << text(c);
      buffers.forward(context, Mode::training);
      buffers.backward(context);
      const Result got = buffers.result();
      const oracle::Answer want = oracle::run(c, data);
      EXPECT_TRUE(close("y", got.y, want.y, {2e-3, 0, 0})) << text(c);
      EXPECT_TRUE(close_rms("dx", got.dx, want.dx, 2e-3, 0)) << text(c);
      EXPECT_TRUE(close_rms("dh_0", got.dh0, want.dh0, 2e-3, 0)) << text(c);
    }
  }
}

TEST_F(CudaPersistentTest, WhatDoesNotFitIsAnError) {
  const Context context = make_context(1);
  for (const LayerOptions& options : dense_variants()) {
    const auto words = [&](Dtype dtype, std::int64_t hidden) {
      const Layer layer(persistent_case(options, dtype, hidden, 1, 9).layer);
      return message<value_error>(
          [&] { layer.plan(context, 9, 1, Mode::training, Strategy::persistent); });
    };
    EXPECT_NE(words(Dtype::float64, 64).find("tensor cores"), std::string::npos);
    Case c = persistent_case(options, Dtype::bfloat16, 6000, 1, 9);
    c.layer.num_heads = 2;
    EXPECT_NE(message<value_error>([&] {
                Layer(c.layer).plan(context, 9, 1, Mode::training, Strategy::persistent);
              }).find("of a head"),
              std::string::npos);
    const std::string bytes = std::to_string(info(options.cell).gates * 3000 * 3000 * 2);
    EXPECT_NE(words(Dtype::bfloat16, 3000).find(bytes + " bytes"), std::string::npos);
  }
}

}  // namespace
}  // namespace scanrnn::test
