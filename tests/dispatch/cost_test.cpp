// SPDX-License-Identifier: Apache-2.0
// What a problem is counted to be, and the choice by predicted times, with costs that only this
// file knows.
#include "scanrnn/dispatch/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

constexpr DeviceLimits kDevice{Processor::cuda, 100, 232448};

Problem problem(std::int64_t steps, std::int64_t batch, std::int64_t hidden, int gates = 2) {
  Problem out;
  out.steps = steps;
  out.batch = batch;
  out.input_size = out.hidden_size = hidden;
  out.gates = gates;
  return out;
}
Problem dense(std::int64_t steps, std::int64_t batch, std::int64_t hidden) {
  Problem out = problem(steps, batch, hidden, 4);
  out.recurrence = Recurrence::dense;
  out.storage_bytes = 2;
  return out;
}

constexpr Strategy kDirect = Strategy::direct, kWalk = Strategy::fused_sequential,
                   kSplit = Strategy::parallel_scan, kLoop = Strategy::step_loop,
                   kWhole = Strategy::persistent;

double count(const Problem& p, Strategy strategy, Term term, bool across_blocks = false) {
  return counts(p, kDevice, strategy, across_blocks)[static_cast<std::size_t>(term)];
}
double count_over_blocks(const Problem& p, Term term) { return count(p, kSplit, term, true); }

TEST(Counts, OfAWalk) {
  Problem p = problem(1000, 50, 70);  // three columns for each of 50 entries, in 38 blocks of four
  EXPECT_EQ(count(p, kWalk, Term::call), 1);
  EXPECT_EQ(count(p, kWalk, Term::chunk), 63);
  EXPECT_EQ(count(p, kWalk, Term::walk), 1000);
  EXPECT_EQ(count(p, kWalk, Term::walk_read), 63 * 16 * 2);
  EXPECT_EQ(count(p, kWalk, Term::walk_load), 1000 * 3 * 4) << "the busiest has a whole block";
  EXPECT_EQ(count(p, kWalk, Term::walk_load_4), 0);
  EXPECT_EQ(count(p, kWalk, Term::byte), 0) << "hidden behind the one block";
  p.batch = 500;  // 375 blocks: four on the busiest, which has room for three
  EXPECT_EQ(count(p, kWalk, Term::walk), 2000);
  EXPECT_EQ(count(p, kWalk, Term::walk_load), 1000 * 3 * 16);
  EXPECT_EQ(count(p, kWalk, Term::walk_load_4), 1000 * 3 * 12);
  const double all = 500.0 * 1000 * 70 * 4 * 3, share = 1 - 400 / 1500.0;
  EXPECT_DOUBLE_EQ(count(p, kWalk, Term::byte), all * share);
  EXPECT_DOUBLE_EQ(count(p, kWalk, Term::uncached_byte), all * share);
}

TEST(Counts, OfBytesThatTheCacheHasNoRoomFor) {
  const auto uncached = [](std::int64_t steps) {
    return count(problem(steps, 50, 100), kSplit, Term::uncached_byte);
  };
  EXPECT_EQ(uncached(500), 0) << "30 MB stay";
  EXPECT_DOUBLE_EQ(uncached(700), 42e6 * 12 / 25) << "some go";
  EXPECT_DOUBLE_EQ(uncached(1000), 60e6) << "each is gone when its turn comes";
}

TEST(Counts, OfAParallelScan) {
  Problem p = problem(1000, 50, 70);
  EXPECT_EQ(count(p, kSplit, Term::round), 8);
  EXPECT_EQ(count(p, kSplit, Term::round_step), 8 * 16);
  EXPECT_EQ(count(problem(130, 50, 70), kSplit, Term::round_step), 16 + 2) << "the last is short";
  EXPECT_EQ(count(problem(5, 50, 70), kSplit, Term::round_step), 5);
  EXPECT_EQ(count(p, kSplit, Term::round_load), 63 / 8.0 * 16 * 3 * 2);
  EXPECT_EQ(count(p, kSplit, Term::round_load_1), 63 / 8.0 * 16 * 3 * 1);
  EXPECT_EQ(count(p, kSplit, Term::byte), 50.0 * 1000 * 70 * 4 * 3);
  EXPECT_EQ(count(p, kSplit, Term::tile) + count(p, kSplit, Term::walk), 0) << "not of this way";
  EXPECT_EQ(count_over_blocks(p, Term::tile), 4);
  EXPECT_EQ(count_over_blocks(p, Term::tile_share), 6);
  EXPECT_EQ(count_over_blocks(p, Term::tile_wave), 6);
  EXPECT_EQ(count_over_blocks(p, Term::round), 0);
  p.gates = 3;  // an item of 16 bytes: half as many steps in registers, and of a tile
  EXPECT_EQ(count(p, kSplit, Term::round), 16);
  EXPECT_EQ(count_over_blocks(p, Term::tile), 8);
}

