// SPDX-License-Identifier: Apache-2.0
// Which sequences of a ragged batch share a line of a dense cell's walk, by one thread: what the
// device's tables are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace scanrnn::test {

// By the places of sequences in the order of their lengths, the longest first. Those that begin a
// line come first and have the steps of all that are in it; others have -1. `next` of the first is
// the place, counted from the end, of the sequence that follows; of others whether one does.
struct SharedLines {
  std::vector<std::int64_t> counts, steps, next;

  explicit SharedLines(std::vector<std::int64_t> lengths)
      : counts(std::move(lengths)), steps(counts.size()), next(counts.size()) {}

  // Puts the shortest behind the longest, as many as a line of so many steps has room for. Returns
  // the number of lines.
  std::int64_t fill(std::int64_t room) {
    std::size_t lines = 0;
    const std::size_t count = counts.size();
    for (std::size_t left = count; lines < left; ++lines) {
      const std::size_t behind = left;
      std::int64_t all = counts[lines];
      while (left - 1 > lines && all + counts[left - 1] <= room) {
        all += counts[--left];
        steps[left] = -1;
        next[left] = 1;
      }
      if (left < behind) next[left] = 0;
      steps[lines] = all;
      next[lines] = left < behind ? static_cast<std::int64_t>(count - behind + 1) : 0;
    }
    return static_cast<std::int64_t>(lines);
  }
  // So that a walk has as many steps as the longest sequence; or up to a quarter more, if a launch
  // then has room for all lines, of which it takes `most`.
  std::int64_t share(std::int64_t most) {
    const std::int64_t longest = counts[0];
    for (std::int64_t sixteenths = 0; sixteenths <= 4; ++sixteenths) {
      const std::int64_t lines = fill(longest + longest * sixteenths / 16);
      if (lines <= most) return lines;
    }
    return fill(longest);
  }
};

}  // namespace scanrnn::test
