// SPDX-License-Identifier: Apache-2.0
// Steps of which each is one kernel, of layers whose R the second level cache does not keep.
#include <algorithm>
#include <tuple>

#include "support/cases.h"
#include "support/conform.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

class CudaLargeStepTest : public CudaTest {
 protected:
  // Without inputs, whose product would be another one for another number of steps.
  static Case case_of(Dtype dtype, std::int64_t hidden, std::int64_t batch) {
    Case c;
    c.layer.cell = Cell::LSTM;
    c.layer.dtype = dtype;
    c.layer.input_size = 8;
    c.layer.hidden_size = hidden;
    c.batch = batch;
    c.steps = 3;
    c.h0 = true;
    c.way = Strategy::step_loop;
    return c;
  }
  static Data data_of(const Case& c, Random& random) {
    Data out = random_data(c, random);
    std::fill(out.x.begin(), out.x.end(), 0.0);
    return out;
  }
  static Context context() {
    ContextOptions options;
    options.device = test_device();
    options.matmul_precision = MatmulPrecision::high;
    return Context(options);
  }
};

TEST_F(CudaLargeStepTest, OfAnyFewLines) {
  Random random(98);
  Context own = context();
  for (const auto& [dtype, hidden, batch] : {std::tuple{Dtype::float32, 1408, 1},
                                             {Dtype::float32, 1408, 6},
                                             {Dtype::float32, 1408, 13},
                                             {Dtype::float32, 2048, 27},
                                             {Dtype::bfloat16, 2008, 7}}) {
    const Case c = case_of(dtype, hidden, batch);
    const Data data = data_of(c, random);
    Buffers buffers(c, data);
    const dispatch::Plan plan = buffers.plan_for(own, Mode::inference);
    ASSERT_TRUE(plan.fused_steps || plan.device.units != 132) << text(c);
    buffers.forward(own, Mode::inference);
    const Result got = buffers.result();
    const oracle::Answer want = oracle::run(c, data);
    const double bound = dtype == Dtype::float32 ? 2e-3 : 2e-2;
    EXPECT_TRUE(close("y", got.y, want.y, {bound, 0, 0})) << text(c);
    EXPECT_TRUE(close("h_n", got.hn, want.hn, {bound, 0, 0})) << text(c);
  }
}

// Halves of R take turns at being the first that a step reads, and no sum depends on it.
TEST_F(CudaLargeStepTest, WhereAWalkBeginsChangesNoBit) {
  Random random(99);
  Context own = context();
  for (const auto& [hidden, batch] : {std::pair{1408, 6}, {1408, 13}, {2048, 27}}) {
    const Case c = case_of(Dtype::float32, hidden, batch);
    const Data data = data_of(c, random);
    Buffers whole(c, data);
    whole.forward(own, Mode::inference);

    Case first = c, rest = c;
    first.steps = 1;
    rest.steps = 2;
    Data some = data;
    const auto keep = [&](std::size_t steps) {
      some.x.resize(steps * data.x.size() / 3);
      some.dy.resize(steps * data.dy.size() / 3);
    };
    keep(1);
    Buffers one(first, some);
    one.forward(own, Mode::inference);
    keep(2);
    some.h0 = one.result().hn;
    some.more0 = one.result().moren;
    Buffers others(rest, some);
    others.forward(own, Mode::inference);

    const Values all = whole.result().y, behind = others.result().y;
    const auto from = all.end() - static_cast<std::ptrdiff_t>(behind.size());
    EXPECT_TRUE(std::equal(behind.begin(), behind.end(), from)) << batch << " lines";
  }
}

}  // namespace
}  // namespace scanrnn::test
