// SPDX-License-Identifier: Apache-2.0
// How sequences are walked, where only a device knows how long they are.
#pragma once

#include "scanrnn/dispatch/plan.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// In place of a parallel scan a linear cell on CUDA walks each packed sequence for itself if none
// has more steps than this, and resets none on the way: then there is, on average, a warp of rows
// for each multiprocessor until the longest has ended. 0: it always scans all tokens.
std::int64_t longest_alone(const Plan& plan);

// Whether rows of a padded batch with lengths or resets are so many that no scan of them on CUDA is
// worth considering. Measured on an H100: from 96 a multiprocessor on, a scan over blocks takes 1.1
// to 3.7 times as long as a walk.
bool walks_alone(const Problem& problem, const DeviceLimits& device);

// Whether a linear cell on CUDA walks the lines of a batch with resets by a scan over blocks where
// the plan's strategy walks them step by step: no other kernel with draws knows resets but
// `direct`, whose backward pass is a walk.
bool scans_resets(const Plan& plan);

// More sequences than this have a line each.
inline constexpr std::int64_t kMostSharing = 2048;
// Whether a persistent kernel on CUDA walks sequences of a ragged batch behind one another in fewer
// lines than there are sequences: short ones behind long ones, in lines that are as long as the
// longest, or up to a quarter longer.
bool shares_lines(const Plan& plan, bool backward);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
