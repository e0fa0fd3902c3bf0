// SPDX-License-Identifier: Apache-2.0
// Which steps of a layer are one kernel, and which of a stack one launch.
#include "scanrnn/dispatch/stack_step.h"

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {

bool fuses_steps(const Problem& p, const DeviceLimits& device) {
  return p.batch <=
         cuda_fused_lines(p.storage_bytes, p.split_products, p.gates, p.hidden_size, device.units);
}

// On an H200, GRU and LSTM, one to sixteen lines: weights of less than a few megabytes come from
// the second level cache in less time than blocks take to meet, and a block that makes more than
// one piece of a layer asks for the first alone before it waits.
constexpr std::int64_t kLeastUnits = 768, kUnitsOfBlock = 8;
// One by one, layers that step in place copy their states first. Up to so many lines they are
// faster where they need not; layers of one gate are at any number in 16 bits, at none in float32.
constexpr std::int64_t kLinesApart = 8;

bool step_as_one(Plan& plan) {
  const Problem& p = plan.problem;
  const bool one = p.steps == 1 && p.batch > 0 && p.layout != Batch::packed && !p.training;
  if (!one || !plan.fused_steps || !p.chained || p.at_once < 2) return false;
  plan.at_once = static_cast<int>(in_equal_groups(p.at_once, kStackLayers));
  plan.part_steps = 0;
  return true;
}

void consider_step_as_one(Plan& plan) {
  const Problem& p = plan.problem;
  const bool pays =
      p.layout == Batch::ragged || (p.gates > 1 ? p.batch > kLinesApart : p.storage_bytes > 2);
  const std::int64_t most = kUnitsOfBlock * plan.device.units;
  if (pays && p.hidden_size >= kLeastUnits && p.hidden_size <= most) step_as_one(plan);
}

}  // namespace scanrnn::dispatch
