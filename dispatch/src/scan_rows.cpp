// SPDX-License-Identifier: Apache-2.0
#include "scanrnn/dispatch/scan_rows.h"

#include <algorithm>
#include <cmath>

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

struct Along {
  bool splits;  // time over blocks
  double us;
};

// What time along lanes takes: a line for each lane where lines are short, or for each warp, or a
// tile for each block. Measured on an H200: a warp alone takes 1.9 us for a tile, sixteen of a
// multiprocessor 4.8; a block 6.2, and 0.45 more for each row whose tiles exchange their totals.
// Lines of lanes move 90 % of what a copy does.
Along along_lanes(const Problem& p, const DeviceLimits& device) {
  constexpr double kWarps = 16, kBlocks = 2;  // of a multiprocessor
  const std::int64_t rows = p.time_contiguous ? 1 : p.hidden_size;
  const std::int64_t lines = p.time_contiguous ? p.batch * p.hidden_size : p.batch;
  const std::int64_t tile = std::max<std::int64_t>(1, cuda_lane_elements(p.storage_bytes) / rows);
  const double units = static_cast<double>(device.units);
  if (packs_rows(p, device) || lane_has_row(p, device)) {
    constexpr double kBytes = 28e3;  // of a multiprocessor in a microsecond
    const double moved = 3.0 * static_cast<double>(lines * p.steps * p.storage_bytes);
    return {false, 4 + 0.004 * static_cast<double>(p.steps) + moved / (kBytes * units)};
  }
  const double load = static_cast<double>(lines) / units;
  const double walked = static_cast<double>(ceiling(p.steps, tile)) * std::ceil(load / kWarps) *
                        std::max(1.9, 0.3 * std::min(load, kWarps));
  const double rounds = load * static_cast<double>(ceiling(p.steps, kCudaLaneWarps * tile));
  const double split = std::max(1.0, rounds / kBlocks) * (6.2 + 0.45 * static_cast<double>(rows));
  const bool splits = 9 + split < 4 + walked;
  return {splits, splits ? 9 + split : 4 + walked};
}

}  // namespace

bool is_short_scan(const Problem& p, const DeviceLimits& device) {
  return device.processor == Processor::cuda && p.gates == 0 && p.steps <= kCudaShortSteps &&
         p.layout == Batch::rectangular && !p.time_contiguous && !p.log_states;
}

bool packs_rows(const Problem& p, const DeviceLimits& device) {
  return p.time_contiguous && !p.log_states && p.storage_bytes <= 4 &&
         p.steps > kCudaAdjacentSteps && p.steps * p.storage_bytes >= 16 &&
         cuda_packs_lines(p.steps, p.batch * p.hidden_size, p.storage_bytes, false, device.units);
}

bool lane_has_row(const Problem& p, const DeviceLimits& device) {
  return p.time_contiguous &&
         cuda_lane_has_line(p.steps, p.batch * p.hidden_size, p.storage_bytes, device.units);
}

void consider_lanes(Plan& plan) {
  const Problem& p = plan.problem;
  const bool scan = p.gates == 0 && plan.device.processor == Processor::cuda;
  const bool some = p.batch > 0 && p.steps > 0 && p.hidden_size > 0;
  const bool open = p.forced == Strategy::automatic || p.forced == Strategy::parallel_scan;
  if (!scan || !some || !open) return;
  if (plan.reason == Reason::few_steps) return;
  if (!p.time_contiguous && p.hidden_size > kCudaLaneRows) return;
  const Along way = along_lanes(p, plan.device);
  if (!p.time_contiguous && plan.expected_us > 0 && plan.expected_us < way.us) return;
  if (plan.strategy != Strategy::parallel_scan) {
    plan.runner_up = plan.strategy;
    plan.runner_up_us = p.time_contiguous ? 0 : plan.expected_us;
  }
  plan.strategy = Strategy::parallel_scan;
  plan.along_lanes = true;
  plan.across_blocks = way.splits;
  plan.expected_us = way.us;
  if (p.forced == Strategy::automatic) {
    plan.reason = p.time_contiguous ? Reason::adjacent_steps : Reason::predicted;
  }
}

void consider_rows(Plan& plan) {
  constexpr std::int64_t kLong = std::int64_t{1} << 22, kShort = kLong / 32;  // elements
  const Problem& p = plan.problem;
  const bool scan = p.gates == 0 && p.time_contiguous;
  const std::int64_t rows = p.batch * p.hidden_size, elements = rows * p.steps;
  if (!scan || p.forced != Strategy::automatic || elements == 0) return;
  const bool splits =
      rows < plan.device.units && elements >= (2 * rows < plan.device.units ? kShort : kLong);
  plan.strategy = splits ? Strategy::parallel_scan : Strategy::fused_sequential;
  plan.runner_up = splits ? Strategy::fused_sequential : Strategy::parallel_scan;
  plan.reason = Reason::adjacent_steps;
}

}  // namespace scanrnn::dispatch
