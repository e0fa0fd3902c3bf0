// SPDX-License-Identifier: Apache-2.0
// The planner to its last branch, on devices and with thresholds that only tests know.
#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>

#include "dispatch/branches.h"
#include "scanrnn/dispatch/profile.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

class BranchTest : public testing::TestWithParam<Branch> {};

TEST_P(BranchTest, IsTaken) {
  const Branch& branch = GetParam();
  Problem wanted = problem(branch.steps, branch.batch, branch.hidden);
  wanted.training = branch.training;
  wanted.gates = branch.gates;
  const Plan got = on(wanted);
  SCOPED_TRACE(explain(got));
  EXPECT_STREQ(name(got.strategy), name(branch.strategy)) << branch.what;
  EXPECT_EQ(got.reason, branch.reason) << branch.what;
  EXPECT_NE(got.runner_up, got.strategy);
  EXPECT_NE(got.runner_up, Strategy::automatic);

  // Forced, each strategy is what one gets, and the choice it replaced is the runner-up.
  for (Strategy forced : kLinearStrategies) {
    wanted.forced = forced;
    const Plan plan = on(wanted);
    EXPECT_EQ(plan.strategy, forced);
    EXPECT_EQ(plan.reason, Reason::forced);
    EXPECT_EQ(plan.runner_up, forced == got.strategy ? got.runner_up : got.strategy);
  }
}
INSTANTIATE_TEST_SUITE_P(Plan, BranchTest, testing::ValuesIn(kBranches));

TEST(Plan, MoreUnitsMakeMoreRowsFew) {
  EXPECT_EQ(on(problem(100, 1, 80), 4).strategy, Strategy::fused_sequential);
  EXPECT_EQ(on(problem(100, 1, 80), 8).strategy, Strategy::parallel_scan);
}

TEST(Plan, SaysWhatItWasMadeFor) {
  Problem wanted = problem(100, 2, 3);
  wanted.training = true;
  wanted.log_domain = false;
  const Plan got = on(wanted);
  EXPECT_EQ(got.problem.steps, 100);
  EXPECT_EQ(got.problem.batch, 2);
  EXPECT_EQ(got.problem.hidden_size, 3);
  EXPECT_TRUE(got.problem.training);
  EXPECT_FALSE(got.problem.log_domain);
  EXPECT_EQ(got.device.units, 4);
  EXPECT_STREQ(got.profile, kProfile.name);
  EXPECT_STREQ(got.origin, kProfile.origin);
  EXPECT_EQ(std::memcmp(&got.rule, &kProfile.rules[6], sizeof(Rule)), 0) << "the rule that decided";
}

TEST(Plan, Tiles) {
  for (std::int64_t steps : {0, 1, 2, 15, 16, 17, 61, 255, 256, 257, 5000, 1000003}) {
    for (std::int64_t batch : {0, 1, 3, 64, 4096}) {
      for (std::int64_t units : {1, 2, 7, 64}) {
        for (Strategy strategy : kLinearStrategies) {
          Problem wanted = problem(steps, batch, 8);
          wanted.forced = strategy;
          const Plan got = on(wanted, units);
          SCOPED_TRACE(explain(got));
          EXPECT_GE(got.tile_steps, 1) << "a tile makes progress";
          if (strategy == Strategy::fused_sequential && got.tile_steps > 1) {
            EXPECT_LE(got.tile_steps * batch, kCpuTileValues / (wanted.gates * wanted.hidden_size));
          }
          if (strategy != Strategy::parallel_scan) {
            EXPECT_EQ(got.chunk_steps, 0);
            continue;
          }
          EXPECT_GE(got.chunk_steps, kCpuMinChunk);
          EXPECT_LE(got.chunk_steps, kCpuMaxChunk);
          EXPECT_LE(got.chunk_steps, std::max(kCpuMinChunk, (steps + units) / (units + 1)))
              << "a part for each thread and one more";
        }
      }
    }
  }
}

