// SPDX-License-Identifier: Apache-2.0
// The second opinion: the equations of docs/maths.md in the plainest scalar code, one step at a
// time, in long double, forward and by the textbook chain rule. It shares no code with the library.
#pragma once

#include "support/oracle_parts.h"

namespace scanrnn::test::oracle {

// The whole stack; `as_cuda`: what CUDA stores in the tensors' dtype is rounded to it here, too.
Answer run(const Case& c, const Data& data, bool with_backward = true, bool as_cuda = false);

}  // namespace scanrnn::test::oracle
