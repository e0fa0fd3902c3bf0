// SPDX-License-Identifier: Apache-2.0
// The planner: sizes and thresholds in, a Plan out, and the words for it.
#include "scanrnn/dispatch/plan.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

struct Choice {
  Strategy strategy, runner_up;
  Reason reason;
};

Choice choose_dense(const Problem& problem) {
  const bool empty = problem.batch == 0 || problem.steps == 0;
  return {Strategy::step_loop, Strategy::step_loop, empty ? Reason::empty : Reason::every_step};
}

Choice choose(const Problem& problem, const DeviceLimits& device, const Thresholds& limits) {
  if (problem.recurrence == Recurrence::dense) return choose_dense(problem);
  const std::int64_t rows = problem.batch * problem.hidden_size;
  const bool few_rows = rows <= limits.parallel_max_rows_per_unit * device.units;
  if (problem.batch == 0 || problem.steps == 0) {
    return {Strategy::fused_sequential, Strategy::direct, Reason::empty};
  }
  if (problem.batch * problem.steps <= limits.direct_max_tokens) {
    return {Strategy::direct, Strategy::fused_sequential, Reason::few_tokens};
  }
  if (!few_rows) {
    return {Strategy::fused_sequential, Strategy::parallel_scan, Reason::enough_rows};
  }
  if (problem.steps < limits.parallel_min_steps) {
    return {Strategy::fused_sequential, Strategy::parallel_scan, Reason::short_sequence};
  }
  return {Strategy::parallel_scan, Strategy::fused_sequential, Reason::few_rows};
}

// A multiple of the shortest chunk that gives every unit several of them.
std::int64_t chunk_steps(const Problem& problem, const DeviceLimits& device) {
  const std::int64_t chunks = device.units * kCpuChunksPerThread;
  const std::int64_t even = (problem.steps + chunks - 1) / chunks;
  const std::int64_t whole = (even + kCpuMinChunk - 1) / kCpuMinChunk * kCpuMinChunk;
  return std::clamp(whole, kCpuMinChunk, kCpuMaxChunk);
}

}  // namespace

const char* misfit(const Problem& problem, const DeviceLimits& device) {
  const bool dense = problem.recurrence == Recurrence::dense;
  switch (problem.forced) {
    case Strategy::automatic:
      return nullptr;
    case Strategy::direct:
    case Strategy::fused_sequential:
    case Strategy::parallel_scan:
      if (dense) return "each step of this cell needs the state before it in a matrix product";
      return nullptr;
    case Strategy::step_loop:
    case Strategy::persistent:
      if (!dense) return "this recurrence is linear, so its steps have no matrix product";
      break;
  }
  if (problem.forced == Strategy::persistent && device.processor == Processor::cpu) {
    return "it is one kernel that stays on a GPU; on the CPU step_loop keeps the weights in cache";
  }
  return nullptr;
}

Plan plan(const Problem& problem, const DeviceLimits& device, const Profile& profile) {
  Plan out;
  out.problem = problem;
  out.device = device;
  out.thresholds = problem.training ? profile.training : profile.inference;
  std::memcpy(out.profile, profile.name, sizeof out.profile);
  const Choice choice = choose(problem, device, out.thresholds);
  out.strategy = choice.strategy;
  out.runner_up = choice.runner_up;
  out.reason = choice.reason;
  if (problem.forced != Strategy::automatic) {
    out.runner_up = choice.strategy == problem.forced ? choice.runner_up : choice.strategy;
    out.strategy = problem.forced;
    out.reason = Reason::forced;
  }
  const bool parallel = out.strategy == Strategy::parallel_scan;
  if (device.processor == Processor::cuda) {
    const std::int64_t rows = problem.batch * problem.hidden_size;
    out.across_blocks = parallel && rows <= out.thresholds.blocks_max_rows_per_unit * device.units;
    return out;
  }
  out.tile_steps =
      std::max<std::int64_t>(1, out.strategy == Strategy::direct
                                    ? problem.steps
                                    : kCpuTileTokens / std::max<std::int64_t>(1, problem.batch));
  if (parallel) out.chunk_steps = chunk_steps(problem, device);
  return out;
}

const char* name(Strategy strategy) {
  switch (strategy) {
    case Strategy::automatic:
      return "auto";
    case Strategy::direct:
      return "direct";
    case Strategy::fused_sequential:
      return "fused_sequential";
    case Strategy::parallel_scan:
      return "parallel_scan";
    case Strategy::step_loop:
      return "step_loop";
    case Strategy::persistent:
      return "persistent";
  }
  return "?";
}

bool parse(const std::string& text, Strategy& strategy) {
  const auto is = [&](Strategy candidate) {
    if (text != name(candidate)) return false;
    strategy = candidate;
    return true;
  };
  return is(Strategy::automatic) || std::any_of(std::begin(kStrategies), std::end(kStrategies), is);
}

std::string explain(const Plan& plan) {
  const Problem& p = plan.problem;
  const std::int64_t rows = p.batch * p.hidden_size;
  std::ostringstream out;
  out << name(plan.strategy) << " for T=" << p.steps << " B=" << p.batch << " H=" << p.hidden_size
      << (p.training ? " (training)" : " (inference)");
  const bool tiled =
      plan.strategy == Strategy::fused_sequential || plan.strategy == Strategy::step_loop;
  if (tiled && plan.tile_steps > 0) {
    out << ", tiles of " << plan.tile_steps << " steps";
  }
  if (plan.chunk_steps > 0) out << ", chunks of " << plan.chunk_steps << " steps";
  if (plan.device.processor == Processor::cuda && plan.strategy == Strategy::parallel_scan) {
    out << (plan.across_blocks ? ", time over blocks" : ", time inside a block");
  }
  out << ": ";
  switch (plan.reason) {
    case Reason::forced:
      out << "forced by the caller";
      break;
    case Reason::empty:
      out << "there is nothing to compute";
      break;
    case Reason::few_tokens:
      out << "B*T = " << p.batch * p.steps << " <= " << plan.thresholds.direct_max_tokens
          << " tokens, where starting more than one pass costs more than it saves";
      break;
    case Reason::few_rows:
      out << "B*H = " << rows << " <= " << plan.thresholds.parallel_max_rows_per_unit
          << " rows on each of " << plan.device.units
          << " units and T >= " << plan.thresholds.parallel_min_steps
          << ", so time is split to keep them busy";
      break;
    case Reason::enough_rows:
      out << "B*H = " << rows << " > " << plan.thresholds.parallel_max_rows_per_unit
          << " rows on each of " << plan.device.units << " units, so rows alone keep them busy";
      break;
    case Reason::short_sequence:
      out << "rows are few, but T < " << plan.thresholds.parallel_min_steps
          << " is too short to split";
      break;
    case Reason::every_step:
      out << "each step needs the state before it in a matrix product";
      break;
  }
  out << " [profile " << plan.profile;
  if (plan.runner_up != plan.strategy) out << "; runner-up " << name(plan.runner_up);
  out << "]";
  return out.str();
}

}  // namespace scanrnn::dispatch
