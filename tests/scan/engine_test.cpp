// SPDX-License-Identifier: Apache-2.0
// The engine, exactly: affine maps over the integers mod 2^32, where a wrong order or a lost step
// cannot hide in rounding.
#include <gtest/gtest.h>
#include <omp.h>

#include <utility>
#include <vector>

#include "scanrnn/scan/cpu.h"
#include "support/integer_op.h"
#include "support/random.h"

namespace scanrnn::test {
namespace {

using scan::Extent;
using scan::Index;
using scan::Team;
using Value = Integer<std::uint32_t>;
using Op = IntegerOp<Value>;

// An item is more than its step: its place travels along and must reach the sink.
struct Item {
  Op::Step map;
  Index line, row, t;
};

// Values at data[line * line_stride + row + t * step_stride].
struct Source {
  const Op::Step* data;
  Index line_stride, step_stride, index = 0;

  Source line(Index i) const { return {data + i * line_stride, line_stride, step_stride, i}; }
  Item load(Index row, Index t) const { return {data[row + t * step_stride], index, row, t}; }
  Op::Step step(const Item& item) const { return item.map; }
};

struct Stored {
  Item item{{}, -1, -1, -1};
  Value before{0}, after{0};
  int times = 0;

  bool operator==(const Stored& o) const {
    return item.map.a == o.item.map.a && item.map.b == o.item.map.b && item.line == o.item.line &&
           item.row == o.item.row && item.t == o.item.t && before == o.before && after == o.after &&
           times == o.times;
  }
};

struct Sink {
  Stored* data;
  Extent extent;
  Index index = 0;

  Sink line(Index i) const { return {data, extent, i}; }
  void store(Index row, Index t, const Item& item, Op::State before, Op::State after) const {
    Stored& out = data[(index * extent.rows + row) * extent.steps + t];
    out = {item, before.h, after.h, out.times + 1};
  }
};

constexpr Value kSentinel{0x5CA11AB1};

class EngineTest : public testing::Test {
 protected:
  void run(Extent extent, int team_size, Index chunk, bool reverse) {
    Random random(static_cast<std::uint64_t>(extent.steps * 1000 + extent.rows * 10 + team_size));
    const Index width = extent.lines * extent.rows, count = width * extent.steps;
    std::vector<Op::Step> maps(static_cast<std::size_t>(count));
    // Factors are odd: even ones would soon have forgotten the state, and an error in it.
    for (Op::Step& map : maps) {
      const Value a(random.bits() | 1);
      map = {a, Value(1) - a, Value(random.bits())};
    }
    std::vector<Op::State> start(static_cast<std::size_t>(width)), carry;
    for (Op::State& state : start) state = scan::carried(Value(random.bits()));
    carry = start;
    carry.push_back(scan::carried(kSentinel));
    std::vector<Stored> stored(static_cast<std::size_t>(count));

    // [steps][lines][rows]; reversed time is a negative stride from the last step.
    Source source{maps.data(), extent.rows, width};
    if (reverse && extent.steps > 0)
      source = {maps.data() + (extent.steps - 1) * width, extent.rows, -width};
    const Sink sink{stored.data(), extent};
    const Index chunks = chunk ? scan::chunk_count(extent.steps, chunk) : 0;
    std::vector<Op::Element> totals(static_cast<std::size_t>(chunks * width + 1),
                                    Op::Element{kSentinel, kSentinel, kSentinel});
    std::vector<Op::State> starts(static_cast<std::size_t>(team_size * width + 1),
                                  scan::carried(kSentinel));

    int members = 0;
#pragma omp parallel num_threads(team_size)
    {
      const Team team{omp_get_thread_num(), omp_get_num_threads()};
#pragma omp single
      members = team.size;
      if (chunk == 0) {
        scan::sequential<Op>(team, extent, source, sink, {0, extent.steps}, carry.data());
      } else {
        scan::parallel<Op>(team, extent, source, sink, chunk, totals.data(), starts.data(),
                           carry.data());
      }
    }
    ASSERT_EQ(members, team_size) << "the team was cut down: the test would prove nothing";

    for (Index line = 0; line < extent.lines; ++line) {
      for (Index row = 0; row < extent.rows; ++row) {
        Value state = start[static_cast<std::size_t>(line * extent.rows + row)].h;
        for (Index t = 0; t < extent.steps; ++t) {
          const Index time = reverse ? extent.steps - 1 - t : t;
          const Op::Step map =
              maps[static_cast<std::size_t>(time * width + line * extent.rows + row)];
          const Value after = map.a * state + map.b;
          const Stored want{{map, line, row, t}, state, after, 1};
          const Stored& got =
              stored[static_cast<std::size_t>((line * extent.rows + row) * extent.steps + t)];
          ASSERT_TRUE(got == want)
              << "line " << line << " row " << row << " t " << t << ": stored " << got.times
              << " times, as (" << got.item.line << ", " << got.item.row << ", " << got.item.t
              << "), before " << got.before.value << " want " << want.before.value << ", after "
              << got.after.value << " want " << want.after.value;
          state = after;
        }
        ASSERT_TRUE(carry[static_cast<std::size_t>(line * extent.rows + row)].h == state)
            << "carry of line " << line << " row " << row;
      }
    }
    EXPECT_TRUE(carry.back().h == kSentinel);
    EXPECT_TRUE(totals.back().a == kSentinel);
    EXPECT_TRUE(starts.back().h == kSentinel);
  }

