// SPDX-License-Identifier: Apache-2.0
// Plans of linear layers on CUDA that draw, or whose batches are ragged: what has no kernel is
// never planned, and what runs in its place is said.
#include <gtest/gtest.h>

#include "dispatch/branches.h"
#include "scanrnn/dispatch/ragged.h"

namespace scanrnn::dispatch {
namespace {

const DeviceLimits kGpu{Processor::cuda, 4, 232448};

Problem of(Batch layout, bool draws, Strategy forced = Strategy::automatic) {
  Problem out = problem(100, 4, 8);
  out.layout = layout;
  out.draws = draws;
  out.forced = forced;
  return out;
}
Plan on_gpu(const Problem& problem, const Profile& profile = generic_cuda_profile()) {
  return plan(problem, kGpu, profile);
}
void expect_says(const Plan& plan, const char* words, bool says = true) {
  EXPECT_EQ(explain(plan).find(words) != std::string::npos, says) << explain(plan);
}

constexpr Batch kLayouts[] = {Batch::rectangular, Batch::ragged, Batch::packed};

TEST(DrawsPlan, NothingIsSplitInsideABlock) {
  const Profile inside = profile_of({rule(Strategy::parallel_scan, false, {}, {}),
                                     rule(Strategy::fused_sequential, false, {}, {})});
  for (const Batch layout : kLayouts) {
    for (const bool draws : {false, true}) {
      const bool whole = layout == Batch::rectangular && !draws;
      EXPECT_EQ(splits_inside_blocks(of(layout, draws)), whole);
      EXPECT_EQ(on_gpu(of(layout, draws), inside).strategy,
                whole ? Strategy::parallel_scan : Strategy::fused_sequential);
      for (const Profile& profile : {inside, generic_cuda_profile()}) {
        const Plan forced = on_gpu(of(layout, draws, Strategy::parallel_scan), profile);
        EXPECT_EQ(forced.strategy, Strategy::parallel_scan);
        EXPECT_TRUE(whole || forced.across_blocks);
      }
    }
  }
}

// By costs, too: where those of a split inside a block are the least, they are not asked.
TEST(DrawsPlan, NorIsItPredicted) {
  int inside = 0;
  for (const std::int64_t steps : {16, 128, 1024, 4096}) {
    for (const std::int64_t batch : {1, 8, 64}) {
      Problem p = of(Batch::rectangular, false);
      p.steps = steps;
      p.batch = batch;
      p.hidden_size = p.input_size = 256;
      const auto is_inside = [](const Plan& got) {
        return got.strategy == Strategy::parallel_scan && !got.across_blocks;
      };
      const DeviceLimits device{Processor::cuda, 132, 232448};
      inside += is_inside(plan(p, device, generic_cuda_profile()));
      for (const Batch layout : kLayouts) {
        p.layout = layout;
        p.draws = layout == Batch::rectangular;
        EXPECT_FALSE(is_inside(plan(p, device, generic_cuda_profile()))) << explain(on_gpu(p));
      }
    }
  }
  EXPECT_GT(inside, 0) << "nothing would be split so anyway";
}

// A padded batch of many rows is walked, whatever costs of rectangular ones say; a forced scan
// scans.
TEST(DrawsPlan, ManyRaggedRowsAreWalked) {
  const DeviceLimits device{Processor::cuda, 132, 232448};
  Problem p = of(Batch::ragged, false);
  p.steps = 2048;
  p.hidden_size = p.input_size = 256;
  p.batch = 49;  // 95 rows a multiprocessor
  EXPECT_EQ(plan(p, device, generic_cuda_profile()).strategy, Strategy::parallel_scan);
  p.batch = 50;
  EXPECT_EQ(plan(p, device, generic_cuda_profile()).strategy, Strategy::fused_sequential);
  p.forced = Strategy::parallel_scan;
  EXPECT_EQ(plan(p, device, generic_cuda_profile()).strategy, Strategy::parallel_scan);
}

TEST(DrawsPlan, SaysHowTimeIsSplit) {
  const Strategy scan = Strategy::parallel_scan;
  expect_says(on_gpu(of(Batch::rectangular, true, scan)),
              ", time over blocks, as draws are never split inside one, by values in place of "
              "logarithms: forced by the caller");
  expect_says(on_gpu(of(Batch::ragged, false, scan)),
              ", time over blocks, as a ragged batch is never split inside one: forced");
  Problem by_values = of(Batch::rectangular, true, scan);
  by_values.log_domain = false;
  expect_says(on_gpu(by_values), "in place of logarithms", false);
  EXPECT_FALSE(on_gpu(by_values).log_domain);
}

TEST(DrawsPlan, LogarithmsWhereThereAreKernels) {
  for (const Batch layout : kLayouts) {
    EXPECT_TRUE(on_gpu(of(layout, false)).log_domain);
    EXPECT_FALSE(on_gpu(of(layout, true)).log_domain);
    EXPECT_TRUE(on(of(layout, true)).log_domain) << "on a CPU";
  }
}

// Resets and draws together are a scan over blocks, whatever else was planned.
TEST(DrawsPlan, SaysWhatRunsWithResets) {
  for (const Batch layout : kLayouts) {
    for (const bool draws : {false, true}) {
      for (const Strategy forced :
           {Strategy::direct, Strategy::fused_sequential, Strategy::parallel_scan}) {
        for (const bool training : {false, true}) {
          Problem p = of(layout, draws, forced);
          p.training = training;
          const bool walks = forced == Strategy::fused_sequential || training;
          const bool scans =
              draws && layout != Batch::rectangular && forced != Strategy::parallel_scan && walks;
          EXPECT_EQ(scans_resets(on_gpu(p)), scans);
          expect_says(on_gpu(p), " with resets a scan over blocks, since it draws", scans);
          EXPECT_FALSE(scans_resets(on(p))) << "on a CPU";
        }
      }
    }
  }
  Problem diagonal = of(Batch::ragged, true, Strategy::fused_sequential);
  diagonal.recurrence = Recurrence::diagonal;
  EXPECT_FALSE(scans_resets(on_gpu(diagonal)));
}

TEST(DrawsPlan, SaysHowSequencesAreWalked) {
  const Strategy walk = Strategy::fused_sequential;
  expect_says(on_gpu(of(Batch::ragged, false, walk)), ", each sequence for itself: forced");
  expect_says(on_gpu(of(Batch::packed, false, walk)),
              ", each sequence for itself, but with resets all tokens as one: forced");
  expect_says(on_gpu(of(Batch::rectangular, false, walk)), "each sequence", false);
  expect_says(on(of(Batch::packed, false, walk)), "each sequence", false);
}

// A bare scan learns of resets when it is called.
TEST(DrawsPlan, SaysWhatABareScanDoesWithResets) {
  Problem scan = of(Batch::rectangular, false, Strategy::parallel_scan);
  scan.gates = 0;
  scan.hidden_size = scan.input_size = 512;
  const Profile inside = profile_of({rule(Strategy::parallel_scan, false, {}, {})});
  expect_says(on_gpu(scan, inside),
              ", time inside a block, but step by step where there are resets");
  const Profile over = profile_of({rule(Strategy::parallel_scan, true, {}, {})});
  expect_says(on_gpu(scan, over), "resets", false);
  scan.time_contiguous = true;
  scan.steps = 1 << 20;
  scan.batch = scan.hidden_size = scan.input_size = 1;
  expect_says(on_gpu(scan, over),
              ", time along lanes and over blocks, but over blocks alone where there are resets: ");
  scan.log_states = true;
  expect_says(on_gpu(scan, over), "resets", false);
}

}  // namespace
}  // namespace scanrnn::dispatch