// A backward pass is the recurrence once more, and two products.
TEST(Counts, OfTraining) {
  Problem p = problem(1000, 50, 70);
  const double forward = count(p, kSplit, Term::byte);
  EXPECT_EQ(count(p, kSplit, Term::vjp_multiply_add), 0);
  p.training = true;
  EXPECT_EQ(count(p, kSplit, Term::byte), 3 * forward) << "6 tensors and 3";
  EXPECT_EQ(count(p, kSplit, Term::vjp_multiply_add), 2 * count(p, kSplit, Term::multiply_add));
  EXPECT_EQ(count(p, kDirect, Term::vjp_multiply_add), count(p, kSplit, Term::vjp_multiply_add));
}

// Its own x is one more tensor, and one more row block where x has another size.
TEST(Counts, OfAHighway) {
  Problem p = problem(1000, 50, 70, 3);
  const double bytes = count(p, kSplit, Term::byte),
               products = count(p, kSplit, Term::multiply_add);
  p.readout = p.highway = true;
  EXPECT_EQ(count(p, kSplit, Term::byte), bytes / 4 * 5);
  EXPECT_EQ(count(p, kSplit, Term::multiply_add), products);
  p.input_size = 140;
  EXPECT_EQ(count(p, kSplit, Term::multiply_add), products * 2 / 3 * 4);
}

TEST(Counts, OfAProduct) {
  const Problem p = problem(1000, 50, 70);
  EXPECT_EQ(count(p, kWalk, Term::multiply_add), 50.0 * 1000 * 70 * 140);
  EXPECT_EQ(count(p, kWalk, Term::product_128), 70 * 391 * 2 / 100.0);
  EXPECT_EQ(count(p, kWalk, Term::product_wave), 70 * 8);
  EXPECT_TRUE(shared(Term::multiply_add)) << "the ways that begin with it have one time for it";
  EXPECT_FALSE(shared(Term::walk));
}

TEST(Counts, OfTheDirectKernel) {
  Problem p = problem(1000, 50, 70);
  EXPECT_EQ(count(p, kDirect, Term::four), 250);
  EXPECT_EQ(count(p, kDirect, Term::four_read), 250 * 3) << "lines of 280 bytes, by the element";
  EXPECT_EQ(count(p, kDirect, Term::four_share), 250 * 2 * 9.0) << "18 blocks for each entry";
  EXPECT_EQ(count(p, kDirect, Term::multiply_add), 0);
  p.hidden_size = p.input_size = 72;
  EXPECT_EQ(count(p, kDirect, Term::four_read), 250) << "by 16 bytes";
}

// Nothing is projected; 16-bit rows go by pairs where there are enough of them.
TEST(Counts, OfABareScan) {
  Problem p = problem(64, 1, 64000, 0);
  EXPECT_EQ(count(p, kSplit, Term::byte), 64.0 * 64000 * 4 * 3);
  EXPECT_EQ(count(p, kWalk, Term::walk_load), 64 * 3 * 20.0);
  for (Term term : {Term::multiply_add, Term::product_byte, Term::walk_pair}) {
    EXPECT_EQ(count(p, kWalk, term), 0);
  }
  p.storage_bytes = 2;
  EXPECT_EQ(count(p, kWalk, Term::walk_load), 64 * 3 * 12.0);
  EXPECT_EQ(count(p, kWalk, Term::walk_pair), 64 * 12.0);
  p.hidden_size = 64001;
  EXPECT_EQ(count(p, kWalk, Term::walk_load), 64 * 3 * 24.0);
  p.hidden_size = 1000;
  EXPECT_EQ(count(p, kWalk, Term::walk_pair), 0);
  EXPECT_GT(count_over_blocks(p, Term::tile_pair), 0) << "there always";
}

