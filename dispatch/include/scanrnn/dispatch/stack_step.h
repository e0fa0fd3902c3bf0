// SPDX-License-Identifier: Apache-2.0
// One step of a stack of dense layers, as decoding makes it, in one CUDA launch for several layers.
#pragma once

#include "scanrnn/dispatch/plan.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// Layers of a launch at most: its arguments have room for so many.
inline constexpr int kStackLayers = 4;

// Whether the plan's step is one launch for Plan::at_once layers.
inline bool steps_as_one(const Plan& plan) {
  return plan.at_once > 1 && plan.fused_steps && plan.problem.chained && plan.problem.steps == 1;
}

// Makes the plan's step one launch for as many layers as one takes. False, and the plan as it was,
// where it has one layer or more than one step, where backward will follow, where the step of a
// layer is not one kernel, and where something is made around a layer.
bool step_as_one(Plan& plan);
// The same where it was measured to be faster: from states to others, and in a pool in place.
void consider_step_as_one(Plan& plan);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
