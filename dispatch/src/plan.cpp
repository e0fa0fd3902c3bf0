// SPDX-License-Identifier: Apache-2.0
// The planner: sizes and rules in, a Plan out.
#include "scanrnn/dispatch/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "scanrnn/dispatch/cost.h"
#include "scanrnn/dispatch/features.h"
#include "scanrnn/dispatch/persistent.h"
#include "scanrnn/dispatch/ragged.h"
#include "scanrnn/dispatch/scan_rows.h"
#include "scanrnn/dispatch/stack_step.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

struct Choice {
  Strategy strategy, runner_up;
  Reason reason;
};

bool is_empty(const Problem& problem) { return problem.batch == 0 || problem.steps == 0; }

Choice choose_dense(const Problem& problem, const Plan& plan) {
  const Strategy loop = Strategy::step_loop, whole = Strategy::persistent;
  const PersistentShape& shape = plan.persistent;
  if (is_empty(problem)) return {loop, loop, Reason::empty};
  const bool on_cpu = plan.device.processor == Processor::cpu;
  if (by_lines(problem) && (on_cpu || shape.tile < 0)) return {loop, loop, Reason::whole_lines};
  if (on_cpu) return {loop, loop, Reason::every_step};
  if (shape.tile < 0) return {loop, loop, Reason::not_on_chip};
  if (problem.steps < kPersistentMinSteps) return {loop, whole, Reason::few_steps};
  if (problem.batch > kMostLaunches * shape.lines) return {loop, whole, Reason::many_lines};
  return {whole, loop, Reason::on_chip};
}

bool meets(const Values& values, const Rule& rule) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] > rule.above[i] && values[i] <= rule.at_most[i])) return false;
  }
  return true;
}

bool runs(Strategy strategy, const Plan& plan, bool across_blocks) {
  const bool dense = plan.problem.recurrence == Recurrence::dense;
  if (strategy == Strategy::step_loop) return dense;
  if (strategy == Strategy::parallel_scan) {
    const bool splits = across_blocks || plan.device.processor == Processor::cpu ||
                        splits_inside_blocks(plan.problem);
    const bool walks =
        walks_alone(plan.problem, plan.device) || is_short_scan(plan.problem, plan.device);
    const bool open = plan.problem.forced == strategy || !walks;
    return plan.problem.recurrence == Recurrence::linear && splits && open;
  }
  if (strategy == Strategy::direct && plan.problem.normed) return false;
  if (strategy != Strategy::persistent) return !dense;
  return dense && plan.persistent.tile >= 0;
}

// How unlike two classes are; costs of another kind say nothing.
int distance(const ProblemClass& a, const ProblemClass& b) {
  const auto doublings = [](int x, int y) { return std::abs(std::ilogb(x) - std::ilogb(y)); };
  return (a.training != b.training) * 1000 + doublings(a.bytes, b.bytes) * 10 +
         (a.log_form != b.log_form) * 5 + (a.tf32 != b.tf32) * 5 +
         doublings(a.alignment, b.alignment);
}

// A way to run a problem, and what it is predicted to take.
struct Predicted {
  Strategy strategy = Strategy::automatic;
  bool across_blocks = false;
  double us = std::numeric_limits<double>::infinity();
};

// The fastest way, and the fastest of another strategy; `only`: of that strategy alone.
struct Predictions {
  Predicted best, second;

  Predictions(const Plan& plan, const Profile& profile, Strategy only = Strategy::automatic) {
    if (!profile.costs || plan.device.processor != Processor::cuda) return;
    for (const bool across_blocks : {false, true}) consider(plan, profile, only, across_blocks);
  }

