// SPDX-License-Identifier: Apache-2.0
// The planner: sizes and thresholds in, a Plan out, and the words for it.
#include "scanrnn/dispatch/plan.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

struct Choice {
  Strategy strategy, runner_up;
  Reason reason;
};

Choice choose_dense(const Problem& problem, const Plan& plan) {
  const Strategy loop = Strategy::step_loop, whole = Strategy::persistent;
  const PersistentShape& shape = plan.persistent;
  if (problem.batch == 0 || problem.steps == 0) return {loop, loop, Reason::empty};
  if (plan.device.processor == Processor::cpu) return {loop, loop, Reason::every_step};
  if (shape.tile < 0) return {loop, loop, Reason::not_on_chip};
  if (problem.steps < kPersistentMinSteps) return {loop, whole, Reason::few_steps};
  if (problem.batch > shape.lines) return {loop, whole, Reason::many_lines};
  return {whole, loop, Reason::on_chip};
}

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

std::string misfit(const Problem& problem, const DeviceLimits& device) {
  const bool dense = problem.recurrence == Recurrence::dense;
  switch (problem.forced) {
    case Strategy::automatic:
      return "";
    case Strategy::direct:
    case Strategy::fused_sequential:
    case Strategy::parallel_scan:
      if (dense) return "each step of this cell needs the state before it in a matrix product";
      return "";
    case Strategy::step_loop:
    case Strategy::persistent:
      if (!dense) return "this recurrence is linear, so its steps have no matrix product";
      break;
  }
  if (problem.forced == Strategy::step_loop) return "";
  if (device.processor == Processor::cpu) {
    return "it is one kernel that stays on a GPU; on the CPU step_loop keeps the weights in cache";
  }
  if (problem.storage_bytes > 4) {
    return "its products are sums in float32, by tensor cores; float64 is too wide for them";
  }
  const bool fits = persistent_shape(problem, device, false).tile >= 0 &&
                    (!problem.training || persistent_shape(problem, device, true).tile >= 0);
  if (fits) return "";
  const std::int64_t bytes =
      problem.gates * problem.hidden_size * problem.hidden_size * problem.storage_bytes;
  return "the recurrent weights take " + std::to_string(bytes) + " bytes, and the registers of " +
         std::to_string(device.units) + " multiprocessors have room for at most " +
         std::to_string(device.units * kPersistentWeightBytes) + ", in whole tiles";
}

Plan plan(const Problem& problem, const DeviceLimits& device, const Profile& profile) {
  Plan out;
  out.problem = problem;
  out.device = device;
  out.thresholds = problem.training ? profile.training : profile.inference;
  std::memcpy(out.profile, profile.name, sizeof out.profile);
  const bool dense = problem.recurrence == Recurrence::dense;
  if (dense && device.processor == Processor::cuda) {
    out.persistent = persistent_shape(problem, device, false);
    if (problem.training) out.persistent_vjp = persistent_shape(problem, device, true);
  }
  const Choice choice =
      dense ? choose_dense(problem, out) : choose(problem, device, out.thresholds);
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
  const std::int64_t lines = std::max<std::int64_t>(1, problem.batch);
  out.tile_steps = std::max<std::int64_t>(1, kCpuTileTokens / lines);
  if (out.strategy == Strategy::direct) out.tile_steps = std::max<std::int64_t>(1, problem.steps);
  if (out.strategy == Strategy::step_loop) {
    out.tile_steps = lines >= kCpuStepLines ? 1 : kCpuStepTileTokens / lines;
  }
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
  const bool tiled =
      plan.strategy == Strategy::fused_sequential || plan.strategy == Strategy::step_loop;
  if (tiled && plan.tile_steps > 1) {
    out += ", tiles of " + text(plan.tile_steps) + " steps";
  }
  if (plan.strategy == Strategy::persistent) {
    const PersistentShape& shape = plan.persistent;
    out += ", " + text(shape.slices) + " slices of " + text(shape.units) + " units x " +
           text(shape.groups) + " groups of lines";
    if (p.training && plan.persistent_vjp.tile < 0) out += ", backward by step_loop";
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
    case Reason::every_step:
      out += "each step needs the state before it in a matrix product";
      break;
    case Reason::on_chip:
      out += "the recurrent weights stay in registers for the whole sequence";
      break;
    case Reason::not_on_chip:
      out += (p.storage_bytes <= 4 ? "the recurrent weights do not fit in registers"
                                   : "in float64 each step is a product and a kernel");
      break;
    case Reason::many_lines:
      out += "B > " + text(plan.persistent.lines) + " lines are more than one launch steps";
      break;
    case Reason::few_steps:
      out += "T < " + text(kPersistentMinSteps) + " is too short to load the weights once";
      break;
  }
  out += std::string(" [profile ") + plan.profile;
  if (plan.runner_up != plan.strategy) out += std::string("; runner-up ") + name(plan.runner_up);
  return out + "]";
}

}  // namespace scanrnn::dispatch