  void run_all(Index chunk, const std::vector<Index>& lengths) {
    omp_set_dynamic(0);
    for (int team_size = 1; team_size <= 5; ++team_size) {
      for (const auto& [lines, rows] : kExtents) {
        for (Index steps : lengths) {
          const bool reverse = (lines + rows + steps + team_size) % 2 == 1;
          SCOPED_TRACE(testing::Message()
                       << "lines " << lines << " rows " << rows << " steps " << steps << " chunk "
                       << chunk << " team " << team_size << " reverse " << reverse);
          run({lines, rows, steps}, team_size, chunk, reverse);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

 private:
  // Rows around the block of the engine's reduction; none of either.
  static constexpr std::pair<Index, Index> kExtents[] = {{0, 5}, {2, 0},  {1, 1}, {1, 33},
                                                         {3, 7}, {3, 16}, {2, 17}};
};

TEST_F(EngineTest, Sequential) { run_all(0, {0, 1, 2, 15, 61}); }

class ParallelEngineTest : public EngineTest, public testing::WithParamInterface<int> {};

TEST_P(ParallelEngineTest, EveryTeamAndExtent) {
  const Index chunk = GetParam();
  run_all(chunk, {0, 1, 2, chunk - 1, chunk, chunk + 1, 2 * chunk + 13});
}

// Chunks outnumber threads, are split between them, and the last one is cut off.
TEST_P(ParallelEngineTest, Long) {
  omp_set_dynamic(0);
  for (int team_size : {1, 3, 5}) run({1, 3, 20011}, team_size, GetParam(), team_size == 3);
}

INSTANTIATE_TEST_SUITE_P(Chunk, ParallelEngineTest, testing::Values(16, 32, 48, 256));

// A chunk that is no multiple of the local steps: the last promotion of each chunk is short.
TEST_F(EngineTest, ChunkOfAnySize) {
  for (Index chunk : {1, 3, 17, 100}) run_all(chunk, {5, 61});
}

TEST(Lines, EachRowOfARangeOnce) {
  constexpr Index kAll = 24;
  for (Index rows = 1; rows <= 7; ++rows) {
    for (Index begin = 0; begin <= kAll; ++begin) {
      for (Index end = begin; end <= kAll; ++end) {
        Index next = begin;
        scan::for_lines({begin, end}, rows, [&](Index line, scan::Range some) {
          ASSERT_LT(some.begin, some.end);
          ASSERT_LE(some.end, rows);
          for (Index row = some.begin; row < some.end; ++row) ASSERT_EQ(line * rows + row, next++);
        });
        ASSERT_EQ(next, end);
      }
    }
  }
}

TEST(Team, SharesAreContiguousCompleteAndEven) {
  for (int size = 1; size <= 9; ++size) {
    for (Index count : {0, 1, 2, 7, 8, 9, 1000003}) {
      Index next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const scan::Range range = Team{rank, size}.share(count);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, count / size);
        EXPECT_LE(range.end - range.begin, (count + size - 1) / size);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
