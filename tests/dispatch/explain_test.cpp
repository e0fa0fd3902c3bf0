// SPDX-License-Identifier: Apache-2.0
// What a plan says of itself.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "dispatch/branches.h"

namespace scanrnn::dispatch {
namespace {

// A reader learns what runs, by whose measurement, and why: no two reasons read alike.
TEST(Explain, NamesStrategyProfileAndReason) {
  std::set<Reason> reasons;
  std::set<std::string> words;
  for (const Branch& branch : kBranches) {
    for (Strategy forced : {Strategy::automatic, Strategy::direct}) {
      Problem wanted = problem(branch.steps, branch.batch, branch.hidden);
      wanted.training = branch.training;
      wanted.gates = branch.gates;
      wanted.forced = forced;
      const Plan got = on(wanted);
      const std::string text = explain(got);
      EXPECT_EQ(text.find('\n'), std::string::npos) << "one line";
      EXPECT_EQ(text.rfind(name(got.strategy), 0), 0u) << text;
      EXPECT_NE(text.find(kProfile.name), std::string::npos) << text;
      EXPECT_NE(text.find(std::string("runner-up ") + name(got.runner_up)), std::string::npos)
          << text;
      EXPECT_NE(text.find(branch.training ? "training" : "inference"), std::string::npos) << text;
      EXPECT_NE(text.find("T=" + std::to_string(branch.steps)), std::string::npos) << text;
      const char* word = got.reason == Reason::forced     ? "forced"
                         : got.reason == Reason::empty    ? "nothing"
                         : got.reason == Reason::measured ? "measured as the fastest"
                                                          : "no rule";
      EXPECT_NE(text.find(kProfile.origin), std::string::npos) << text;
      EXPECT_NE(text.find(word), std::string::npos) << text;
      reasons.insert(got.reason);
      words.insert(word);
    }
  }
  EXPECT_EQ(reasons.size(), 4u) << "every reason has been read";
  EXPECT_EQ(words.size(), 4u);
}

// The bounds that a problem met, with its own values, and how far the runner-up was behind.
TEST(Explain, SaysWhichBoundsDecided) {
  Problem wanted = problem(100, 8, 5);
  EXPECT_EQ(explain(on(wanted)),
            "parallel_scan for T=100 B=8 H=5 (inference), chunks of 20 steps: measured as the "
            "fastest where T = 100 > 99 and B*H per unit = 10 <= 10 and gates = 2 <= 1000 and no "
            "training; runner-up direct (1.25 x the time) [profile test-profile, this file]");
  wanted.training = true;
  wanted.steps = 200;
  wanted.batch = 2;
  EXPECT_NE(explain(on(wanted)).find("B*H per unit = 2.5 <= 5 and gates = 2 <= 1000 and training;"),
            std::string::npos)
      << explain(on(wanted));
  const Profile banded =
      profile_of({rule(Strategy::direct, false, {{Feature::hidden, 4}}, {{Feature::hidden, 6}})});
  EXPECT_NE(explain(plan(wanted, {Processor::cpu, 4}, banded)).find("where 4 < H = 5 <= 6"),
            std::string::npos);
  Problem bare = wanted;
  bare.gates = 0;
  const Profile scans = profile_of({rule(Strategy::parallel_scan, false, {}, {{Feature::gates, 0}}),
                                    rule(Strategy::direct, false, {}, {})});
  EXPECT_NE(explain(plan(bare, {Processor::cpu, 4}, scans)).find("where nothing is projected"),
            std::string::npos);
  EXPECT_EQ(plan(wanted, {Processor::cpu, 4}, scans).strategy, Strategy::direct);
  const Profile plain = profile_of({rule(Strategy::direct, false, {}, {})});
  EXPECT_NE(explain(plan(wanted, {Processor::cpu, 4}, plain)).find("fastest everywhere"),
            std::string::npos);
}

}  // namespace
}  // namespace scanrnn::dispatch
