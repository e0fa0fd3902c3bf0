// SPDX-License-Identifier: Apache-2.0
// The profiles that are built in, and the names that go in and out of files.
#include "scanrnn/dispatch/profile.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

Problem problem(std::int64_t steps, std::int64_t hidden) {
  Problem out;
  out.batch = 1;
  out.steps = steps;
  out.input_size = out.hidden_size = hidden;
  out.gates = 2;
  return out;
}

TEST(Names, RoundTrip) {
  std::set<std::string> names;
  for (Strategy strategy : {Strategy::automatic, Strategy::direct, Strategy::fused_sequential,
                            Strategy::parallel_scan, Strategy::step_loop, Strategy::persistent}) {
    Strategy back = strategy == Strategy::direct ? Strategy::automatic : Strategy::direct;
    EXPECT_TRUE(parse(name(strategy), back));
    EXPECT_EQ(back, strategy);
    names.insert(name(strategy));
  }
  EXPECT_EQ(names, (std::set<std::string>{"auto", "direct", "fused_sequential", "parallel_scan",
                                          "step_loop", "persistent"}));
  EXPECT_EQ(names.size(), 1 + std::size(kStrategies));
}

TEST(Names, UnknownLeavesTheStrategyAlone) {
  for (const char* text : {"", "Direct", "direct ", "automatic", "step loop"}) {
    Strategy strategy = Strategy::parallel_scan;
    EXPECT_FALSE(parse(text, strategy)) << text;
    EXPECT_EQ(strategy, Strategy::parallel_scan) << text;
  }
}

TEST(Profile, GenericOnesAreUsable) {
  for (const Profile* generic : {&generic_cpu_profile(), &generic_cuda_profile()}) {
    EXPECT_STREQ(generic->origin, "built in");
    ASSERT_TRUE(generic->count >= 1 || generic->costs);
    for (int i = 0; i < generic->count; ++i) {
      const Rule& r = generic->rules[static_cast<std::size_t>(i)];
      EXPECT_NE(r.strategy, Strategy::automatic);
      EXPECT_NE(r.strategy, r.runner_up);
      EXPECT_GE(r.margin, 0);
    }
  }
  // Every problem meets a rule or is predicted, but for short scans, and on CUDA one step of one
  // sequence is direct.
  for (const auto& [profile, processor] : {std::pair(&generic_cpu_profile(), Processor::cpu),
                                           std::pair(find_profile("AVX2"), Processor::cpu),
                                           std::pair(&generic_cuda_profile(), Processor::cuda),
                                           std::pair(find_profile("sm_90"), Processor::cuda)}) {
    const std::int64_t units = processor == Processor::cpu ? 4 : 132;
    Problem wanted = problem(1, 64);
    if (processor == Processor::cuda) {  // where it is one launch instead of two
      EXPECT_EQ(plan(wanted, {processor, units}, *profile).strategy, Strategy::direct);
    }
    for (std::int64_t steps = 1; steps < 1 << 30; steps *= 4) {
      for (std::int64_t rows : {1, 70, 5000, 1 << 20}) {
        for (int bits = 0; bits < 16; ++bits) {
          wanted = problem(steps, rows);
          if (bits & 8) wanted.gates = 0;
          wanted.training = bits & 1;
          wanted.log_domain = bits & 2;
          wanted.storage_bytes = bits & 4 ? 2 : 4;
          const Plan got = plan(wanted, {processor, units}, *profile);
          const bool scan = processor == Processor::cuda && wanted.gates == 0;
          const bool few = scan && steps <= kCudaShortSteps;
          const bool told = got.reason == Reason::measured || got.reason == Reason::predicted;
          EXPECT_TRUE(few ? got.reason == Reason::few_steps : told) << explain(got);
        }
      }
    }
  }
  EXPECT_STREQ(generic_cpu_profile().name, "cpu-generic");
}

TEST(Profile, IsFoundByName) {
  const Profile* found = find_profile("cpu-generic");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found, &generic_cpu_profile());
  EXPECT_EQ(find_profile("sm_1"), nullptr);
  EXPECT_EQ(find_profile(""), nullptr);
}

}  // namespace
}  // namespace scanrnn::dispatch
