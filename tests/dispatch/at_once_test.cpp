// SPDX-License-Identifier: Apache-2.0
// Plans whose layer calls run at the same time: who may, and what is left of a device for each.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

const Profile kNothing{"none", "this file", 0, {}, nullptr};

Problem lstm(std::int64_t hidden, int at_once, bool chained) {
  Problem out;
  out.recurrence = Recurrence::dense;
  out.steps = 512;
  out.batch = 16;
  out.input_size = out.hidden_size = hidden;
  out.gates = 4;
  out.storage_bytes = 2;
  out.training = true;
  out.at_once = at_once;
  out.chained = chained;
  return out;
}
DeviceLimits gpu() { return {Processor::cuda, 132, 227 << 10}; }
DeviceLimits cpu(std::int64_t threads) { return {Processor::cpu, threads, 0}; }

int blocks(const PersistentShape& shape) { return shape.slices * shape.groups; }

TEST(AtOncePlans, AGpuIsSharedOut) {
  for (const int calls : {2, 3, 4}) {
    Plan shared = plan(lstm(512, calls, calls > 2), gpu(), kNothing);
    ASSERT_EQ(shared.strategy, Strategy::persistent);
    EXPECT_EQ(shared.at_once, calls);  // which the planner picks by itself
    ASSERT_TRUE(run_at_once(shared, kMostAtOnce, 64));
    EXPECT_EQ(shared.at_once, calls);
    EXPECT_LE(calls * blocks(shared.persistent), 132);
    EXPECT_LE(calls * blocks(shared.persistent_vjp), 132);
    EXPECT_EQ(shared.part_steps, calls > 2 ? 64 : 0);
    if (calls > 2) {
      EXPECT_LE(shared.persistent.steps, 64);
    }
    ASSERT_TRUE(run_at_once(shared, 1, 64));
    EXPECT_EQ(shared.at_once, 1);
    EXPECT_EQ(shared.part_steps, 0);
    const Problem alone = lstm(512, 1, false);
    const PersistentShape whole = persistent_shape(alone, gpu(), false);
    EXPECT_EQ(blocks(shared.persistent), blocks(whole));
    EXPECT_EQ(shared.persistent.steps, whole.steps);
  }
}

// A chain's parts are long where the sequence is, for each of them takes its launches.
TEST(AtOncePlans, PartsFollowTheLength) {
  std::int64_t before = 0;
  for (const std::int64_t steps : {512, 4096, 32768}) {
    Problem chain = lstm(256, 4, true);
    chain.steps = steps;
    const Plan shared = plan(chain, gpu(), kNothing);
    EXPECT_EQ(shared.at_once, 4) << steps;
    EXPECT_GT(shared.part_steps, before) << steps;
    EXPECT_LE(4 * shared.part_steps, steps);
    before = shared.part_steps;
  }
}

// Many lines keep a whole machine busy, and half of it takes twice as long.
TEST(AtOncePlans, WhatFillsTheMachineRunsAlone) {
  Problem both = lstm(1024, 2, false);
  both.batch = 64;
  const Plan alone = plan(both, gpu(), kNothing);
  EXPECT_EQ(alone.at_once, 1);
  EXPECT_EQ(alone.part_steps, 0);
}

TEST(AtOncePlans, ShareThatHoldsNoWeights) {
  Plan whole = plan(lstm(1024, 4, true), gpu(), kNothing);
  const Plan before = whole;
  EXPECT_FALSE(run_at_once(whole, 4, 64));
  EXPECT_EQ(whole.at_once, before.at_once);
  EXPECT_EQ(blocks(whole.persistent), blocks(before.persistent));
  Plan loop = plan(lstm(4096, 2, false), gpu(), kNothing);  // whose steps are launches
  ASSERT_EQ(loop.strategy, Strategy::step_loop);
  EXPECT_FALSE(run_at_once(loop, 2, 0));
  Plan alone = plan(lstm(512, 1, false), gpu(), kNothing);
  EXPECT_FALSE(run_at_once(alone, 4, 64));
  for (const DeviceLimits& device : {gpu(), DeviceLimits{Processor::cpu, 4}}) {
    Problem empty = lstm(64, 4, true);
    empty.steps = 0;
    Plan none = plan(empty, device, kNothing);
    EXPECT_FALSE(run_at_once(none, 4, 64)) << "a part has steps";
  }
}

