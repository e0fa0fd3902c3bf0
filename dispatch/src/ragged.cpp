// SPDX-License-Identifier: Apache-2.0
// How a linear cell on CUDA walks the sequences of a ragged batch.
#include "scanrnn/dispatch/ragged.h"

#include <algorithm>

namespace scanrnn::dispatch {

std::int64_t longest_alone(const Plan& plan) {
  constexpr std::int64_t kLanes = 32;
  const Problem& p = plan.problem;
  const std::int64_t rows = kLanes * std::max<std::int64_t>(1, plan.device.units);
  const bool packed = p.layout == Batch::packed && p.recurrence == Recurrence::linear;
  if (!packed || plan.device.processor == Processor::cpu) return 0;
  if (plan.strategy != Strategy::parallel_scan || p.forced == plan.strategy) return 0;
  return p.batch * p.hidden_size < rows ? 0 : p.steps * p.hidden_size / rows;
}

bool walks_alone(const Problem& p, const DeviceLimits& device) {
  constexpr std::int64_t kManyRows = 96;
  return p.layout == Batch::ragged && device.processor == Processor::cuda &&
         p.batch * p.hidden_size >= kManyRows * device.units;
}

bool scans_resets(const Plan& plan) {
  const Problem& p = plan.problem;
  const bool walks = plan.strategy == Strategy::fused_sequential ||
                     (plan.strategy == Strategy::direct && p.training);
  return walks && p.recurrence == Recurrence::linear && p.draws && p.layout != Batch::rectangular &&
         plan.device.processor == Processor::cuda;
}

}  // namespace scanrnn::dispatch
