// SPDX-License-Identifier: Apache-2.0
// What the bare recurrence is given, checked: each error names the argument.
#pragma once

#include "scanrnn/linear_scan.h"

namespace scanrnn {

void check_shape(const ScanShape& shape);

// The same tensors as [T,B,N], those without time as [1,B,N]; of an axis of one element the stride
// is that of a dense tensor.
ScanArgs check_scan(const Context& context, const dispatch::Plan& plan, const ScanArgs& args);
ScanBackwardArgs check_scan(const Context& context, const dispatch::Plan& plan,
                            const ScanBackwardArgs& args);

}  // namespace scanrnn