 private:
  // The ways that split time so, by the costs of the nearest class to the problem's that has any.
  void consider(const Plan& plan, const Profile& profile, Strategy only, bool across_blocks) {
    const ProblemClass here = class_of(plan.problem, plan.device, across_blocks);
    const auto fits = [&](const Cost& cost) {
      return cost.of.kind == here.kind && cost.across_blocks == across_blocks &&
             (only == Strategy::automatic || cost.strategy == only);
    };
    const Trends trend = trends(plan.problem);
    int nearest = std::numeric_limits<int>::max();
    for (const Cost& cost : *profile.costs) {
      if (fits(cost)) nearest = std::min(nearest, distance(cost.of, here));
    }
    for (const Cost& cost : *profile.costs) {
      if (!fits(cost) || distance(cost.of, here) != nearest) continue;
      if (!runs(cost.strategy, plan, across_blocks)) continue;
      // A single step reads R once, whichever way, and is one launch in a loop.
      const bool single = plan.problem.steps == 1 && cost.strategy == Strategy::persistent;
      if (single && only == Strategy::automatic) continue;
      const Counts count = counts(plan.problem, plan.device, cost.strategy, across_blocks);
      add({cost.strategy, across_blocks, predicted(cost, count, trend)});
    }
  }

  void add(const Predicted& way) {
    if (way.us < best.us) {
      if (way.strategy != best.strategy) second = best;
      best = way;
    } else if (way.strategy != best.strategy && way.us < second.us) {
      second = way;
    }
  }
};

// The first rule that the problem meets and that names what can run, null when there is none.
const Rule* find_rule(const Plan& plan, const Profile& profile) {
  const Values values = values_of(plan.problem, plan.device);
  for (int i = 0; i < profile.count; ++i) {
    const Rule& rule = profile.rules[static_cast<std::size_t>(i)];
    if (meets(values, rule) && runs(rule.strategy, plan, rule.across_blocks)) return &rule;
  }
  return nullptr;
}

// Takes the way that is predicted to be the fastest; how it splits time is the answer.
bool predict(Plan& plan, const Profile& profile) {
  if (is_empty(plan.problem)) return false;
  const Predictions found(plan, profile);
  if (!std::isfinite(found.best.us)) return false;
  plan.strategy = plan.runner_up = found.best.strategy;
  plan.expected_us = found.best.us;
  plan.reason = Reason::predicted;
  if (std::isfinite(found.second.us)) {
    plan.runner_up = found.second.strategy;
    plan.runner_up_us = found.second.us;
  }
  return found.best.across_blocks;
}

Choice choose(const Plan& plan) {
  const Problem& problem = plan.problem;
  const bool dense = problem.recurrence == Recurrence::dense;
  const bool told = plan.reason != Reason::no_rule && !by_lines(problem);
  if (dense && (!told || is_empty(problem))) return choose_dense(problem, plan);
  if (is_empty(problem)) return {Strategy::fused_sequential, Strategy::direct, Reason::empty};
  const bool few = is_short_scan(problem, plan.device);
  return {plan.strategy, plan.runner_up, few ? Reason::few_steps : plan.reason};
}

// Whether threads take the tiles of a fused-sequential layer in turn.
bool takes_turns(const Problem& problem, const DeviceLimits& device) {
  const double rows = static_cast<double>(problem.batch) * static_cast<double>(problem.hidden_size);
  const std::int64_t cost = problem.input_size + kCpuWalkCost;
  const double work = rows * static_cast<double>(problem.steps) *
                      static_cast<double>(problem.gates) * static_cast<double>(cost);
  return problem.layout == Batch::rectangular && device.units > 1 && work >= 2.0 * kCpuThreadWork &&
         rows <= static_cast<double>(kCpuTurnRows * device.units) &&
         4 * kCpuWalkCost * device.units <= cost &&
         problem.batch * problem.steps >= kCpuTurns * kCpuTurnTokens * device.units;
}

// Whether a step of a layer call is too little work for threads to share.
bool each_for_itself(const Problem& problem) {
  const double hidden = static_cast<double>(problem.hidden_size);
  const double lines = static_cast<double>(problem.batch * problem.gates);
  return problem.steps > 1 && lines * hidden * hidden <= kCpuOwnWork;
}

// The longest chunk, up to a limit, of which each part of a parallel scan has the same number; of a
// short sequence the shortest.
std::int64_t chunk_steps(const Problem& problem, const DeviceLimits& device) {
  const std::int64_t parts = device.units + 1;
  const std::int64_t chunks = parts * ceiling(problem.steps, parts * kCpuMaxChunk);
  return std::max(kCpuMinChunk, ceiling(problem.steps, std::max<std::int64_t>(1, chunks)));
}

