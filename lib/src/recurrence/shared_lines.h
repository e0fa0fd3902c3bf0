// SPDX-License-Identifier: Apache-2.0
// Which sequences of a ragged batch share a line of a dense cell's walk, one behind another.
#pragma once

#include "scanrnn/dispatch/ragged.h"
#include "scanrnn/scan/op.h"

namespace scanrnn {

using scan::Index;

// By the places of sequences in the order of their lengths, the longest first. Those that begin a
// line come first and have the steps of all that are in it; others have -1. `next` of the first is
// the place, counted from the end, of the sequence that follows; of others whether one does.
struct SharedLines {
  std::int32_t counts[dispatch::kMostSharing], steps[dispatch::kMostSharing],
      next[dispatch::kMostSharing];

  // Puts the shortest behind the longest, as many as a line of so many steps has room for. Returns
  // the number of lines.
  SCANRNN_HD Index fill(Index count, Index room) {
    Index lines = 0;
    for (Index left = count; lines < left; ++lines) {
      const Index behind = left;
      Index all = counts[lines];
      while (left - 1 > lines && all + counts[left - 1] <= room) {
        all += counts[--left];
        steps[left] = -1;
        next[left] = 1;
      }
      if (left < behind) next[left] = 0;
      steps[lines] = static_cast<std::int32_t>(all);
      next[lines] = static_cast<std::int32_t>(left < behind ? count - behind + 1 : 0);
    }
    return lines;
  }
  // So that a walk has as many steps as the longest sequence; or up to a quarter more, if a launch
  // then has room for all lines, of which it takes `most`.
  SCANRNN_HD Index share(Index count, Index most) {
    const Index longest = counts[0];
    for (Index sixteenths = 0; sixteenths <= 4; ++sixteenths) {
      const Index lines = fill(count, longest + longest * sixteenths / 16);
      if (lines <= most) return lines;
    }
    return fill(count, longest);
  }
};

}  // namespace scanrnn
