// SPDX-License-Identifier: Apache-2.0
// The planner: sizes and thresholds in, a Plan out, and the words for it.
#include "scanrnn/dispatch/plan.h"

#include <algorithm>
#include <cstring>

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

struct Choice {
  Strategy strategy, runner_up;
  Reason reason;
};

Choice choose(const Problem& problem, const DeviceLimits& device, const Thresholds& limits) {
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
  }
  return "?";
}

bool parse(const std::string& text, Strategy& strategy) {
  for (Strategy candidate : {Strategy::automatic, Strategy::direct, Strategy::fused_sequential,
                             Strategy::parallel_scan}) {
    if (text == name(candidate)) {
      strategy = candidate;
      return true;
    }
  }
  return false;
}

// Strings alone: where a process has more than one C++ runtime, streams are what breaks first.
std::string explain(const Plan& plan) {
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  const Problem& p = plan.problem;
  const Thresholds& limits = plan.thresholds;
  const std::string rows = "B*H = " + text(p.batch * p.hidden_size);
  const std::string per_unit = text(limits.parallel_max_rows_per_unit) + " rows on each of " +
                               text(plan.device.units) + " units";
  std::string out = std::string(name(plan.strategy)) + " for T=" + text(p.steps) +
                    " B=" + text(p.batch) + " H=" + text(p.hidden_size) +
                    (p.training ? " (training)" : " (inference)");
  if (plan.strategy == Strategy::fused_sequential && plan.tile_steps > 0) {
    out += ", tiles of " + text(plan.tile_steps) + " steps";
  }
  if (plan.chunk_steps > 0) out += ", chunks of " + text(plan.chunk_steps) + " steps";
  if (plan.device.processor == Processor::cuda && plan.strategy == Strategy::parallel_scan) {
    out += plan.across_blocks ? ", time over blocks" : ", time inside a block";
  }
  out += ": ";
  switch (plan.reason) {
    case Reason::forced:
      out += "forced by the caller";
      break;
    case Reason::empty:
      out += "there is nothing to compute";
      break;
    case Reason::few_tokens:
      out += "B*T = " + text(p.batch * p.steps) + " <= " + text(limits.direct_max_tokens) +
             " tokens, where starting more than one pass costs more than it saves";
      break;
    case Reason::few_rows:
      out += rows + " <= " + per_unit + " and T >= " + text(limits.parallel_min_steps) +
             ", so time is split to keep them busy";
      break;
    case Reason::enough_rows:
      out += rows + " > " + per_unit + ", so rows alone keep them busy";
      break;
    case Reason::short_sequence:
      out += "rows are few, but T < " + text(limits.parallel_min_steps) + " is too short to split";
      break;
  }
  return out + " [profile " + plan.profile + "; runner-up " + name(plan.runner_up) + "]";
}

}  // namespace scanrnn::dispatch