TEST(Counts, OfADenseLayer) {
  Problem p = dense(100, 8, 256);
  EXPECT_EQ(count(p, kLoop, Term::fused_step), 100);
  EXPECT_EQ(count(p, kLoop, Term::loop_step) + count(p, kLoop, Term::launch), 0);
  EXPECT_EQ(count(p, kWhole, Term::launch), 1);
  EXPECT_EQ(count(p, kWhole, Term::vjp_launch) + count(p, kWhole, Term::fused_step), 0);
  EXPECT_GT(count(p, kWhole, Term::slice_product), 0);
  p.training = true;
  EXPECT_EQ(count(p, kWhole, Term::vjp_launch), 1);
  EXPECT_EQ(count(p, kWhole, Term::back_step), 0);
  EXPECT_EQ(count(p, kLoop, Term::back_step), 100);
  p.batch = 100;
  EXPECT_EQ(count(p, kLoop, Term::fused_step), 0);
  EXPECT_EQ(count(p, kLoop, Term::loop_step), 100);
  EXPECT_EQ(count(dense(100, 8, 8192), kWhole, Term::launch), 0) << "R does not fit";
  EXPECT_EQ(count(dense(1, 8, 256), kLoop, Term::multiply_add), 0) << "in the step's kernel";
}

// Where the backward pass does not fit on the chip, it goes step by step.
TEST(Counts, OfTwoWaysInOne) {
  Problem p = dense(100, 64, 800);
  p.storage_bytes = 4;
  p.split_products = p.training = true;
  DeviceLimits small = kDevice;
  small.shared_bytes = 64 << 10;
  ASSERT_GE(persistent_shape(p, small, false).tile, 0);
  ASSERT_LT(persistent_shape(p, small, true).tile, 0);
  const auto count = [&](Term term) {
    return counts(p, small, Strategy::persistent, false)[static_cast<std::size_t>(term)];
  };
  EXPECT_EQ(count(Term::back_step), 100);
  EXPECT_TRUE(shared(Term::back_step));
}

TEST(Counts, ClassesOfProblems) {
  const auto of = [](const Problem& p, bool across_blocks = false) {
    return class_of(p, kDevice, across_blocks);
  };
  Problem p = problem(10, 1, 64);
  EXPECT_EQ(of(p).kind, Kind::linear);
  EXPECT_EQ(of(p).alignment, 16);
  EXPECT_FALSE(of(p).log_form);
  p.hidden_size = 65;
  EXPECT_EQ(of(p).alignment, 4);
  p.storage_bytes = 2;
  EXPECT_EQ(of(p).alignment, 2);
  p.gates = 0;
  EXPECT_EQ(of(p).kind, Kind::scan);
  EXPECT_TRUE(of(p).log_form);
  EXPECT_EQ(of(dense(1, 1, 1)).kind, Kind::dense);
}

// Rows of a bare scan are words where pairs pay, which depends on the way, and are copied as such.
TEST(Counts, ClassesOfPairs) {
  Problem p = problem(10, 1, 1002, 0);
  p.storage_bytes = 2;
  EXPECT_EQ(class_of(p, kDevice, false).bytes, 2);
  EXPECT_EQ(class_of(p, kDevice, false).alignment, 2) << "as of rows that begin anywhere";
  EXPECT_EQ(class_of(p, kDevice, true).bytes, 4);
  EXPECT_EQ(class_of(p, kDevice, true).alignment, 2) << "apart from float32";
  p.hidden_size = 1001;
  EXPECT_EQ(class_of(p, kDevice, false).alignment, 2);
  EXPECT_EQ(class_of(p, kDevice, true).alignment, 2);
  p.hidden_size = 100000;
  EXPECT_EQ(class_of(p, kDevice, false).bytes, 4);
  EXPECT_EQ(class_of(p, kDevice, false).alignment, 32);
  p.hidden_size = 100008;
  EXPECT_EQ(class_of(p, kDevice, false).alignment, 16) << "every other row inside a sector";
  p.hidden_size = 100000;
  p.gates = 2;
  EXPECT_EQ(class_of(p, kDevice, false).alignment, 16) << "as of any layer";
}

TEST(Counts, EveryTermHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kTerms; ++i) names.insert(name(static_cast<Term>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kTerms));
}