// Threads take tiles of their own, at least one each, where rows are few and the product is large.
TEST(Plan, TilesInTurn) {
  const auto fused = [](Problem wanted, std::int64_t units) {
    wanted.forced = Strategy::fused_sequential;
    return on(wanted, units);
  };
  const Problem least = problem(5000, 4, 4 * kCpuTurnRows / 8);
  for (const std::int64_t units : {2, 4}) {
    const Plan got = fused(least, units);
    EXPECT_TRUE(got.in_turn);
    EXPECT_LE(got.tile_steps, kCpuTurnTokens / 4);
    EXPECT_EQ((least.steps + got.tile_steps - 1) / got.tile_steps % units, 0) << "as many for each";
    EXPECT_NE(explain(got).find(", a tile for each thread"), std::string::npos);
  }
  EXPECT_FALSE(fused(least, 1).in_turn) << "one thread has nobody to wait for";
  EXPECT_FALSE(fused(problem(10, 1, 64), 4).in_turn) << "no work for a second thread";
  EXPECT_FALSE(fused(problem(0, 0, 64), 4).in_turn);
  Problem wanted = problem(100, 1000, 3);
  wanted.input_size = 200;
  EXPECT_TRUE(fused(wanted, 4).in_turn);
  EXPECT_EQ(fused(wanted, 4).tile_steps, 1) << "a tile is at least a step";

  wanted = least;
  wanted.hidden_size += 1;
  EXPECT_FALSE(fused(wanted, 2).in_turn) << "rows enough for each thread";
  EXPECT_TRUE(fused(wanted, 4).in_turn);
  wanted = least;
  wanted.steps = kCpuTurns * kCpuTurnTokens * 2 / 4;
  EXPECT_TRUE(fused(wanted, 2).in_turn);
  --wanted.steps;
  EXPECT_FALSE(fused(wanted, 2).in_turn) << "too few tiles for each thread";
  wanted = least;
  wanted.input_size = 4 * kCpuWalkCost * 2 - kCpuWalkCost;
  EXPECT_TRUE(fused(wanted, 2).in_turn);
  EXPECT_FALSE(fused(wanted, 4).in_turn) << "four threads would wait for one another's walks";
  wanted = least;
  wanted.gates = 0;
  EXPECT_FALSE(fused(wanted, 2).in_turn) << "nothing is projected";
  wanted = least;
  wanted.forced = Strategy::direct;
  EXPECT_FALSE(on(wanted, 2).in_turn) << "direct has one tile";
}

// On a GPU the tiles are the kernels' own, and a parallel scan is split over blocks or stays in
// one.
TEST(Plan, Cuda) {
  const auto on_cuda = [](Problem wanted, Strategy forced = Strategy::automatic) {
    wanted.forced = forced;
    return plan(wanted, {Processor::cuda, 4}, kProfile);
  };
  EXPECT_TRUE(on_cuda(problem(100, 2, 12)).across_blocks);
  EXPECT_FALSE(on_cuda(problem(100, 5, 5)).across_blocks) << "25 rows are few, but not that few";
  EXPECT_EQ(on_cuda(problem(100, 5, 5)).strategy, Strategy::parallel_scan);
  EXPECT_TRUE(on_cuda(problem(10, 2, 12), Strategy::parallel_scan).across_blocks)
      << "the rule that decides says how a scan would be split";
  EXPECT_FALSE(on_cuda(problem(100, 2, 12), Strategy::fused_sequential).across_blocks);
  EXPECT_FALSE(on_cuda(problem(100, 1, 41)).across_blocks);
  Problem training = problem(200, 1, 8);
  training.training = true;
  EXPECT_TRUE(on_cuda(training).across_blocks);
  training.hidden_size = 9;
  EXPECT_FALSE(on_cuda(training).across_blocks);
  for (Strategy strategy : kLinearStrategies) {
    const Plan got = on_cuda(problem(100, 2, 12), strategy);
    EXPECT_EQ(got.tile_steps, 0);
    EXPECT_EQ(got.chunk_steps, 0);
  }
  EXPECT_NE(explain(on_cuda(problem(100, 2, 12))), explain(on_cuda(problem(100, 5, 5))));
  EXPECT_NE(explain(on_cuda(problem(100, 2, 12))).find("over blocks"), std::string::npos);
  EXPECT_NE(explain(on_cuda(problem(100, 5, 5))).find("inside a block"), std::string::npos);
  EXPECT_FALSE(on(problem(100, 2, 12)).across_blocks) << "a CPU has no blocks";
}

