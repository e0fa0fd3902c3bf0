// SPDX-License-Identifier: Apache-2.0
// Which steps of a stack are one launch.
#include "scanrnn/dispatch/stack_step.h"

namespace scanrnn::dispatch {

bool step_as_one(Plan& plan) {
  const Problem& p = plan.problem;
  const bool one = p.steps == 1 && p.batch > 0 && p.layout != Batch::packed && !p.training;
  if (!one || !plan.fused_steps || !p.chained || p.at_once < 2) return false;
  const int launches = (p.at_once + kStackLayers - 1) / kStackLayers;  // of equal size
  plan.at_once = (p.at_once + launches - 1) / launches;
  plan.part_steps = 0;
  return true;
}

}  // namespace scanrnn::dispatch
