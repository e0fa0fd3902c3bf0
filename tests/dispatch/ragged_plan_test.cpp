// SPDX-License-Identifier: Apache-2.0
// Plans of batches that are no rectangles: a packed one is planned as the rectangle that takes as
// long.
#include <gtest/gtest.h>

#include "scanrnn/dispatch/plan.h"

namespace scanrnn::dispatch {
namespace {

Problem problem(Recurrence recurrence, Batch layout, std::int64_t steps, std::int64_t batch) {
  Problem out;
  out.recurrence = recurrence;
  out.layout = layout;
  out.steps = steps;
  out.batch = batch;
  out.input_size = out.hidden_size = 64;
  out.gates = 2;
  return out;
}
Plan planned(const Problem& problem) {
  return plan(problem, {Processor::cpu, 2, 0}, generic_cpu_profile());
}
void expect_same_way(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.strategy, b.strategy);
  EXPECT_EQ(a.tile_steps, b.tile_steps);
  EXPECT_EQ(a.chunk_steps, b.chunk_steps);
}

TEST(RaggedPlan, PackedScanIsOneSequence) {
  for (std::int64_t tokens : {1, 100, 100000}) {
    const Plan packed = planned(problem(Recurrence::linear, Batch::packed, tokens, 50));
    expect_same_way(packed, planned(problem(Recurrence::linear, Batch::ragged, tokens, 1)));
    EXPECT_EQ(packed.problem.steps, tokens);
    EXPECT_EQ(packed.problem.batch, 50);
  }
}

TEST(RaggedPlan, PackedDenseCellsAreLinesOfTheMeanLength) {
  const Plan packed = planned(problem(Recurrence::dense, Batch::packed, 990, 50));
  expect_same_way(packed, planned(problem(Recurrence::dense, Batch::ragged, 20, 50)));
  EXPECT_EQ(packed.problem.steps, 990);
}

TEST(RaggedPlan, OrOfTheLongestWhereItIsKnown) {
  Problem known = problem(Recurrence::dense, Batch::packed, 990, 50);
  known.longest = 40;
  expect_same_way(planned(known), planned(problem(Recurrence::dense, Batch::ragged, 40, 50)));
}

// A host that launches each step does not know when packed sequences end.
TEST(RaggedPlan, PackedDenseCellsOnAGpuAreOneKernelWhereTheyFit) {
  const DeviceLimits gpu{Processor::cuda, 132, 232448};
  Problem few_steps = problem(Recurrence::dense, Batch::packed, 100, 50);
  few_steps.gates = 4;
  const Plan packed = plan(few_steps, gpu, generic_cuda_profile());
  EXPECT_EQ(packed.strategy, Strategy::persistent);
  EXPECT_FALSE(packed.fused_steps);
  few_steps.forced = Strategy::step_loop;
  EXPECT_EQ(plan(few_steps, gpu, generic_cuda_profile()).strategy, Strategy::step_loop);
  few_steps.forced = Strategy::automatic;
  few_steps.storage_bytes = 8;  // of which there is none
  EXPECT_EQ(plan(few_steps, gpu, generic_cuda_profile()).strategy, Strategy::step_loop);
}

TEST(RaggedPlan, NoTokensAndNoSequences) {
  for (const Recurrence recurrence : {Recurrence::linear, Recurrence::dense}) {
    for (std::int64_t batch : {0, 3}) {
      EXPECT_EQ(planned(problem(recurrence, Batch::packed, 0, batch)).reason, Reason::empty);
    }
  }
}

// Threads take no tiles in turn where they share sequences.
TEST(RaggedPlan, NoTilesInTurn) {
  const Problem rectangular = problem(Recurrence::linear, Batch::rectangular, 4096, 1);
  Problem forced = rectangular;
  forced.forced = Strategy::fused_sequential;
  forced.input_size = 512;
  EXPECT_TRUE(planned(forced).in_turn);
  forced.layout = Batch::ragged;
  EXPECT_FALSE(planned(forced).in_turn);
}

TEST(RaggedPlan, SaysTokensAndSequences) {
  const std::string said = explain(planned(problem(Recurrence::linear, Batch::packed, 4096, 50)));
  EXPECT_NE(said.find(" for 4096 tokens of 50 sequences H=64"), std::string::npos) << said;
}

}  // namespace
}  // namespace scanrnn::dispatch
