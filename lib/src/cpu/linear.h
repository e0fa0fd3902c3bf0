// SPDX-License-Identifier: Apache-2.0
// One layer in one direction on the CPU: of a linear cell or a dense one. With an arena that only
// counts, nothing is computed.
#pragma once

#include "stack/backend.h"

namespace scanrnn {

void cpu_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace);
void cpu_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace);
void cpu_dense_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace);
void cpu_dense_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace);
// The bare recurrence: tensors are [T,B,N], those without time [1,B,N].
void cpu_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& workspace);
void cpu_scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args, Arena& workspace);

}  // namespace scanrnn