Cost cost(ProblemClass of, Strategy strategy, float call, Term term = Term::call, float us = 0,
          bool across_blocks = false) {
  Cost out{of, strategy, across_blocks, {}, {}};
  out.us[static_cast<std::size_t>(term)] = us;
  out.us[static_cast<std::size_t>(Term::call)] = call;
  return out;
}

// Linear layers of float32: direct up to 10 steps, sequential to 100, inside a block to 1024, over
// blocks beyond; in training a block costs nothing. In 16 bits all is direct.
const Profile& profile() {
  static const Profile all = [] {
    const ProblemClass inference, half{Kind::linear, 2, 16, false, false};
    const ProblemClass training{Kind::linear, 4, 16, true, false};
    Profile out{"priced", "this file", 0, {}, nullptr};
    out.costs = std::make_shared<const std::vector<Cost>>(std::vector<Cost>{
        cost(inference, kDirect, 0, Term::walk, 1.0f), cost(inference, kWalk, 5, Term::walk, 0.5f),
        cost(inference, kSplit, 42.2f, Term::round, 12.8f),
        cost(inference, kSplit, 135, Term::tile, 2.5f, true),
        cost(training, kWalk, 5, Term::walk, 0.5f), cost(training, kSplit, 0),
        cost(half, kDirect, 1), cost(half, kWalk, 2), cost(half, kWhole, 0)});
    return out;
  }();
  return all;
}

TEST(Predicted, TheLeastTimeWins) {
  const auto picked = [](std::int64_t steps) {
    return plan(problem(steps, 1, 64), kDevice, profile());
  };
  EXPECT_EQ(picked(9).strategy, Strategy::direct);
  EXPECT_EQ(picked(11).strategy, Strategy::fused_sequential);
  EXPECT_EQ(picked(99).strategy, Strategy::fused_sequential);
  EXPECT_EQ(picked(101).strategy, Strategy::parallel_scan);
  EXPECT_FALSE(picked(1024).across_blocks);
  EXPECT_TRUE(picked(1025).across_blocks);
  const Plan long_one = picked(2000);
  EXPECT_EQ(long_one.reason, Reason::predicted);
  EXPECT_NEAR(long_one.expected_us, 155, 1e-3);
  EXPECT_EQ(long_one.runner_up, Strategy::fused_sequential) << "not the same strategy once more";
  EXPECT_NEAR(long_one.runner_up_us, 1005, 1e-3);
  const std::string said = explain(long_one);
  EXPECT_NE(said.find("time over blocks: predicted as the fastest, 155 us; runner-up "
                      "fused_sequential (1 ms) [profile priced, this file]"),
            std::string::npos)
      << said;
}

// The trend's products: 1 and what is from the middle of the sizes, then what the cell is.
TEST(Trends, OfSizesAndCells) {
  Problem p = problem(256, 16, 2048);
  p.gates = 2;
  p.highway = true;
  const Trends found = trends(p);
  const double steps = 0.5, hidden = 1;
  const std::vector<double> sizes = {1, 0, steps, hidden};
  std::vector<double> wanted;
  for (int i = 0; i < 4; ++i) {
    for (int j = i; j < 4; ++j) {
      for (int k = j; k < 4; ++k) wanted.push_back(sizes[i] * sizes[j] * sizes[k]);
    }
  }
  for (const double trait : {-1, 0, 1, 0}) {
    for (const double size : sizes) wanted.push_back(trait * size);
  }
  EXPECT_EQ(std::vector<double>(found.begin(), found.end()), wanted);
}

TEST(Trends, AreAFactorWithinBounds) {
  const ProblemClass of;
  Cost way = cost(of, kWalk, 5, Term::walk, 0.5f);
  const Problem p = problem(64, 16, 128);
  const Counts count = counts(p, kDevice, kWalk, false);
  const double plain = predicted(way, count, trends(p));
  way.trend[0] = 0.1f;
  EXPECT_NEAR(predicted(way, count, trends(p)) / plain, std::exp(0.1), 1e-6);
  way.trend[0] = -7;
  EXPECT_NEAR(predicted(way, count, trends(p)) / plain, std::exp(-0.4), 1e-6);
}

