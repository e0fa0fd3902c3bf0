// SPDX-License-Identifier: Apache-2.0
// The parameters that a layer has by its options.
#pragma once

#include "scanrnn/layer.h"

namespace scanrnn {

// In the order of Layer::parameters(), of options that are checked.
std::vector<ParameterInfo> parameters_of(const LayerOptions& options, const CellInfo& cell);
// What the axes of a parameter are, in words.
const char* axes_of(const ParameterInfo& parameter, const LayerOptions& o);

}  // namespace scanrnn
