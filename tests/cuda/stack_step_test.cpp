// SPDX-License-Identifier: Apache-2.0
// A step of a stack in one launch: the bits of its layers one by one, from any state, in place of
// it, and again.
#include "support/cases.h"
#include "support/conform.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;
using Split = Way::Split;

class StackStepTest : public CudaTest {
 protected:
  static Case stack_of(const LayerOptions& options, Dtype dtype, std::int64_t batch, int layers) {
    Case c;
    c.layer = options;
    c.layer.dtype = dtype;
    c.layer.num_layers = layers;
    c.steps = 1;
    c.batch = batch;
    return c;
  }
  template <class F>
  static void for_dense(F&& check) {
    for (const LayerOptions& options : dense_variants()) {
      for (Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
        check(options, dtype);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  static Case with(Case c, Split split) {
    c.way = {Strategy::step_loop, split};
    return c;
  }
  static std::vector<std::uint8_t> forward(const Case& c, const Data& data, Context& context,
                                           const Memory& memory = {}) {
    Buffers buffers(c, data, memory);
    EXPECT_EQ(dispatch::steps_as_one(buffers.plan_for(context, Mode::inference)),
              c.way.split == Split::as_one)
        << text(c);
    buffers.forward(context, Mode::inference);
    return buffers.bits();
  }
  static void expect_equal(const Case& c, const Data& data, Context& context,
                           const Memory& memory = {}) {
    EXPECT_TRUE(forward(with(c, Split::as_one), data, context, memory) ==
                forward(with(c, Split::one_by_one), data, context, memory))
        << text(c);
  }
};

TEST_F(StackStepTest, BitsOfLayersOneByOne) {
  Random random(2101);
  for_dense([&](const LayerOptions& options, Dtype dtype) {
    const bool few = size_of(dtype) >= 4;  // lines of a step that is one kernel
    for (const auto& [hidden, input] : {std::pair{24, 16}, {37, 9}, {64, 72}}) {
      for (const std::int64_t batch : {1, 3, few ? 4 : 8, few ? 2 : 16}) {
        Case c = stack_of(options, dtype, batch, batch == 1 ? 4 : batch == 3 ? 6 : 2);
        c.layer.hidden_size = hidden;
        c.layer.input_size = input;
        c.layer.batch_first = batch != 3;
        c.layer.bias = hidden != 64;
        c.layer.zoneout = batch == 3 ? 0.25 : 0;
        c.h0 = batch != 2 && batch != 8;
        const Data data = random_data(c, random);
        // All sizes fit vectors, and no address does: without them a launch is like all layers.
        const Memory memory{hidden == 24 && batch == 3 ? 1 : 0, 0};
        expect_equal(c, data, shared_context(1), memory);
        if (HasFailure()) return;
      }
    }
  });
}

TEST_F(StackStepTest, MatchesTheOracle) {
  Random random(2102);
  for_dense([&](const LayerOptions& options, Dtype dtype) {
    for (const std::int64_t batch : {1, 4}) {  // the first layer alone fits no vectors
      Case c = with(stack_of(options, dtype, batch, 3), Split::as_one);
      c.layer.hidden_size = 40;
      c.layer.input_size = 5;
      const Data data = random_data(c, random);
      expect_forward(c, library_inference(c, data), oracle::run(c, data), "inference: ");
    }
  });
}

// More units than blocks have at once.
TEST_F(StackStepTest, ManyUnits) {
  Random random(2103);
  LayerOptions options;
  options.cell = Cell::RNN;
  Context& context = shared_context(1);
  options.hidden_size = options.input_size = 8 * context.limits().units + 16;
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
    for (const std::int64_t batch : {1, 2}) {
      const Case c = stack_of(options, dtype, batch, 2);
      expect_equal(c, random_data(c, random), context);
    }
  }
}

TEST_F(StackStepTest, Float32AsTf32) {
  Random random(2104);
  ContextOptions where;
  where.device = test_device();
  where.matmul_precision = MatmulPrecision::high;
  Context context(where);
  for_dense([&](const LayerOptions& options, Dtype dtype) {
    if (dtype != Dtype::float32) return;
    for (const std::int64_t batch : {1, 7, 16}) {
      Case c = stack_of(options, dtype, batch, 3);
      c.layer.hidden_size = c.layer.input_size = batch == 7 ? 19 : 40;
      expect_equal(c, random_data(c, random), context);
    }
  });
}

// New states that replace the old ones, which other blocks still read; the same bits again.
TEST_F(StackStepTest, StatesInPlace) {
  Random random(2105);
  for_dense([&](const LayerOptions& options, Dtype dtype) {
    for (const auto& [hidden, batch] : {std::pair{37, 3}, {64, 1}, {264, 4}}) {
      Case c = stack_of(options, dtype, batch, 3);
      c.layer.hidden_size = c.layer.input_size = hidden;
      const Data data = random_data(c, random);
      Context& context = shared_context(1);
      Buffers apart(with(c, Split::one_by_one), data);
      apart.forward(context, Mode::inference);
      for (int again = 0; again < 2; ++again) {
        Buffers in_place(with(c, Split::as_one), data);
        in_place.step_in_place(context);
        EXPECT_TRUE(in_place.y.bits() == apart.y.bits()) << text(c);
        EXPECT_TRUE(in_place.h0.bits() == apart.hn.bits()) << text(c);
        for (std::size_t i = 0; i < c.more_states(); ++i) {
          EXPECT_TRUE(in_place.more0[i].bits() == apart.moren[i].bits()) << text(c);
        }
      }
    }
  });
}

// A plan for a pool of states, of a call that comes with lengths instead: layer after layer.
TEST_F(StackStepTest, CallsWithLengths) {
  Random random(2106);
  LayerOptions options;
  options.cell = Cell::GRU;
  options.input_size = options.hidden_size = 16;
  Case c = stack_of(options, Dtype::bfloat16, 3, 2);
  c.layout = dispatch::Batch::ragged;
  const Data data = random_data(c, random);
  Context& context = shared_context(1);
  const std::vector<std::int32_t> lengths{1, 0, 1};
  const Uploaded there(context, TensorView::of(lengths.data(), Dtype::int32, {3}));
  const auto bits = [&](Split split) {
    Buffers buffers(with(c, split), data);
    buffers.forward(context, Mode::inference, 0,
                    [&](ForwardArgs& args) { args.ragged.lengths = there.view(); });
    return buffers.bits();
  };
  EXPECT_TRUE(bits(Split::as_one) == bits(Split::one_by_one));
}

}  // namespace
}  // namespace scanrnn::test