// B*H and B*T beyond 32 bits, to the last.
// Time lies along lanes where the steps of a row are adjacent, and where rows are few if that is
// predicted to be faster than what the profile says.
TEST(Plan, TimeAlongLanes) {
  const auto scan = [](std::int64_t steps, std::int64_t lines, std::int64_t rows, bool adjacent,
                       Strategy forced = Strategy::automatic) {
    Problem wanted = problem(steps, lines, rows);
    wanted.gates = 0;
    wanted.time_contiguous = adjacent;
    wanted.forced = forced;
    return plan(wanted, {Processor::cuda, 132}, kProfile);
  };
  const Plan one_row = scan(1 << 24, 1, 1, false);
  EXPECT_TRUE(one_row.along_lanes && one_row.across_blocks) << explain(one_row);
  EXPECT_GT(one_row.expected_us, 0);
  const Plan many = scan(4096, 8, 1536, true);
  EXPECT_TRUE(many.along_lanes && !many.across_blocks) << explain(many);
  EXPECT_EQ(many.reason, Reason::adjacent_steps);
  EXPECT_NE(explain(many).find("time along lanes, but step by step where there are resets: the "
                               "steps of a row are adjacent"),
            std::string::npos)
      << explain(many);
  const Plan short_rows = scan(64, 8, 1536, true);
  EXPECT_TRUE(short_rows.along_lanes && !short_rows.across_blocks) << explain(short_rows);
  EXPECT_NE(explain(short_rows).find("some steps of a row for each lane where"), std::string::npos)
      << explain(short_rows);
  EXPECT_NEAR(short_rows.expected_us, 10, 5);
  EXPECT_NE(explain(scan(3, 8, 1536, true)).find(", a row for each lane"), std::string::npos);
  EXPECT_FALSE(scan(4096, 8, 1536, false).along_lanes) << "rows are many, and adjacent";
  EXPECT_FALSE(scan(4096, 8, 1536, true, Strategy::fused_sequential).along_lanes);
  EXPECT_TRUE(scan(4096, 8, 1536, true, Strategy::parallel_scan).along_lanes);
  EXPECT_FALSE(scan(0, 8, 1536, true).along_lanes);
  Problem layer = problem(1 << 20, 1, 1);
  EXPECT_FALSE(plan(layer, {Processor::cuda, 132}, kProfile).along_lanes);
}

// On a CPU rows of adjacent steps are walked, but for one that is long and has threads to spare.
TEST(Plan, RowsOfAdjacentSteps) {
  const auto scan = [](std::int64_t rows, std::int64_t steps, int threads, bool adjacent = true) {
    Problem wanted = problem(steps, 1, rows);
    wanted.gates = 0;
    wanted.time_contiguous = adjacent;
    return plan(wanted, {Processor::cpu, threads}, kProfile);
  };
  const Plan many = scan(100, 3000, 2);
  EXPECT_EQ(many.strategy, Strategy::fused_sequential) << explain(many);
  EXPECT_EQ(many.reason, Reason::adjacent_steps);
  EXPECT_EQ(scan(2, 1 << 22, 2).strategy, Strategy::fused_sequential);
  EXPECT_EQ(scan(1, 1 << 18, 2).strategy, Strategy::fused_sequential);
  EXPECT_EQ(scan(1, 1 << 24, 2).strategy, Strategy::parallel_scan);
  EXPECT_EQ(scan(1, 1 << 18, 4).strategy, Strategy::parallel_scan);
  EXPECT_GT(scan(1, 1 << 24, 2).chunk_steps, 0) << "time is split";
  EXPECT_NE(scan(100, 3000, 2, false).reason, Reason::adjacent_steps);
  EXPECT_EQ(scan(100, 0, 2).reason, Reason::empty);
}

// On a GPU threads walk rows of a few steps where these lie, unless something else is asked for.
TEST(Plan, ScansOfAFewSteps) {
  const Profile* const measured = find_profile("sm_90");
  ASSERT_NE(measured, nullptr);
  const auto scan = [&](std::int64_t steps, std::int64_t rows, int bytes,
                        Strategy forced = Strategy::automatic) {
    Problem wanted = problem(steps, 1, rows);
    wanted.gates = 0;
    wanted.storage_bytes = bytes;
    wanted.forced = forced;
    return plan(wanted, {Processor::cuda, 132}, *measured);
  };
  for (const int bytes : {2, 4}) {
    for (const std::int64_t rows : {1, 50, 500, 1908, 200025, 1 << 26}) {
      for (std::int64_t steps = 1; steps <= 8; ++steps) {
        const Plan got = scan(steps, rows, bytes);
        EXPECT_EQ(got.strategy, Strategy::fused_sequential) << steps << ", " << rows;
        EXPECT_EQ(got.reason, Reason::few_steps);
        EXPECT_FALSE(got.along_lanes);
      }
    }
    // A way that is forced is the fastest of its kind, as at more steps.
    const Plan forced = scan(8, 50, bytes, Strategy::parallel_scan);
    EXPECT_EQ(forced.strategy, Strategy::parallel_scan);
    EXPECT_EQ(forced.reason, Reason::forced);
    EXPECT_FALSE(forced.across_blocks);
    EXPECT_GT(forced.expected_us, 0);
    EXPECT_EQ(scan(256, 50, bytes).strategy, Strategy::parallel_scan);
  }
  const std::string text = explain(scan(8, 50, 4));
  EXPECT_NE(text.find("T <= 8 steps are walked where they lie"), std::string::npos) << text;
}

