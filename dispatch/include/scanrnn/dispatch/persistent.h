// SPDX-License-Identifier: Apache-2.0
// What calls at the same time ask of the cuts of persistent kernels.
#pragma once

#include "scanrnn/dispatch/plan.h"

namespace scanrnn::dispatch {

// a / b, rounded up.
inline std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The cut of fewest clocks for a pass over a layer, or in one launch over so many of a chain; its
// tile is -1 where none fits.
PersistentShape best_shape(const Problem& problem, const DeviceLimits& device, bool backward,
                           int layers);

// Clocks of a step of a layer, as far as such a cut says.
double clocks(const Problem& problem, const DeviceLimits& device, const PersistentShape& shape,
              bool backward);

}  // namespace scanrnn::dispatch
