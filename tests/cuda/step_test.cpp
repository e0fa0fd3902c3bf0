// SPDX-License-Identifier: Apache-2.0
// The step loop of dense cells on CUDA, by one kernel a step and by products of its own: batches
// around the lines that a warp takes at once, units and inputs that fit no vector.
#include "support/cases.h"
#include "support/conform.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

class CudaStepTest : public CudaTest {
 protected:
  template <class F>
  static void for_dense(F&& check) {
    for (const LayerOptions& options : dense_variants()) {
      for (Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
        Case c;
        c.layer = options;
        c.layer.dtype = dtype;
        c.way = Strategy::step_loop;
        check(c);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
};

TEST_F(CudaStepTest, AnySizeOfUnitsInputsAndBatch) {
  Random random(95);
  for_dense([&](Case c) {
    for (std::int64_t hidden : {5, 7, 8, 37, 64, 264}) {
      for (std::int64_t batch : {1, 3, 4, 5, 8, 9, 16, 21}) {
        c.steps = hidden % 2 || batch < 4 ? 1 : 3;
        c.batch = batch;
        c.layer.hidden_size = hidden;
        c.layer.input_size = hidden == 264 ? 24 : hidden == 8 ? 40 : 9;
        c.layer.num_layers = hidden == 64 ? 2 : 1;
        c.layer.bidirectional = hidden == 37;
        c.layer.batch_first = batch % 2;
        c.layer.bias = hidden != 7;
        c.h0 = batch != 3 && batch != 8;
        const bool odd = hidden == 264 && batch > 3;  // all sizes fit vectors, and no address does
        const Memory memory{odd ? 3 : 0, odd ? 1 : 0};
        const Data data = random_data(c, random);
        const oracle::Answer want = oracle::run(c, data);
        expect_conforms(c, library(c, data, memory), want);
        expect_forward(c, library_inference(c, data, memory), want, "inference: ");
        if (HasFailure()) return;
      }
    }
  });
}

// A new state that replaces the old one, while other blocks still read that.
TEST_F(CudaStepTest, StateInPlace) {
  Random random(96);
  for_dense([&](Case c) {
    for (const auto& [hidden, batch] : {std::pair{37, 3}, {1024, 1}, {1024, 6}, {256, 30}}) {
      c.steps = 1;
      c.batch = batch;
      c.layer.input_size = 16;
      c.layer.hidden_size = hidden;
      const Data data = random_data(c, random);
      Context context = make_context(1);
      Buffers apart(c, data), in_place(c, data);
      apart.forward(context, Mode::inference);
      in_place.step_in_place(context);
      EXPECT_TRUE(in_place.y.bits() == apart.y.bits()) << text(c);
      EXPECT_TRUE(in_place.h0.bits() == apart.hn.bits()) << text(c);
      for (std::size_t i = 0; i < c.more_states(); ++i) {
        EXPECT_TRUE(in_place.more0[i].bits() == apart.moren[i].bits()) << text(c);
      }
    }
  });
}

// float32 where TF32 is allowed: operands rounded to 11 bits, by tensor cores for several lines.
TEST_F(CudaStepTest, Float32AsTf32) {
  Random random(97);
  ContextOptions options;
  options.device = test_device();
  options.matmul_precision = MatmulPrecision::high;
  for_dense([&](Case c) {
    if (c.layer.dtype != Dtype::float32) return;
    for (const auto& [hidden, batch] : {std::pair{37, 3}, {64, 1}, {64, 7}, {264, 16}, {64, 17}}) {
      c.steps = 2;
      c.batch = batch;
      c.layer.input_size = 24;
      c.layer.hidden_size = hidden;
      const Data data = random_data(c, random);
      Context context(options);
      Buffers buffers(c, data);
      buffers.forward(context, Mode::inference);
      const Result got = buffers.result();
      const oracle::Answer want = oracle::run(c, data);
      EXPECT_TRUE(close("y", got.y, want.y, {2e-3, 0, 0})) << text(c);
      EXPECT_TRUE(close("h_n", got.hn, want.hn, {2e-3, 0, 0})) << text(c);
    }
  });
}

}  // namespace
}  // namespace scanrnn::test
