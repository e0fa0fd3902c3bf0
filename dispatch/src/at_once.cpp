// SPDX-License-Identifier: Apache-2.0
// What is left of a device for each of several layer calls at the same time: how many calls share
// it, in one launch or each for itself, and by which parts of time a chain of them goes on.
#include <algorithm>

#include "scanrnn/dispatch/persistent.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

// What a pass of a plan has, to be changed.
struct Pass {
  PersistentShape& shape;
  int& at_once;
  std::int64_t& part_steps;
};
Pass pass_of(Plan& plan, bool backward) {
  if (backward) return {plan.persistent_vjp, plan.at_once_vjp, plan.part_steps_vjp};
  return {plan.persistent, plan.at_once, plan.part_steps};
}

// Clocks of all layer calls of a pass. Each part of a chain takes its launches, its product with
// the input, the clearing of the exchange and the loading of R. Backward a step takes what clocks()
// of one cell does not know: its share of the products for the weights, and in one launch of
// several layers a longer way through the exchange. Numbers by bench/stack_cuda.cu on an H100.
double clocks(const Plan& plan, bool backward) {
  const Problem& p = plan.problem;
  const PersistentShape& shape = backward ? plan.persistent_vjp : plan.persistent;
  const auto [at_once, part_steps] = together(plan, backward);
  const auto states = static_cast<double>(p.batch * p.hidden_size);
  double step = clocks(p, plan.device, shape, backward);
  const bool as_one = part_steps == 0 && p.chained && at_once > 1;
  if (backward) step += as_one ? 1700 + states / 6 : 900;
  const double calls = static_cast<double>(ceiling(p.at_once, at_once));
  const std::int64_t later = p.chained ? at_once - 1 : 0;  // parts, or steps
  if (part_steps == 0) return calls * static_cast<double>(p.steps + later) * step;
  return calls * static_cast<double>(ceiling(p.steps, part_steps) + later) *
         (static_cast<double>(part_steps) * step + 28000 + 0.7 * states * at_once);
}

// Puts a pass's cut for `count` calls at the same time into a plan, in one launch or each for
// itself; not where a share of the device has no room for one.
bool share_out(Plan& plan, bool backward, int count, bool one_launch) {
  DeviceLimits share = plan.device;
  share.units /= count;
  const auto shape = best_shape(plan.problem, share, backward, one_launch ? count : 1);
  if (shape.tile < 0) return false;
  if (count > 1 && shape.lines < walked_lines(plan, shape, backward)) return false;
  const Pass pass = pass_of(plan, backward);
  pass.shape = shape;
  pass.at_once = count;
  pass.part_steps = 0;
  return true;
}

// Lets a pass's chain go on by parts of so many steps, which no launch is longer than.
void go_by_parts(Plan& plan, bool backward, std::int64_t part_steps) {
  const std::int64_t steps = std::max<std::int64_t>(1, plan.problem.steps);
  const Pass pass = pass_of(plan, backward);
  pass.part_steps = std::clamp<std::int64_t>(part_steps, 1, steps);
  pass.shape.steps = std::min(pass.shape.steps, pass.part_steps);
}

// Calls at the same time, of which there may be so many: one after the other in equal groups.
int equal_share(int calls, int most) { return static_cast<int>(in_equal_groups(calls, most)); }

// What is said of run_at_once() and run_as_one(), for one pass.
bool run_at_once(Plan& plan, bool backward, int most, std::int64_t part_steps) {
  const Problem& p = plan.problem;
  if (p.at_once < 2 || most < 1) return false;
  const bool parts = p.layout == Batch::rectangular && p.steps > 0;
  if (p.chained && most > 1 && !parts) return false;
  const int count = equal_share(p.at_once, most);
  if (plan.device.processor == Processor::cpu) {
    const Pass pass = pass_of(plan, backward);
    pass.at_once = count;
    pass.part_steps = 0;
  } else if (plan.strategy != Strategy::persistent || !share_out(plan, backward, count, false)) {
    return false;
  }
  if (p.chained && count > 1) go_by_parts(plan, backward, part_steps);
  return true;
}
bool run_as_one(Plan& plan, bool backward, int most) {
  const Problem& p = plan.problem;
  const int count = p.linked ? equal_share(p.at_once, most) : 1;
  return count > 1 && plan.strategy == Strategy::persistent &&
         share_out(plan, backward, count, true);
}

// The same for all passes that a plan has, or for none.
template <class RunPass>
bool run_passes(Plan& plan, const RunPass& run) {
  Plan out = plan;
  const bool back = plan.device.processor == Processor::cpu || plan.persistent_vjp.tile >= 0;
  if (!run(out, false) || (back && !run(out, true))) return false;
  plan = out;
  return true;
}

// The way of a pass that is predicted to be fastest.
void consider_at_once(Plan& plan, bool backward) {
  Plan best = plan;
  double least = 0.97 * clocks(plan, backward);  // it takes more memory to work in
  const auto consider = [&](auto&& share) {
    Plan shared = plan;
    if (!share(shared) || clocks(shared, backward) >= least) return;
    best = shared;
    least = clocks(shared, backward);
  };
  constexpr std::int64_t kLongestPart = 512;
  for (int most = kMostAtOnce; most > 1; most /= 2) {
    consider([&](Plan& shared) { return run_as_one(shared, backward, most); });
    Plan whole = plan;  // the cut is the same for parts of any length
    if (!run_at_once(whole, backward, most, kLongestPart)) continue;
    for (std::int64_t part = plan.problem.chained ? 16 : kLongestPart; part <= kLongestPart;
         part *= 2) {
      consider([&](Plan& shared) {
        shared = whole;
        if (plan.problem.chained) go_by_parts(shared, backward, part);
        return true;
      });
    }
  }
  plan = best;
}

}  // namespace

bool run_at_once(Plan& plan, int most, std::int64_t part_steps) {
  return run_passes(plan, [&](Plan& shared, bool backward) {
    return run_at_once(shared, backward, most, part_steps);
  });
}

bool run_as_one(Plan& plan, int most) {
  return run_passes(
      plan, [&](Plan& shared, bool backward) { return run_as_one(shared, backward, most); });
}

void consider_at_once(Plan& plan) {
  const bool one_step = plan.problem.chained && plan.problem.steps < 2;  // has no parts
  if (one_step || plan.persistent.tile < 0) return;
  if (!is_persistent(plan, false) || !is_persistent(plan, plan.problem.training)) return;
  consider_at_once(plan, false);
  if (plan.problem.training) consider_at_once(plan, true);
}

}  // namespace scanrnn::dispatch