// A chain as one launch: each layer has blocks of its own, and a product that is twice as long.
TEST(AtOncePlans, AChainIsOneLaunch) {
  Problem chain = lstm(256, 4, true);
  chain.linked = true;
  chain.sums = 4;
  Plan one = plan(chain, gpu(), kNothing);
  ASSERT_TRUE(run_as_one(one, kMostAtOnce));
  EXPECT_EQ(one.at_once, 4);
  EXPECT_EQ(one.part_steps, 0);
  for (const bool backward : {false, true}) {
    const PersistentShape& shape = backward ? one.persistent_vjp : one.persistent;
    EXPECT_EQ(shape.layers, 4);
    EXPECT_LE(4 * blocks(shape), 132);
    const PersistentTile& tile = backward ? kChainBackward[shape.tile] : kChainForward[shape.tile];
    const std::int64_t words = (backward ? 4 : 1) * 256 / 2;  // of a layer, of two elements each
    EXPECT_GE(kPersistentWarps / shape.warps_along_units * tile.chunks * 16, 2 * words);
    const std::int64_t slots = std::min(chain.steps, shape.steps) + 4;
    EXPECT_EQ(exchange_bytes(chain, shape, backward), slots * 4 * words * 4 * chain.batch);
  }
  EXPECT_NE(explain(one).find("4 layers in one launch"), std::string::npos) << explain(one);
  Problem between = chain;  // where something is dropped
  between.linked = false;
  Plan apart = plan(between, gpu(), kNothing);
  EXPECT_FALSE(run_as_one(apart, kMostAtOnce));
  EXPECT_EQ(apart.persistent.layers, 1);
  chain.hidden_size = chain.input_size = 24;  // less than a chunk of the sum
  Plan narrow = plan(chain, gpu(), kNothing);
  EXPECT_FALSE(run_as_one(narrow, kMostAtOnce));
}

// Each pass goes its own way: backward a launch of all layers takes longer than it does forward.
TEST(AtOncePlans, PassesGoTheirOwnWays) {
  Problem chain = lstm(512, 4, true);
  chain.linked = true;
  chain.sums = 4;
  const Plan apart = plan(chain, gpu(), kNothing);
  EXPECT_EQ(apart.at_once, 4);
  EXPECT_EQ(apart.part_steps, 0);
  EXPECT_EQ(apart.persistent.layers, 4);
  EXPECT_EQ(apart.at_once_vjp, 4);
  EXPECT_EQ(apart.part_steps_vjp, 32);
  EXPECT_EQ(apart.persistent_vjp.layers, 1);
  EXPECT_NE(
      explain(apart).find("4 layers in one launch, backward 4 layers at the same time by parts "
                          "of 32 steps"),
      std::string::npos)
      << explain(apart);
  chain.training = false;
  EXPECT_EQ(explain(plan(chain, gpu(), kNothing)).find("backward"), std::string::npos);
}

// More layers than run at once are groups of one size.
TEST(AtOncePlans, GroupsAreEqual) {
  for (const auto& [layers, most, want] : {std::tuple{9, 8, 5}, {8, 8, 8}, {5, 4, 3}, {7, 2, 2}}) {
    Plan shared = plan(lstm(128, layers, true), gpu(), kNothing);
    ASSERT_TRUE(run_at_once(shared, most, 64));
    EXPECT_EQ(shared.at_once, want) << layers << " layers";
  }
}

// Threads share what is enough work for them; one thread has nobody to share with.
TEST(AtOncePlans, ACpuSharesOutSmallSteps) {
  Problem small = lstm(64, 4, true);
  small.batch = 1;
  small.storage_bytes = 4;
  const Plan shared = plan(small, cpu(2), kNothing);
  EXPECT_EQ(shared.at_once, 4);
  EXPECT_EQ(shared.part_steps, 512 / kCpuParts);
  EXPECT_NE(explain(shared).find("4 layers at the same time by parts of 32 steps"),
            std::string::npos)
      << explain(shared);
  EXPECT_EQ(plan(small, cpu(1), kNothing).at_once, 1);
  small.steps = 1;
  EXPECT_EQ(plan(small, cpu(2), kNothing).at_once, 1);
  small.steps = 512, small.hidden_size = 256;
  EXPECT_EQ(plan(small, cpu(2), kNothing).at_once, 1);
  small.hidden_size = 64, small.at_once = 2, small.chained = false;
  EXPECT_NE(explain(plan(small, cpu(2), kNothing)).find("both directions at the same time"),
            std::string::npos);
}

}  // namespace
}  // namespace scanrnn::dispatch
