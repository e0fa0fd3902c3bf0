// SPDX-License-Identifier: Apache-2.0
// A plan in words, and the names that files and messages use.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>

#include "scanrnn/dispatch/cost.h"
#include "scanrnn/dispatch/features.h"
#include "scanrnn/dispatch/ragged.h"
#include "scanrnn/dispatch/scan_rows.h"
#include "scanrnn/dispatch/stack_step.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {

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

const char* name(Feature feature) {
  constexpr const char* kNames[kFeatures] = {"steps",         "tokens",   "elements",
                                             "rows_per_unit", "hidden",   "gates",
                                             "bytes",         "training", "log_domain"};
  return kNames[static_cast<std::size_t>(feature)];
}

namespace {

std::string text(std::int64_t number) { return std::to_string(number); }
std::string text(double number) {
  char out[32];
  std::snprintf(out, sizeof out, "%.10g", number < 1000 ? std::round(number * 100) / 100 : number);
  return out;
}

std::string microseconds(double us) {
  char out[32];
  std::snprintf(out, sizeof out, us < 1000 ? "%.3g us" : "%.3g ms", us < 1000 ? us : us / 1000);
  return out;
}

// "T = 4096 > 512 and 22 < B*H per unit = 31 <= 248": the bounds of a rule that a problem meets.
std::string bounds(const Rule& rule, const Values& values) {
  constexpr const char* kWords[kFeatures] = {
      "T",        "B*T",       "B*T*H", "B*H per unit", "H", "gates", "bytes an element",
      "training", "log domain"};
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool below = rule.above[i] >= 0;
    const bool above = rule.at_most[i] < std::numeric_limits<double>::infinity();
    if (!below && !above) continue;
    if (!out.empty()) out += " and ";
    if (i == index_of(Feature::gates) && rule.at_most[i] < 1) {
      out += "nothing is projected";
      continue;
    }
    if (i >= index_of(Feature::training)) {
      out += (values[i] > 0 ? "" : "no ") + std::string(kWords[i]);
      continue;
    }
    if (below && above) out += text(rule.above[i]) + " < ";
    out += std::string(kWords[i]) + " = " + text(values[i]);
    if (below && !above) out += " > " + text(rule.above[i]);
    if (above) out += " <= " + text(rule.at_most[i]);
  }
  return out.empty() ? "everywhere" : "where " + out;
}

std::string because(const Plan& plan) {
  switch (plan.reason) {
    case Reason::forced:
      return "forced by the caller";
    case Reason::empty:
      return "there is nothing to compute";
    case Reason::measured:
      return "measured as the fastest " + bounds(plan.rule, values_of(plan.problem, plan.device));
    case Reason::predicted:
      return "predicted as the fastest";
    case Reason::adjacent_steps:
      return "the steps of a row are adjacent in memory";
    case Reason::no_rule:
      if (plan.problem.recurrence == Recurrence::diagonal) {
        return "each step reads the state before it, so time is walked";
      }
      return "the profile has no rule for this problem";
    case Reason::every_step:
      return "each step needs the state before it in a matrix product";
    case Reason::whole_lines:
      return plan.problem.normed
                 ? "layer_norm needs all sums of a line before each step"
                 : "with reset_after=False each step has two products, one after the other";
    case Reason::on_chip:
      return "the recurrent weights stay on the chip for the whole sequence";
    case Reason::not_on_chip:
      return plan.problem.storage_bytes <= 4 ? "the recurrent weights do not fit on the chip"
                                             : "in float64 each step is a product and a kernel";
    case Reason::many_lines:
      return "B > " + text(kMostLaunches * plan.persistent.lines) + " lines are more than " +
             text(kMostLaunches) + " launches step";
    case Reason::few_steps:
      if (plan.problem.gates > 0) {
        return "T < " + text(kPersistentMinSteps) + " is too short to load the weights once";
      }
      return "T <= " + text(kCudaShortSteps) + " steps are walked where they lie";
  }
  return "?";
}

// How a parallel scan on CUDA splits time, and what it does otherwise than it was asked.
std::string scan_of(const Plan& plan) {
  const Problem& p = plan.problem;
  if (plan.strategy != Strategy::parallel_scan) return "";
  if (plan.along_lanes && !plan.across_blocks) {
    if (packs_rows(p, plan.device)) {
      return ", some steps of a row for each lane where rows follow one another, but step by step "
             "where there are resets";
    }
    if (lane_has_row(p, plan.device)) return ", a row for each lane";
  }
  std::string out = plan.along_lanes ? ", time along lanes" : "";
  if (plan.across_blocks) out += plan.along_lanes ? " and over blocks" : ", time over blocks";
  if (out.empty()) out = ", time inside a block";
  if (!splits_inside_blocks(p)) {
    out += std::string(", as ") + (p.draws ? "draws are" : "a ragged batch is") +
           " never split inside one";
  }
  if (p.log_domain && !plan.log_domain) out += ", by values in place of logarithms";
  if (p.gates > 0 || p.log_states) return out;
  if (!plan.across_blocks) return out + ", but step by step where there are resets";
  return out + (plan.along_lanes ? ", but over blocks alone where there are resets" : "");
}

