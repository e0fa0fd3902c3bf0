// SPDX-License-Identifier: Apache-2.0
// A profile whose thresholds only tests know, and problems on either side of each of them.
#pragma once

#include <initializer_list>
#include <utility>

#include "scanrnn/dispatch/plan.h"

namespace scanrnn::dispatch {

using Bound = std::pair<Feature, double>;

inline Rule rule(Strategy strategy, bool across_blocks, std::initializer_list<Bound> above,
                 std::initializer_list<Bound> at_most) {
  Rule out = everywhere(
      strategy, strategy == Strategy::direct ? Strategy::fused_sequential : Strategy::direct,
      across_blocks);
  out.margin = 1.25;
  for (const auto& [feature, bound] : above) out.above[index_of(feature)] = bound;
  for (const auto& [feature, bound] : at_most) out.at_most[index_of(feature)] = bound;
  return out;
}
inline Profile profile_of(std::initializer_list<Rule> rules) {
  Profile out{"test-profile", "this file", 0, {}, nullptr};
  for (const Rule& one : rules) out.rules[static_cast<std::size_t>(out.count++)] = one;
  return out;
}

// Inference and training differ, so that taking the wrong ones shows. The first rule that is met
// decides, and more than 1000 gates meet none.
inline const Profile kProfile = profile_of({
    rule(Strategy::direct, true, {}, {{Feature::tokens, 8}, {Feature::training, 0}}),
    rule(Strategy::direct, true, {}, {{Feature::tokens, 4}, {Feature::gates, 1000}}),
    rule(Strategy::parallel_scan, true, {{Feature::steps, 99}},
         {{Feature::rows_per_unit, 6}, {Feature::training, 0}, {Feature::gates, 1000}}),
    rule(Strategy::parallel_scan, false, {{Feature::steps, 99}},
         {{Feature::rows_per_unit, 10}, {Feature::training, 0}, {Feature::gates, 1000}}),
    rule(Strategy::parallel_scan, true, {{Feature::steps, 199}, {Feature::training, 0}},
         {{Feature::rows_per_unit, 2}, {Feature::gates, 1000}}),
    rule(Strategy::parallel_scan, false, {{Feature::steps, 199}, {Feature::training, 0}},
         {{Feature::rows_per_unit, 5}, {Feature::gates, 1000}}),
    rule(Strategy::fused_sequential, true, {},
         {{Feature::rows_per_unit, 6}, {Feature::gates, 1000}}),
    rule(Strategy::fused_sequential, false, {}, {{Feature::gates, 1000}}),
});

inline Problem problem(std::int64_t steps, std::int64_t batch, std::int64_t hidden) {
  Problem out;
  out.steps = steps;
  out.batch = batch;
  out.input_size = out.hidden_size = hidden;
  out.gates = 2;
  return out;
}
inline Plan on(const Problem& problem, std::int64_t units = 4) {
  return plan(problem, {Processor::cpu, units}, kProfile);
}

struct Branch {
  const char* what;
  std::int64_t steps, batch, hidden;
  bool training;
  Strategy strategy;
  Reason reason = Reason::measured;
  int gates = 2;
};
// With 4 units: 40 rows are few in inference and 20 in training.
inline constexpr Branch kBranches[] = {
    {"no steps", 0, 3, 4, false, Strategy::fused_sequential, Reason::empty},
    {"no batch", 1000, 0, 4, false, Strategy::fused_sequential, Reason::empty},
    {"one token", 1, 1, 4, false, Strategy::direct},
    {"one step of a large batch is no reason for direct", 1, 9, 4, false,
     Strategy::fused_sequential},
    {"tokens at the limit", 4, 2, 1000, false, Strategy::direct},
    {"tokens above it", 9, 1, 1, false, Strategy::fused_sequential},
    {"tokens at the limit of training", 4, 1, 1000, true, Strategy::direct},
    {"tokens above that", 5, 1, 1, true, Strategy::fused_sequential},
    {"rows and steps at the limit", 100, 1, 40, false, Strategy::parallel_scan},
    {"a row too many", 100, 1, 41, false, Strategy::fused_sequential},
    {"rows are batch times hidden", 100, 8, 5, false, Strategy::parallel_scan},
    {"rows are batch times hidden, too many", 100, 7, 6, false, Strategy::fused_sequential},
    {"a step too few", 99, 1, 40, false, Strategy::fused_sequential},
    {"a step too few, and rows too many", 99, 1, 41, false, Strategy::fused_sequential},
    {"training at its limits", 200, 1, 20, true, Strategy::parallel_scan},
    {"training, a row too many", 200, 1, 21, true, Strategy::fused_sequential},
    {"training, a step too few", 199, 1, 20, true, Strategy::fused_sequential},
    {"no rule", 100, 1, 40, true, Strategy::fused_sequential, Reason::no_rule, 1001},
};

}  // namespace scanrnn::dispatch