TEST(Plan, LargeSizes) {
  const std::int64_t large = std::int64_t{1} << 31;
  EXPECT_EQ(on(problem(large, 4, 4)).strategy, Strategy::parallel_scan);
  EXPECT_EQ(on(problem(4, large, large / 4)).strategy, Strategy::fused_sequential);
}

// A dense recurrence is walked, whatever its sizes.
TEST(Plan, DenseCellsAreWalkedStepByStep) {
  for (const Branch& branch : kBranches) {
    Problem wanted = problem(branch.steps, branch.batch, branch.hidden);
    wanted.recurrence = Recurrence::dense;
    wanted.training = branch.training;
    const Plan got = on(wanted);
    EXPECT_EQ(got.strategy, Strategy::step_loop) << branch.what;
    const bool empty = branch.steps == 0 || branch.batch == 0;
    EXPECT_EQ(got.reason, empty ? Reason::empty : Reason::every_step) << branch.what;
    EXPECT_EQ(got.chunk_steps, 0);
    EXPECT_GE(got.tile_steps, 1);
    const std::string text = explain(got);
    EXPECT_EQ(text.rfind("step_loop", 0), 0u) << text;
    EXPECT_NE(text.find(empty ? "nothing" : "needs the state before it"), std::string::npos);
    EXPECT_EQ(text.find("runner-up"), std::string::npos) << "there is no other: " << text;
  }
}

// The steps of a diagonal one do not compose.
TEST(Plan, DiagonalCellsAreNeverScanned) {
  for (const Branch& branch : kBranches) {
    Problem wanted = problem(branch.steps, branch.batch, branch.hidden);
    wanted.recurrence = Recurrence::diagonal;
    wanted.training = branch.training;
    for (const Plan& got : {on(wanted), plan(wanted, {Processor::cuda, 132}, kProfile),
                            plan(wanted, {Processor::cuda, 132}, generic_cuda_profile())}) {
      EXPECT_NE(got.strategy, Strategy::parallel_scan) << branch.what;
      EXPECT_NE(got.runner_up, Strategy::parallel_scan) << branch.what;
      EXPECT_EQ(explain(got).find("scan"), std::string::npos) << explain(got);
    }
  }
}