// The bytes of a row of R that a forward persistent kernel can sum over.
std::int64_t longest_row() {
  int chunks = 0;
  for (const PersistentTile& tile : kPersistentForward) chunks = std::max(chunks, tile.chunks);
  return std::int64_t{kPersistentWarps} * chunks * 64;
}

}  // namespace

std::string misfit(const Problem& problem, const DeviceLimits& device) {
  const bool dense = problem.recurrence == Recurrence::dense;
  switch (problem.forced) {
    case Strategy::automatic:
      return "";
    case Strategy::direct:
    case Strategy::fused_sequential:
    case Strategy::parallel_scan:
      if (problem.normed && !dense && problem.forced == Strategy::direct) {
        return "it projects and walks at once, and layer_norm stands between the two";
      }
      if (dense) return "each step of this cell needs the state before it in a matrix product";
      if (problem.recurrence == Recurrence::diagonal && problem.forced == Strategy::parallel_scan) {
        return "each step of this cell reads the state before it, so its steps do not compose";
      }
      return "";
    case Strategy::step_loop:
    case Strategy::persistent:
      if (!dense) {
        const bool linear = problem.recurrence == Recurrence::linear;
        return std::string("this recurrence is ") + (linear ? "linear" : "diagonal") +
               ", so its steps have no matrix product";
      }
      break;
  }
  if (problem.forced == Strategy::step_loop) return "";
  if (device.processor == Processor::cpu) {
    return "it is one kernel that stays on a GPU; on the CPU step_loop keeps the weights in cache";
  }
  if (by_lines(problem) && problem.heads > 1) {
    return std::string(problem.normed ? "layer_norm" : "reset_after=False") +
           " has steps of whole lines, and it walks each head by itself";
  }
  if (problem.storage_bytes > 4) {
    return "its products are sums in float32, by tensor cores; float64 is too wide for them";
  }
  const bool fits = persistent_shape(problem, device, false).tile >= 0 &&
                    (!problem.training || persistent_shape(problem, device, true).tile >= 0);
  if (fits) return "";
  const std::int64_t units = problem.hidden_size / problem.heads;
  const std::int64_t bytes = problem.gates * units * units * problem.storage_bytes;
  return std::string("the recurrent weights") + (problem.heads > 1 ? " of a head" : "") + " take " +
         std::to_string(bytes) + " bytes in rows of " +
         std::to_string(units * problem.storage_bytes) +
         ", and the registers and shared memory of " + std::to_string(device.units) +
         " multiprocessors have room for at most " +
         std::to_string(device.units * (kPersistentWeightBytes + device.shared_bytes)) +
         ", in whole tiles and rows of at most " + std::to_string(longest_row()) + " bytes";
}

