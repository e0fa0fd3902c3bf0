// SPDX-License-Identifier: Apache-2.0
// Plans whose step of a stack is one launch: which can be, and for how many layers.
#include "scanrnn/dispatch/stack_step.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace scanrnn::dispatch {
namespace {

const Profile kNothing{"none", "this file", 0, {}, nullptr};

Problem step_of(int layers) {
  Problem out;
  out.recurrence = Recurrence::dense;
  out.steps = 1;
  out.batch = 8;
  out.input_size = out.hidden_size = 1024;
  out.gates = 4;
  out.storage_bytes = 2;
  out.at_once = layers;
  out.chained = layers > 1;
  return out;
}
Plan planned(const Problem& problem) {
  return plan(problem, {Processor::cuda, 132, 227 << 10}, kNothing);
}

TEST(StackStepPlans, AsManyLayersAsALaunchTakes) {
  for (const auto& [layers, want] : {std::pair{2, 2}, {4, 4}, {5, 3}, {6, 3}, {8, 4}, {9, 3}}) {
    Problem problem = step_of(layers);
    problem.batch = 16;
    Plan step = planned(problem);
    EXPECT_TRUE(steps_as_one(step));  // as the planner picks
    ASSERT_TRUE(step_as_one(step)) << layers << " layers";
    EXPECT_TRUE(steps_as_one(step));
    EXPECT_EQ(step.at_once, want) << layers << " layers";
    const std::string words = "the step of " + std::to_string(want) + " layers in one launch";
    EXPECT_NE(explain(step).find(words), std::string::npos) << explain(step);
  }
}

TEST(StackStepPlans, TheWholeBatchOfAFusedStep) {
  for (const std::int64_t batch : {1, 8, 16}) {
    Problem problem = step_of(4);
    problem.batch = batch;
    Plan step = planned(problem);
    EXPECT_TRUE(step_as_one(step)) << batch;
    problem.layout = Batch::ragged;  // as for states in a pool
    step = planned(problem);
    EXPECT_TRUE(step_as_one(step)) << batch;
  }
}

TEST(StackStepPlans, PickedWhereItIsFaster) {
  for (const std::int64_t hidden : {512, 768, 1056, 2048}) {
    Problem problem = step_of(4);
    problem.hidden_size = hidden;
    for (const std::int64_t batch : {1, 8, 9, 16}) {
      problem.batch = batch;
      for (const auto layout : {Batch::rectangular, Batch::ragged}) {  // ragged: states in a pool
        problem.layout = layout;
        const bool pays = batch > 8 || layout == Batch::ragged;
        EXPECT_EQ(steps_as_one(planned(problem)), pays && (hidden == 768 || hidden == 1056))
            << hidden << " units, " << batch << " lines";
      }
    }
  }
  Problem plain = step_of(4);
  plain.gates = 1;
  for (const std::int64_t batch : {1, 16}) {
    plain.batch = batch;
    for (const int bytes : {2, 4}) {
      plain.storage_bytes = bytes;
      EXPECT_EQ(steps_as_one(planned(plain)), bytes == 4)
          << batch << " lines, " << bytes << " bytes";
    }
  }
}

TEST(StackStepPlans, StepsThatCannot) {
  const auto can = [](auto change) {
    Problem problem = step_of(4);
    change(problem);
    Plan step = planned(problem);
    const int before = step.at_once;
    const bool out = step_as_one(step);
    EXPECT_TRUE(out || (step.at_once == before && !steps_as_one(step)));
    return out;
  };
  EXPECT_TRUE(can([](Problem&) {}));
  EXPECT_FALSE(can([](Problem& p) { p.at_once = 1, p.chained = false; }));
  EXPECT_FALSE(can([](Problem& p) { p.at_once = 2, p.chained = false; }));  // both directions
  EXPECT_FALSE(can([](Problem& p) { p.training = true; }));
  EXPECT_FALSE(can([](Problem& p) { p.steps = 2; }));
  EXPECT_FALSE(can([](Problem& p) { p.batch = 0; }));
  EXPECT_FALSE(can([](Problem& p) { p.batch = 17; }));  // a product and a kernel a step
  EXPECT_FALSE(can([](Problem& p) { p.layout = Batch::packed; }));
  EXPECT_FALSE(can([](Problem& p) { p.normed = true; }));
  EXPECT_FALSE(can([](Problem& p) { p.forced = Strategy::persistent; }));
  Plan on_cpu = plan(step_of(4), {Processor::cpu, 2, 0}, kNothing);
  EXPECT_FALSE(step_as_one(on_cpu));
}

}  // namespace
}  // namespace scanrnn::dispatch