TEST(Trends, EndWhereMeasurementsEnd) {
  const std::int64_t far = std::int64_t{1} << 40;
  EXPECT_EQ(trends(problem(far, 1, 64)), trends(problem(2 * far, 1, 64)));
  EXPECT_EQ(trends(problem(8, 1, 1)), trends(problem(8, 1, 2)));
}

TEST(Predicted, ByTheNearestClass) {
  Problem p = problem(100, 1, 64);
  p.training = true;
  EXPECT_EQ(plan(p, kDevice, profile()).strategy, Strategy::parallel_scan);
  p.training = false;
  p.storage_bytes = 2;
  EXPECT_EQ(plan(p, kDevice, profile()).strategy, Strategy::direct) << "persistent is not for it";
  p.hidden_size = 63;  // of another alignment, which has no costs
  EXPECT_EQ(plan(p, kDevice, profile()).strategy, Strategy::direct);
  p.storage_bytes = 8;
  EXPECT_EQ(plan(p, kDevice, profile()).strategy, Strategy::fused_sequential) << "as of 4 bytes";
}

TEST(Predicted, ASingleStepKeepsNothing) {
  const ProblemClass of{Kind::dense, 2, 16, false, false};
  Profile only{"priced", "this file", 0, {}, nullptr};
  only.costs = std::make_shared<const std::vector<Cost>>(
      std::vector<Cost>{cost(of, kWhole, 1), cost(of, kLoop, 2)});
  EXPECT_EQ(plan(dense(2, 1, 256), kDevice, only).strategy, Strategy::persistent);
  EXPECT_EQ(plan(dense(1, 1, 256), kDevice, only).strategy, Strategy::step_loop);
  Problem forced = dense(1, 1, 256);
  forced.forced = Strategy::persistent;
  EXPECT_EQ(plan(forced, kDevice, only).strategy, Strategy::persistent);
}

// What people decode with: one step is one launch, whatever was measured of whole sequences.
TEST(Predicted, StepsOfTheBuiltInProfile) {
  for (const int gates : {3, 4}) {
    for (const std::int64_t batch : {1, 2, 8, 16}) {
      for (const std::int64_t hidden : {64, 256, 512, 1024, 2048}) {
        Problem p = dense(1, batch, hidden);
        p.gates = gates;
        const Plan got = plan(p, {Processor::cuda, 132, 232448}, *find_profile("sm_90"));
        EXPECT_EQ(got.strategy, Strategy::step_loop) << explain(got);
        p.recurrence = Recurrence::linear;
        p.batch = 1;
        EXPECT_EQ(plan(p, {Processor::cuda, 132, 232448}, *find_profile("sm_90")).strategy,
                  Strategy::direct);
      }
    }
  }
}

TEST(Predicted, WhereNothingIsKnownOfIt) {
  EXPECT_EQ(plan(problem(100, 1, 64, 0), kDevice, profile()).reason, Reason::no_rule);
  EXPECT_EQ(plan(dense(100, 1, 64), kDevice, profile()).reason, Reason::on_chip);
  EXPECT_EQ(plan(problem(100, 1, 64), {Processor::cpu, 4}, profile()).reason, Reason::no_rule);
  EXPECT_EQ(plan(problem(0, 1, 64), kDevice, profile()).reason, Reason::empty);
}

TEST(Predicted, ARuleComesFirst) {
  Profile both = profile();
  both.rules[0] = everywhere(Strategy::fused_sequential, Strategy::direct);
  both.count = 1;
  EXPECT_EQ(plan(problem(2000, 1, 64), kDevice, both).reason, Reason::measured);
}

TEST(Predicted, AForcedOneIsPredictedToo) {
  Problem p = problem(2000, 1, 64);
  p.forced = Strategy::fused_sequential;
  const Plan forced = plan(p, kDevice, profile());
  EXPECT_EQ(forced.reason, Reason::forced);
  EXPECT_NEAR(forced.expected_us, 1005, 1e-3);
  EXPECT_EQ(forced.runner_up, Strategy::parallel_scan);
  EXPECT_NEAR(forced.runner_up_us, 155, 1e-3);
  p.steps = 9;
  p.forced = Strategy::parallel_scan;
  EXPECT_FALSE(plan(p, kDevice, profile()).across_blocks) << "split as is faster";
  p.steps = 99999;
  EXPECT_TRUE(plan(p, kDevice, profile()).across_blocks);
}

}  // namespace
}  // namespace scanrnn::dispatch
