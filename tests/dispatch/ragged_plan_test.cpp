// SPDX-License-Identifier: Apache-2.0
// Plans of batches that are no rectangles: a packed one is planned as the rectangle that takes as
// long.
#include <gtest/gtest.h>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/ragged.h"

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

// On a GPU a warp of rows for each multiprocessor is enough to walk sequences for themselves.
TEST(RaggedPlan, PackedSequencesForThemselves) {
  const DeviceLimits gpu{Processor::cuda, 100, 232448};
  const auto on_gpu = [&](const Problem& p) { return plan(p, gpu, generic_cuda_profile()); };
  Problem many = problem(Recurrence::linear, Batch::packed, 6400, 50);  // of 64 units
  EXPECT_EQ(longest_alone(on_gpu(many)), 6400 * 64 / 3200);
  EXPECT_NE(explain(on_gpu(many)).find("for itself while none has more than 128 steps"),
            std::string::npos);
  many.batch = 49;
  EXPECT_EQ(longest_alone(on_gpu(many)), 0) << "fewer rows than lanes, whatever the lengths";
  many.batch = 50;
  EXPECT_EQ(longest_alone(planned(many)), 0) << "on a CPU";
  many.forced = Strategy::parallel_scan;
  EXPECT_EQ(longest_alone(on_gpu(many)), 0);
  EXPECT_EQ(explain(on_gpu(many)).find("for itself"), std::string::npos);
  EXPECT_EQ(longest_alone(on_gpu(problem(Recurrence::linear, Batch::ragged, 6400, 50))), 0);
  EXPECT_EQ(longest_alone(on_gpu(problem(Recurrence::dense, Batch::packed, 6400, 50))), 0);
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

Problem large_dense(Batch layout, std::int64_t steps, std::int64_t batch) {
  Problem out = problem(Recurrence::dense, layout, steps, batch);
  out.input_size = out.hidden_size = 768;
  out.gates = out.sums = 4;
  out.storage_bytes = 2;
  out.training = true;
  out.forced = Strategy::persistent;
  return out;
}
Plan on_gpu(const Problem& p, bool warp_groups = false) {
  return plan(p, {Processor::cuda, 132, 227 << 10, warp_groups}, generic_cuda_profile());
}

// Packed sequences are expected to be of many lengths, and to share so few lines that one launch of
// few lines has room for them; unless they are known to be as long as one another.
TEST(RaggedPlan, SequencesShareLines) {
  Problem packed = large_dense(Batch::packed, 32768, 64);
  const auto expect_shared = [](const Plan& got, bool shared) {
    for (const bool backward : {false, true}) {
      const PersistentShape& shape = backward ? got.persistent_vjp : got.persistent;
      EXPECT_EQ(shares_lines(got, backward), shared);
      EXPECT_EQ(shape.lines < 64, shared);
    }
    EXPECT_EQ(explain(got).find(", sequences share lines") != std::string::npos, shared);
  };
  for (const bool warp_groups : {false, true}) {
    packed.longest = 0;
    expect_shared(on_gpu(packed, warp_groups), true);
    packed.longest = 1024;
    expect_shared(on_gpu(packed, warp_groups), true);
    packed.longest = 32768 / 64;
    expect_shared(on_gpu(packed, warp_groups), false);
    packed.longest = 600;
    expect_shared(on_gpu(packed, warp_groups), false);
  }
}

// What one launch walks as fast with a line for each sequence has one, and so have steps of lines.
TEST(RaggedPlan, FewSequencesDoNotShareLines) {
  for (const Batch layout : {Batch::packed, Batch::ragged, Batch::rectangular}) {
    const Plan few = on_gpu(large_dense(layout, 8000, 16));
    EXPECT_FALSE(shares_lines(few, false) || shares_lines(few, true));
    Problem normed = large_dense(layout, 32768, 64);
    normed.normed = true;
    EXPECT_FALSE(shares_lines(on_gpu(normed), false));
  }
  Problem many = large_dense(Batch::packed, 32768, kMostSharing);
  EXPECT_TRUE(shares_lines(on_gpu(many), false));
  ++many.batch;
  EXPECT_FALSE(shares_lines(on_gpu(many), false));
}

// Nobody knows whether padded sequences have the same length, and only resets differ.
TEST(RaggedPlan, PaddedBatchesAreCutAsRectangles) {
  for (const bool warp_groups : {false, true}) {
    const Plan padded = on_gpu(large_dense(Batch::ragged, 1024, 64), warp_groups);
    const Plan whole = on_gpu(large_dense(Batch::rectangular, 1024, 64), warp_groups);
    EXPECT_EQ(padded.persistent.large, warp_groups);
    EXPECT_EQ(whole.persistent.large, warp_groups);
    EXPECT_EQ(padded.persistent.tile, whole.persistent.tile);
    EXPECT_EQ(padded.persistent.lines, whole.persistent.lines);
    EXPECT_EQ(padded.persistent_vjp.tile, whole.persistent_vjp.tile);
    EXPECT_EQ(padded.persistent_vjp.large, whole.persistent_vjp.large);
    EXPECT_FALSE(shares_lines(whole, false));
  }
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