// Options that read more of a line than a unit's sums leave one way.
TEST(Plan, StepsOfWholeLines) {
  const auto wanted = [](bool normed, Recurrence recurrence = Recurrence::dense) {
    Problem out = problem(512, 8, 256);
    out.recurrence = recurrence;
    out.gates = 4;
    out.normed = normed;
    out.resets = !normed;
    return out;
  };
  for (const bool normed : {false, true}) {
    for (const Profile* profile : {&kProfile, &generic_cuda_profile()}) {
      for (const DeviceLimits device :
           {DeviceLimits{Processor::cuda, 132, 227 << 10}, DeviceLimits{Processor::cpu, 4}}) {
        for (const Batch layout : {Batch::rectangular, Batch::packed}) {
          Problem p = wanted(normed);
          p.layout = layout;
          const Plan got = plan(p, device, *profile);
          EXPECT_FALSE(got.fused_steps);
          EXPECT_EQ(got.runner_up, Strategy::step_loop);
          if (device.processor == Processor::cuda) {
            EXPECT_EQ(got.strategy, Strategy::persistent);
            EXPECT_EQ(got.reason, Reason::on_chip);
            EXPECT_GE(got.persistent.tile, 0);
            EXPECT_FALSE(got.persistent.in_block);
            continue;
          }
          EXPECT_EQ(got.strategy, Strategy::step_loop);
          EXPECT_EQ(got.reason, Reason::whole_lines);
          EXPECT_LT(got.persistent.tile, 0);
          const char* words = normed ? "all sums of a line" : "two products";
          EXPECT_NE(explain(got).find(words), std::string::npos) << explain(got);
        }
      }
    }
    Problem forced = wanted(normed);
    forced.forced = Strategy::persistent;
    EXPECT_EQ(misfit(forced, {Processor::cuda, 132, 227 << 10}), "");
    forced.heads = 4;
    const std::string why = misfit(forced, {Processor::cuda, 132, 227 << 10});
    EXPECT_NE(why.find(normed ? "layer_norm" : "reset_after=False"), std::string::npos) << why;
  }
  Problem diagonal = wanted(true, Recurrence::diagonal);
  diagonal.resets = false;
  for (const std::int64_t steps : {0, 1, 512}) {
    diagonal.steps = steps;
    const Plan got = plan(diagonal, {Processor::cuda, 132}, generic_cuda_profile());
    EXPECT_EQ(got.strategy, Strategy::fused_sequential);
    EXPECT_EQ(got.runner_up, Strategy::fused_sequential);
  }
  diagonal.forced = Strategy::direct;
  EXPECT_NE(misfit(diagonal, {Processor::cuda, 132}).find("layer_norm"), std::string::npos);
}

TEST(Plan, SaysWhatDoesNotFit) {
  const auto why = [](Recurrence recurrence, Processor processor, Strategy forced) {
    Problem wanted = problem(100, 2, 3);
    wanted.recurrence = recurrence;
    wanted.forced = forced;
    return misfit(wanted, {processor, 4});
  };
  for (Processor processor : {Processor::cpu, Processor::cuda}) {
    EXPECT_EQ(why(Recurrence::linear, processor, Strategy::automatic), "");
    EXPECT_EQ(why(Recurrence::dense, processor, Strategy::automatic), "");
    EXPECT_EQ(why(Recurrence::dense, processor, Strategy::step_loop), "");
    for (Strategy strategy : kLinearStrategies) {
      EXPECT_EQ(why(Recurrence::linear, processor, strategy), "");
      EXPECT_NE(why(Recurrence::dense, processor, strategy).find("each step"), std::string::npos);
    }
    for (Strategy strategy : {Strategy::step_loop, Strategy::persistent}) {
      EXPECT_NE(why(Recurrence::linear, processor, strategy).find("linear"), std::string::npos);
      EXPECT_NE(why(Recurrence::diagonal, processor, strategy).find("diagonal"), std::string::npos);
    }
    EXPECT_EQ(why(Recurrence::diagonal, processor, Strategy::automatic), "");
    EXPECT_EQ(why(Recurrence::diagonal, processor, Strategy::direct), "");
    EXPECT_EQ(why(Recurrence::diagonal, processor, Strategy::fused_sequential), "");
    EXPECT_NE(why(Recurrence::diagonal, processor, Strategy::parallel_scan).find("do not compose"),
              std::string::npos);
  }
  EXPECT_NE(why(Recurrence::dense, Processor::cpu, Strategy::persistent).find("GPU"),
            std::string::npos);
}

TEST(Plan, IsPure) {
  static_assert(std::is_trivially_copyable_v<Plan>, "a plan is plain data");
  for (const Branch& branch : kBranches) {
    for (Strategy forced : {Strategy::automatic, Strategy::parallel_scan}) {
      Problem wanted = problem(branch.steps, branch.batch, branch.hidden);
      wanted.forced = forced;
      const Plan first = on(wanted);
      on(problem(12345, 6, 7));
      const Plan second = on(wanted);
      EXPECT_EQ(explain(first), explain(second));
      EXPECT_EQ(first.strategy, second.strategy);
      EXPECT_EQ(first.runner_up, second.runner_up);
      EXPECT_EQ(first.reason, second.reason);
      EXPECT_EQ(first.tile_steps, second.tile_steps);
      EXPECT_EQ(first.chunk_steps, second.chunk_steps);
      EXPECT_EQ(std::memcmp(&first.rule, &second.rule, sizeof(Rule)), 0);
      EXPECT_EQ(std::memcmp(first.profile, second.profile, sizeof first.profile), 0);
    }
  }
}

}  // namespace
}  // namespace scanrnn::dispatch
