// SPDX-License-Identifier: Apache-2.0
// What calls at the same time ask of the cuts of persistent kernels.
#pragma once

#include "scanrnn/dispatch/plan.h"

namespace scanrnn::dispatch {

// The cut of fewest clocks for a pass over a layer, or in one launch over so many of a chain; its
// tile is -1 where none fits.
PersistentShape best_shape(const Problem& problem, const DeviceLimits& device, bool backward,
                           int layers);

// Clocks of a step of a layer, as far as such a cut says; of a packed one on average.
double clocks(const Problem& problem, const DeviceLimits& device, const PersistentShape& shape,
              bool backward);

// Whether packed tokens and their longest sequence are known. plan() looks at the rectangle that
// takes as long, which has the steps of one sequence.
inline bool knows_lengths(const Problem& p) {
  return p.layout == Batch::packed && p.longest > 0 && p.longest < p.steps;
}
// Where each sequence of a ragged batch has a line, lines end one after the other, and a walk takes
// about 0.8 of the time of a full batch; where sequences share lines, few end early. So clocks of
// shared lines count for so much more.
inline constexpr double kSharedClocks = 1.25;
// The rectangular problem of as many lines as sequences of a ragged one share, or of all of them.
Problem with_shared_lines(const Problem& problem);
// Lines that a cut walks: as many as there are sequences, or fewer.
std::int64_t walked_lines(const Plan& plan, const PersistentShape& shape, bool backward);
// Cuts a packed layer anew where tokens and the longest sequence say how many lines are shared.
void recut(Plan& plan);

}  // namespace scanrnn::dispatch
