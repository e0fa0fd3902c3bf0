// SPDX-License-Identifier: Apache-2.0
// What a rule may ask of a problem, as numbers in the order of Feature.
#pragma once

#include <array>

#include "scanrnn/dispatch/plan.h"

namespace scanrnn::dispatch {

using Values = std::array<double, kFeatures>;

inline Values values_of(const Problem& p, const DeviceLimits& device) {
  return {static_cast<double>(p.steps),
          static_cast<double>(p.batch) * static_cast<double>(p.steps),
          static_cast<double>(p.batch) * static_cast<double>(p.steps) *
              static_cast<double>(p.hidden_size),
          static_cast<double>(p.batch) * static_cast<double>(p.hidden_size) /
              static_cast<double>(device.units),
          static_cast<double>(p.hidden_size),
          static_cast<double>(p.gates),
          static_cast<double>(p.storage_bytes),
          p.training ? 1.0 : 0.0,
          p.log_domain ? 1.0 : 0.0};
}

}  // namespace scanrnn::dispatch
