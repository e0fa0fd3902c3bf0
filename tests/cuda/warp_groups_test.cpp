// SPDX-License-Identifier: Apache-2.0
// Walks by warp groups, whatever way a caller's tensors lie: in launches of a few steps and
// of a block's lines, in either direction, of either layout, with a y that begins anywhere.
#include "scanrnn/dispatch/large.h"
#include "support/conform.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

class WarpGroups : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && !shared_context(1).limits().warp_groups) {
      GTEST_SKIP() << "warp groups do not multiply here";
    }
  }
  // With 320 units some weights are in shared memory. No launch has all steps, nor more lines than
  // a block.
  static void expect_right(const LayerOptions& options, Dtype dtype, std::int64_t batch,
                           bool batch_first, const Memory& memory, Random& random) {
    Case c;
    c.layer = options;
    c.layer.dtype = dtype;
    c.layer.input_size = 9;
    c.layer.hidden_size = 320;
    c.layer.bidirectional = true;
    c.layer.batch_first = batch_first;
    c.batch = batch;
    c.steps = 5;
    c.way = Way{Strategy::persistent, Way::Split::warp_groups};
    const Data data = random_data(c, random);
    const dispatch::Plan plan = Buffers(c, data).plan_for(shared_context(1), Mode::training);
    ASSERT_TRUE(plan.persistent.large) << text(c);
    EXPECT_EQ(plan.persistent.steps, 2);
    EXPECT_EQ(plan.persistent.lines, 64);
    const dispatch::LargeTile back = dispatch::kLargeBackward[0];
    if (dispatch::large_back_fits(back, c.layer.hidden_size, plan.problem.gates)) {
      ASSERT_TRUE(plan.persistent_vjp.large) << text(c);
      EXPECT_EQ(plan.persistent_vjp.steps, 2);
      EXPECT_EQ(plan.persistent_vjp.lines, back.lines);
    }
    expect_conforms(c, library(c, data, memory), oracle::run(c, data));
  }
};

// Lines that do not fill a block, in both directions, of rows that begin at odd elements.
TEST_F(WarpGroups, RowsAtOddElements) {
  Random random(1571);
  for (const LayerOptions& options : dense_variants(few_variants())) {
    expect_right(options, Dtype::bfloat16, 7, true, {3, 1}, random);
  }
}

// More lines than a launch takes, of both layouts; rows at 8 of 16 bytes, or whole pieces apart.
TEST_F(WarpGroups, MoreLinesThanALaunch) {
  Random random(1572);
  for (const LayerOptions& options : dense_variants()) {
    expect_right(options, Dtype::bfloat16, 70, false, {}, random);
    expect_right(options, Dtype::bfloat16, 70, true, {4, 4}, random);
    expect_right(options, Dtype::float16, 70, false, {0, 1}, random);
    expect_right(options, Dtype::float16, 70, true, {8, 0}, random);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace scanrnn::test
