// SPDX-License-Identifier: Apache-2.0
// Walks by warp groups, whatever way a caller's tensors lie: in launches of a few steps and
// of a block's lines, in either direction, of either layout, with a y that begins anywhere; and of
// ragged batches.
#include "scanrnn/dispatch/large.h"
#include "scanrnn/dispatch/ragged.h"
#include "support/conform.h"
#include "support/cuda.h"
#include "support/one_by_one.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

const Way kWarpGroups{Strategy::persistent, Way::Split::warp_groups};

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
    c.way = kWarpGroups;
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
  // Sequences that begin, end and are reset anywhere in a launch of two steps.
  static void expect_ragged(const LayerOptions& options, const std::vector<std::int64_t>& lengths,
                            bool packed, double resets, bool shares, Random& random) {
    expect_ragged(ragged_case(options, lengths, packed), resets, shares, random);
  }
  static void expect_ragged(RaggedCase c, double resets, bool shares, Random& random) {
    const bool packed = c.whole.packed();
    c.whole.layer.dtype = packed ? Dtype::bfloat16 : Dtype::float16;
    c.whole.layer.hidden_size = 320;
    c.whole.layer.bidirectional = true;
    c.whole.h0 = resets == 0 || packed;
    c.whole.way = kWarpGroups;
    if (resets > 0) reset_some(c, resets, random);
    const BatchShape shape{c.whole.steps, c.whole.batch, c.whole.layout, 0};
    const dispatch::Plan plan = kWarpGroups.splits(
        Layer(c.whole.layer).plan(shared_context(1), shape, Mode::training, Strategy::persistent));
    ASSERT_TRUE(plan.persistent.large) << text(c.whole);
    EXPECT_EQ(dispatch::shares_lines(plan, false), shares) << text(c.whole);
    expect_like_steps(c, random);
  }
};

// Lines that do not fill a block, in both directions, of rows that begin at odd elements.
TEST_F(WarpGroups, RowsAtOddElements) {
  Random random(1571);
  for (const LayerOptions& options : dense_variants(few_variants())) {
    expect_right(options, Dtype::bfloat16, 7, true, {3, 1}, random);
  }
}

// More lines than a launch takes, of both layouts; rows at 8 of 16 bytes, or whole pieces apart. A
// variant has two of the four, since its oracle takes seconds.
TEST_F(WarpGroups, MoreLinesThanALaunch) {
  Random random(1572);
  bool first = false;
  for (const LayerOptions& options : dense_variants()) {
    first = !first;
    if (first) {
      expect_right(options, Dtype::bfloat16, 67, false, {}, random);
      expect_right(options, Dtype::float16, 67, true, {8, 0}, random);
    } else {
      expect_right(options, Dtype::bfloat16, 67, true, {4, 4}, random);
      expect_right(options, Dtype::float16, 67, false, {0, 1}, random);
    }
    if (HasFailure()) return;
  }
}

TEST_F(WarpGroups, RaggedBatch) {
  Random random(1573);
  bool packed = false;
  for (const LayerOptions& options : dense_variants(few_variants())) {
    packed = !packed;
    expect_ragged(options, {5, 0, 3, 7, 1}, packed, 0.3, false, random);
  }
}

TEST_F(WarpGroups, AnyLengths) {
  Random random(1575);
  const std::vector<std::vector<std::int64_t>> all{
      {5, 0, 3, 8, 1, 2, 7}, {4, 4, 4}, {1, 0, 0, 6}, {0, 0}};
  for (const LayerOptions& options : dense_variants(few_variants())) {
    for (const auto& lengths : all) {
      for (const bool packed : {false, true}) {
        for (const double resets : {0.0, 0.3, 1.0}) {
          expect_ragged(options, lengths, packed, resets, false, random);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(WarpGroups, ResetsAlone) {
  Random random(1576);
  for (const LayerOptions& options : dense_variants()) {
    for (const double resets : {0.3, 1.0}) {
      expect_ragged(without_lengths(options, 5, 7), resets, false, random);
    }
  }
}

// In lines that they share, one behind another.
TEST_F(WarpGroups, SequencesThatShareLines) {
  Random random(1574);
  for (const LayerOptions& options : dense_variants()) {
    for (const bool packed : {false, true}) {
      std::vector<std::int64_t> lengths;
      for (const double length : random.uniform(70, 0, 12)) {
        lengths.push_back(static_cast<std::int64_t>(length));
      }
      expect_ragged(options, lengths, packed, 0.1, true, random);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
