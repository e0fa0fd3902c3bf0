// SPDX-License-Identifier: Apache-2.0
// What is left of a device for each of several layer calls at the same time: how many calls share
// it, in one launch or each for itself, and by which parts of time a chain of them goes on.
#include <algorithm>

#include "scanrnn/dispatch/persistent.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

// Clocks of all layer calls of a plan, in the passes that it has. Each part of a chain takes its
// launches, its product with the input and the loading of R: 14 to 20 us forward were measured.
double clocks(const Plan& plan) {
  const Problem& p = plan.problem;
  const auto pass = [&](const PersistentShape& shape, bool backward) {
    const double step = clocks(p, plan.device, shape, backward);
    const double calls = static_cast<double>(ceiling(p.at_once, plan.at_once));
    const std::int64_t later = p.chained ? plan.at_once - 1 : 0;  // parts, or steps
    if (plan.part_steps == 0) return calls * static_cast<double>(p.steps + later) * step;
    return calls * static_cast<double>(ceiling(p.steps, plan.part_steps) + later) *
           (static_cast<double>(plan.part_steps) * step + (backward ? 45000 : 30000));
  };
  return pass(plan.persistent, false) + (p.training ? pass(plan.persistent_vjp, true) : 0);
}

// Puts shapes for `count` calls at the same time into a plan, in one launch or each for itself; not
// where a share of the device has no room for one.
bool share_out(Plan& plan, int count, bool one_launch) {
  DeviceLimits share = plan.device;
  share.units /= count;
  PersistentShape shapes[2];
  for (const bool backward : {false, true}) {
    if (backward && plan.persistent_vjp.tile < 0) continue;
    PersistentShape& shape = shapes[backward];
    shape = best_shape(plan.problem, share, backward, one_launch ? count : 1);
    if (shape.tile < 0) return false;
    if (count > 1 && shape.lines < walked_lines(plan, shape, backward)) return false;
  }
  plan.persistent = shapes[0];
  if (plan.persistent_vjp.tile >= 0) plan.persistent_vjp = shapes[1];
  plan.at_once = count;
  return true;
}

// Lets a plan's chain go on by parts of so many steps, which no launch is longer than.
void go_by_parts(Plan& plan, std::int64_t part_steps) {
  const std::int64_t steps = std::max<std::int64_t>(1, plan.problem.steps);
  plan.part_steps = std::clamp<std::int64_t>(part_steps, 1, steps);
  for (PersistentShape* shape : {&plan.persistent, &plan.persistent_vjp}) {
    shape->steps = std::min(shape->steps, plan.part_steps);
  }
}

// Calls at the same time, of which there may be so many: one after the other in groups of equal
// size.
int equal_share(int calls, int most) {
  return static_cast<int>(ceiling(calls, ceiling(calls, std::min(calls, most))));
}

}  // namespace

bool run_at_once(Plan& plan, int most, std::int64_t part_steps) {
  const Problem& p = plan.problem;
  if (p.at_once < 2 || most < 1) return false;
  if (p.chained && p.layout != Batch::rectangular && most > 1) return false;
  const int count = equal_share(p.at_once, most);
  if (plan.device.processor == Processor::cuda) {
    if (plan.strategy != Strategy::persistent || !share_out(plan, count, false)) return false;
  }
  plan.at_once = count;
  plan.part_steps = 0;
  if (!p.chained || count == 1) return true;
  go_by_parts(plan, part_steps);
  return true;
}

bool run_as_one(Plan& plan, int most) {
  const Problem& p = plan.problem;
  const int count = p.linked ? equal_share(p.at_once, most) : 1;
  if (count < 2 || plan.strategy != Strategy::persistent || !share_out(plan, count, true)) {
    return false;
  }
  plan.part_steps = 0;
  return true;
}

void consider_at_once(Plan& plan) {
  const bool one_step = plan.problem.chained && plan.problem.steps < 2;  // has no parts
  if (one_step || plan.persistent.tile < 0) return;
  if (!is_persistent(plan, false) || !is_persistent(plan, plan.problem.training)) return;
  Plan best = plan;
  double least = 0.97 * clocks(plan);  // it takes more memory to work in
  const auto consider = [&](auto&& share) {
    Plan shared = plan;
    if (!share(shared) || clocks(shared) >= least) return;
    best = shared;
    least = clocks(shared);
  };
  constexpr std::int64_t kLongestPart = 512;
  for (int most = kMostAtOnce; most > 1; most /= 2) {
    consider([&](Plan& shared) { return run_as_one(shared, most); });
    Plan whole = plan;  // the cuts are the same for parts of any length
    if (!run_at_once(whole, most, kLongestPart)) continue;
    for (std::int64_t part = plan.problem.chained ? 16 : kLongestPart; part <= kLongestPart;
         part *= 2) {
      consider([&](Plan& shared) {
        shared = whole;
        if (shared.part_steps > 0) go_by_parts(shared, part);
        return true;
      });
    }
  }
  plan = best;
}

}  // namespace scanrnn::dispatch
