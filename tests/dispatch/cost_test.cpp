// SPDX-License-Identifier: Apache-2.0
// What a problem is counted to be, and the choice by predicted times, with costs that only this
// file knows.
#include "scanrnn/dispatch/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

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

double count(const Problem& p, Term term) {
  return counts(p, kDevice)[static_cast<std::size_t>(term)];
}

TEST(Counts, OfALinearLayer) {
  const Problem p = problem(1000, 50, 70);  // three columns for each of 50 entries
  EXPECT_EQ(count(p, Term::call), 1);
  EXPECT_EQ(count(p, Term::step), 1000);
  EXPECT_EQ(count(p, Term::column), 150);
  EXPECT_EQ(count(p, Term::byte), 50.0 * 1000 * 70 * 4 * 3);
  EXPECT_EQ(count(p, Term::walk), 1000 * 1.5);
  EXPECT_EQ(count(p, Term::walk_over_4), 0);
  EXPECT_EQ(count(p, Term::round), 8);
  EXPECT_EQ(count(p, Term::round_over_1), 8 * 0.5);
  EXPECT_EQ(count(p, Term::tile), 4);
  EXPECT_EQ(count(p, Term::tile_wave), 6);
  EXPECT_EQ(count(p, Term::multiply_add), 50.0 * 1000 * 70 * 140);
  EXPECT_EQ(count(p, Term::product_128), 70 * 391 * 2 / 100.0);
  EXPECT_EQ(count(p, Term::direct), 250);
  EXPECT_EQ(count(p, Term::direct_wave), 250.0 * 70 * 1);
  EXPECT_EQ(count(p, Term::loop_step) + count(p, Term::fused_step) + count(p, Term::launch), 0);
}

// Nothing is projected; 16-bit rows go by pairs where there are enough of them.
TEST(Counts, OfABareScan) {
  Problem p = problem(64, 1, 64000, 0);
  EXPECT_EQ(count(p, Term::byte), 64.0 * 64000 * 4 * 3);
  EXPECT_EQ(count(p, Term::walk), 64 * 20.0);
  for (Term term : {Term::multiply_add, Term::weight_byte, Term::direct, Term::step_depth}) {
    EXPECT_EQ(count(p, term), 0);
  }
  p.storage_bytes = 2;
  EXPECT_EQ(count(p, Term::walk), 64 * 10.0);
  p.hidden_size = 64001;
  EXPECT_EQ(count(p, Term::walk), 64 * 20.01);
}

TEST(Counts, OfADenseLayer) {
  Problem p = dense(100, 8, 256);
  EXPECT_EQ(count(p, Term::fused_step), 100);
  EXPECT_EQ(count(p, Term::loop_step), 0);
  EXPECT_EQ(count(p, Term::launch), 1);
  EXPECT_EQ(count(p, Term::vjp_launch), 0);
  EXPECT_GT(count(p, Term::slice_product), 0);
  p.training = true;
  EXPECT_EQ(count(p, Term::vjp_launch), 1);
  p.batch = 100;
  EXPECT_EQ(count(p, Term::fused_step), 0);
  EXPECT_EQ(count(p, Term::loop_step), 100);
  EXPECT_EQ(count(dense(100, 8, 8192), Term::launch), 0) << "R does not fit";
}

TEST(Counts, ClassesOfProblems) {
  Problem p = problem(10, 1, 64);
  EXPECT_EQ(class_of(p).kind, Kind::linear);
  EXPECT_EQ(class_of(p).gates, 0);
  EXPECT_EQ(class_of(p).alignment, 16);
  EXPECT_FALSE(class_of(p).log_form);
  p.hidden_size = 65;
  EXPECT_EQ(class_of(p).alignment, 4);
  p.storage_bytes = 2;
  EXPECT_EQ(class_of(p).alignment, 2);
  p.gates = 0;
  EXPECT_EQ(class_of(p).kind, Kind::scan);
  EXPECT_TRUE(class_of(p).log_form);
  EXPECT_EQ(class_of(dense(1, 1, 1)).kind, Kind::dense);
  EXPECT_EQ(class_of(dense(1, 1, 1)).gates, 4);
}

TEST(Counts, EveryTermHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kTerms; ++i) names.insert(name(static_cast<Term>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kTerms));
}

Cost cost(ProblemClass of, Strategy strategy, bool across_blocks, float call, float step) {
  Cost out{of, strategy, across_blocks, {}};
  out.us[static_cast<std::size_t>(Term::call)] = call;
  out.us[static_cast<std::size_t>(Term::step)] = step;
  return out;
}

// Linear layers of float32: direct up to 10 steps, sequential to 100, inside a block to 1000, over
// blocks beyond; in training a block costs nothing. Of 16 bits all is direct.
const Profile& profile() {
  static const Profile all = [] {
    const ProblemClass inference, half{Kind::linear, 0, 2, 16, false, false};
    const ProblemClass training{Kind::linear, 0, 4, 16, true, false};
    Profile out{"priced", "this file", 0, {}, nullptr};
    out.costs = std::make_shared<const std::vector<Cost>>(
        std::vector<Cost>{cost(inference, Strategy::direct, false, 0.0f, 1.0f),
                          cost(inference, Strategy::fused_sequential, false, 5.0f, 0.5f),
                          cost(inference, Strategy::parallel_scan, false, 45.0f, 0.1f),
                          cost(inference, Strategy::parallel_scan, true, 135.0f, 0.01f),
                          cost(training, Strategy::fused_sequential, false, 5.0f, 0.5f),
                          cost(training, Strategy::parallel_scan, false, 0.0f, 0.0f),
                          cost(half, Strategy::direct, false, 1.0f, 0.0f),
                          cost(half, Strategy::fused_sequential, false, 2.0f, 0.0f),
                          cost(half, Strategy::persistent, false, 0.0f, 0.0f)});
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
  EXPECT_FALSE(picked(999).across_blocks);
  EXPECT_TRUE(picked(1001).across_blocks);
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
  const ProblemClass of{Kind::dense, 4, 2, 16, false, false};
  Profile only{"priced", "this file", 0, {}, nullptr};
  only.costs = std::make_shared<const std::vector<Cost>>(
      std::vector<Cost>{cost(of, Strategy::persistent, false, 1.0f, 0.0f),
                        cost(of, Strategy::step_loop, false, 2.0f, 0.0f)});
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