// How a linear layer on CUDA walks the sequences of a ragged batch.
std::string sequences_of(const Plan& plan) {
  const Problem& p = plan.problem;
  if (p.recurrence != Recurrence::linear || p.layout == Batch::rectangular) return "";
  if (const std::int64_t longest = longest_alone(plan)) {
    return ", each sequence for itself while none has more than " + text(longest) + " steps";
  }
  std::string out;
  if (plan.strategy == Strategy::fused_sequential) out = ", each sequence for itself";
  if (!scans_resets(plan)) {
    const bool together = !out.empty() && p.layout == Batch::packed;
    return out + (together ? ", but with resets all tokens as one" : "");
  }
  out += plan.strategy == Strategy::direct ? ", but backward with resets" : ", but with resets";
  return out + " a scan over blocks, since it draws";
}

// Which layer calls of a pass run at the same time.
std::string calls_of(const Plan& plan, bool backward) {
  const auto [calls, part_steps] = together(plan, backward);
  if (calls == 1) return "one layer call at a time";
  if (!plan.problem.chained) return "both directions at the same time";
  const std::string layers = text(std::int64_t{calls}) + " layers ";
  if (part_steps == 0) return layers + "in one launch";
  return layers + "at the same time by parts of " + text(part_steps) + " steps";
}
std::string calls_of(const Plan& plan) {
  if (steps_as_one(plan)) {
    return ", the step of " + text(std::int64_t{plan.at_once}) + " layers in one launch";
  }
  const std::string forward = calls_of(plan, false), backward = calls_of(plan, true);
  const bool alike = !plan.problem.training || forward == backward;
  if (!alike) return ", " + forward + ", backward " + backward;
  return plan.at_once > 1 ? ", " + forward : "";
}

}  // namespace

// Strings alone: where a process has more than one C++ runtime, streams are what breaks first.
std::string explain(const Plan& plan) {
  const Problem& p = plan.problem;
  const bool packed = p.layout == Batch::packed;
  std::string out = std::string(name(plan.strategy)) + " for " +
                    (packed ? text(p.steps) + " tokens of " + text(p.batch) + " sequences"
                            : "T=" + text(p.steps) + " B=" + text(p.batch)) +
                    " H=" + text(p.hidden_size) + (p.training ? " (training)" : " (inference)");
  const bool tiled =
      plan.strategy == Strategy::fused_sequential || plan.strategy == Strategy::step_loop;
  if (tiled && plan.tile_steps > 1) out += ", tiles of " + text(plan.tile_steps) + " steps";
  if (plan.in_turn) out += ", a tile for each thread";
  if (plan.strategy == Strategy::persistent) {
    const PersistentShape& shape = plan.persistent;
    out += shape.in_block ? std::string(", all units") + (p.heads > 1 ? " of a head" : "") +
                                " in each block" + (shape.alone ? ", by multiply-adds" : "")
                          : ", " + text(std::int64_t{shape.slices}) + " slices of " +
                                text(std::int64_t{shape.units}) + " units";
    out += " x " + text(std::int64_t{shape.groups}) + " groups of lines";
    if (shape.large) out += ", products of warp groups";
    if (p.heads > 1) out += " x " + text(p.heads) + " heads";
    if (p.heads > shape.heads) out += ", " + text(std::int64_t{shape.heads}) + " at a time";
    if (shares_lines(plan, false)) out += ", sequences share lines";
    if (p.training && plan.persistent_vjp.tile < 0) out += ", backward by step_loop";
  }
  if (plan.fused_steps) out += ", one kernel a step";
  out += calls_of(plan);
  if (plan.chunk_steps > 0) out += ", chunks of " + text(plan.chunk_steps) + " steps";
  if (plan.device.processor == Processor::cuda) out += scan_of(plan) + sequences_of(plan);
  out += ": " + because(plan);
  if (plan.expected_us > 0) out += ", " + microseconds(plan.expected_us);
  if (plan.runner_up != plan.strategy) out += std::string("; runner-up ") + name(plan.runner_up);
  if (plan.reason == Reason::measured && plan.rule.margin > 0) {
    out += " (" + text(plan.rule.margin) + " x the time)";
  } else if (plan.runner_up_us > 0 && plan.runner_up != plan.strategy) {
    out += " (" + microseconds(plan.runner_up_us) + ")";
  }
  return out + " [profile " + plan.profile + ", " + plan.origin + "]";
}

}  // namespace scanrnn::dispatch
