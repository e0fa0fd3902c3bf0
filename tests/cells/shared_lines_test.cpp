// SPDX-License-Identifier: Apache-2.0
// Sequences behind one another in the lines of a dense cell's walk: each is in one line, no line is
// longer than it may be, and there are as few as the planner expects. That a device shares them so
// is tests/cuda/line_tables_test.cu.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "support/random.h"
#include "support/shared_lines.h"

namespace scanrnn::test {
namespace {

using Index = std::int64_t;

SharedLines of_lengths(std::vector<Index> lengths) {
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  return SharedLines(std::move(lengths));
}
// The sequences of a line, by their places.
std::size_t at(Index place) { return static_cast<std::size_t>(place); }
std::vector<Index> sequences_of(const SharedLines& lines, Index first) {
  std::vector<Index> out{first};
  const auto count = static_cast<Index>(lines.counts.size()), behind = lines.next[at(first)];
  Index next = behind > 0 ? count - behind : -1;
  for (; next >= 0; next = lines.next[at(out.back())] > 0 ? out.back() - 1 : -1) {
    out.push_back(next);
  }
  return out;
}

TEST(SharedLines, EachSequenceIsInOneLine) {
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{5},
                                                                    {0},
                                                                    {0, 0, 0},
                                                                    {9, 9, 9, 9},
                                                                    {10, 1, 2, 3, 4},
                                                                    {7, 0, 12, 1, 12, 3},
                                                                    {8, 4, 4, 0}}) {
    const auto count = static_cast<Index>(lengths.size());
    for (Index most = 1; most <= count; ++most) {
      SharedLines lines = of_lengths(lengths);
      const Index all = lines.share(most), longest = lines.counts[0];
      std::vector<Index> seen;
      for (Index line = 0; line < all; ++line) {
        Index steps = 0;
        for (const Index n : sequences_of(lines, line)) {
          seen.push_back(n);
          steps += lines.counts[at(n)];
          EXPECT_TRUE(n == line || lines.steps[at(n)] == -1);
        }
        EXPECT_EQ(lines.steps[at(line)], steps);
        EXPECT_LE(steps, all > most ? longest : longest + longest / 4);
      }
      std::sort(seen.begin(), seen.end());
      std::vector<Index> every(lengths.size());
      std::iota(every.begin(), every.end(), 0);
      EXPECT_EQ(seen, every);
    }
  }
}

TEST(SharedLines, LinesAreAsFewAsTheyCanBe) {
  const auto lines_of = [](const std::vector<std::int64_t>& lengths, Index most) {
    return of_lengths(lengths).share(most);
  };
  EXPECT_EQ(lines_of({6, 6, 6}, 3), 3);
  EXPECT_EQ(lines_of({12, 11, 1, 6, 6}, 5), 3);
  EXPECT_EQ(lines_of({16, 10, 10, 4}, 4), 3);
  EXPECT_EQ(lines_of({16, 10, 10, 4}, 2), 2) << "a quarter longer";
  EXPECT_EQ(lines_of({16, 12, 12, 8}, 3), 3) << "a quarter longer";
  EXPECT_EQ(lines_of({16, 12, 12, 8}, 2), 4) << "which is not enough here";
}

// 64 sequences of uniform lengths take 35 lines, and a launch with room for 40 is rarely too small.
TEST(SharedLines, UniformLengthsTakeHalfOfTheLines) {
  Random random(1541);
  constexpr int kTries = 1000;
  Index sum = 0, more = 0;
  for (int i = 0; i < kTries; ++i) {
    std::vector<std::int64_t> lengths;
    for (const double length : random.uniform(64, 1, 1025)) {
      lengths.push_back(static_cast<std::int64_t>(length));
    }
    sum += of_lengths(lengths).share(64);
    more += of_lengths(lengths).share(40) > 40;
  }
  EXPECT_LT(static_cast<double>(sum) / kTries, 36);
  EXPECT_LT(more, kTries / 50);
}

}  // namespace
}  // namespace scanrnn::test
