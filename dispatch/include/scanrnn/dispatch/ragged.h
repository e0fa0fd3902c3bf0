// SPDX-License-Identifier: Apache-2.0
// How packed sequences are walked, where only a device knows how long they are.
#pragma once

#include "scanrnn/dispatch/plan.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// A linear cell on CUDA walks each packed sequence for itself if none has more steps than this, and
// resets none on the way: then there is, on average, a warp of rows for each multiprocessor until
// the longest has ended. Otherwise the plan's strategy walks all tokens. 0: it always does.
std::int64_t longest_alone(const Plan& plan);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