namespace {

// The rectangular problem whose times are those of a packed one: a scan walks all tokens as one
// sequence, a dense cell as many sequences at once as there are, of the mean length where the
// longest is not known.
Problem rectangle(Problem problem) {
  if (problem.layout != Batch::packed || problem.batch == 0) return problem;
  if (problem.recurrence == Recurrence::linear) {
    problem.batch = 1;
  } else {
    const std::int64_t mean = ceiling(problem.steps, problem.batch);
    problem.steps = problem.longest > 0 ? problem.longest : mean;
  }
  return problem;
}

// The host launches the steps of a loop, and of packed tokens does not know when they end: one
// kernel that does is taken wherever there is one.
void prefer_whole(Plan& out) {
  const Problem& p = out.problem;
  const bool loop = out.strategy == Strategy::step_loop && p.forced == Strategy::automatic;
  if (p.layout != Batch::packed || !loop || out.device.processor == Processor::cpu) return;
  if (out.persistent.tile < 0 || is_empty(p)) return;
  out.runner_up = out.strategy;
  out.runner_up_us = out.expected_us;
  out.strategy = Strategy::persistent;
  out.reason = Reason::on_chip;
  out.expected_us = 0;
  out.fused_steps = false;
}

Plan rectangular_plan(const Problem& problem, const DeviceLimits& device, const Profile& profile) {
  Plan out;
  out.problem = problem;
  out.device = device;
  out.log_domain = problem.log_domain;
  std::memcpy(out.profile, profile.name, sizeof out.profile);
  std::memcpy(out.origin, profile.origin, sizeof out.origin);
  const bool dense = problem.recurrence == Recurrence::dense;
  if (dense && device.processor == Processor::cuda) {
    out.persistent = persistent_shape(problem, device, false);
    if (problem.training) out.persistent_vjp = persistent_shape(problem, device, true);
  }
  if (const Rule* rule = find_rule(out, profile)) {
    out.rule = *rule;
    out.strategy = rule->strategy;
    out.runner_up = rule->runner_up;
    out.reason = Reason::measured;
  }
  bool across_blocks = out.rule.across_blocks;
  if (out.reason == Reason::no_rule) across_blocks = predict(out, profile);
  const bool priced = out.reason == Reason::predicted;
  const Choice choice = choose(out);
  out.strategy = choice.strategy;
  out.runner_up = choice.runner_up;
  out.reason = choice.reason;
  if (!runs(out.runner_up, out, true) && problem.recurrence == Recurrence::diagonal) {
    const bool only = out.strategy == Strategy::direct || problem.normed;
    out.runner_up = only ? Strategy::fused_sequential : Strategy::direct;
    out.runner_up_us = 0;
  }
  if (problem.forced != Strategy::automatic) {
    if (problem.forced != choice.strategy) {
      out.runner_up = choice.strategy;
      out.runner_up_us = out.expected_us;
      const Predicted forced = Predictions(out, profile, problem.forced).best;
      out.expected_us = std::isfinite(forced.us) ? forced.us : 0;
      if (priced) across_blocks = forced.across_blocks;
    }
    out.strategy = problem.forced;
    out.reason = Reason::forced;
  }
  if (by_lines(problem)) out.expected_us = out.runner_up_us = 0;  // costs are of other steps
  if (device.processor == Processor::cpu) consider_rows(out);
  const bool parallel = out.strategy == Strategy::parallel_scan;
  if (device.processor == Processor::cuda) {
    out.across_blocks = parallel && (across_blocks || !splits_inside_blocks(problem));
    out.log_domain = problem.log_domain && !problem.draws;  // with draws there is one kernel
    out.fused_steps =
        out.strategy == Strategy::step_loop && !by_lines(problem) && fuses_steps(problem, device);
    consider_lanes(out);
    if (problem.at_once > 1) consider_at_once(out);
    consider_step_as_one(out);
    return out;
  }
  const std::int64_t lines = std::max<std::int64_t>(1, problem.batch);
  const std::int64_t width = std::max<std::int64_t>(1, problem.gates * problem.hidden_size);
  const std::int64_t tokens = std::max(kCpuTileTokens, kCpuTileValues / width);
  out.tile_steps = std::max<std::int64_t>(1, tokens / lines);
  out.in_turn = out.strategy == Strategy::fused_sequential && takes_turns(problem, device);
  if (out.in_turn) {
    const std::int64_t tiles = ceiling(problem.steps * lines, kCpuTurnTokens);
    out.tile_steps = ceiling(problem.steps, ceiling(tiles, device.units) * device.units);
  }
  if (out.strategy == Strategy::direct) out.tile_steps = std::max<std::int64_t>(1, problem.steps);
  if (out.strategy == Strategy::step_loop) {
    out.tile_steps = lines >= kCpuStepLines ? 1 : kCpuStepTileTokens / lines;
  }
  if (parallel) out.chunk_steps = chunk_steps(problem, device);
  if (device.units > 1 && problem.at_once > 1 && each_for_itself(problem)) {
    run_at_once(out, kMostAtOnce, std::max(kCpuMinPart, ceiling(problem.steps, kCpuParts)));
  }
  return out;
}

}  // namespace

Plan plan(const Problem& problem, const DeviceLimits& device, const Profile& profile) {
  Plan out = rectangular_plan(rectangle(problem), device, profile);
  out.problem = problem;
  prefer_whole(out);
  recut(out);
  return out;
}

}  // namespace scanrnn::dispatch
