// SPDX-License-Identifier: Apache-2.0
// Several steps to a vector, exactly: affine maps over the integers mod 2^32 in vectors of eight.
#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <utility>
#include <vector>

#include "scanrnn/scan/cpu_abreast.h"
#include "support/integer_op.h"
#include "support/random.h"

namespace scanrnn::test {

using Value = Integer<std::uint32_t>;

// A vector in the vocabulary of scan/hd.h.
struct Lanes {
  static constexpr int kLanes = 8;
  std::array<Value, kLanes> lane;

  Lanes() = default;
  explicit Lanes(double all) { lane.fill(Value(all)); }
  bool operator==(const Lanes& other) const { return lane == other.lane; }
  bool operator!=(const Lanes& other) const { return !(*this == other); }
};
template <class Use>
Lanes by_lane(const Use& use) {
  Lanes out;
  for (std::size_t i = 0; i < Lanes::kLanes; ++i) out.lane[i] = use(i);
  return out;
}
Lanes operator+(const Lanes& x, const Lanes& y) {
  return by_lane([&](std::size_t i) { return x.lane[i] + y.lane[i]; });
}
Lanes operator-(const Lanes& x, const Lanes& y) {
  return by_lane([&](std::size_t i) { return x.lane[i] - y.lane[i]; });
}
Lanes operator*(const Lanes& x, const Lanes& y) {
  return by_lane([&](std::size_t i) { return x.lane[i] * y.lane[i]; });
}
Lanes within(int bound, const Lanes& steps, const Lanes& value) {
  return by_lane([&](std::size_t i) { return within(bound, steps.lane[i], value.lane[i]); });
}
template <class Use, class... More>
IntegerLocal<Lanes> each(const IntegerLocal<Lanes>& f, const Use& use, const More&... more) {
  return {use(f.a, more.a...), use(f.steps, more.steps...), use(f.b, more.b...)};
}

namespace {

using scan::Index;
using Op = IntegerOp<Lanes>;

constexpr Value kPoison(0x5CA11AB1);

// By their definitions, lane by lane.
struct Moves {
  static constexpr int kLevels = 3;
  Index rows, count;
  bool reverse;

  Index steps() const { return count; }
  Index step_of(std::size_t lane) const {
    const Index place = static_cast<Index>(lane) / rows;
    return reverse ? steps() - 1 - place : place;
  }
  bool holds(std::size_t lane) const { return static_cast<Index>(lane) < rows * steps(); }
  Value at(const Lanes& x, Index step, std::size_t lane) const {
    const Index place = reverse ? steps() - 1 - step : step;
    return x.lane[static_cast<std::size_t>(place * rows + static_cast<Index>(lane) % rows)];
  }
  Lanes earlier(int level, const Lanes& x) const {
    return by_lane([&](std::size_t lane) {
      const Index step = step_of(lane) - (Index{1} << level);
      return holds(lane) && step >= 0 ? at(x, step, lane) : kPoison;
    });
  }
  Lanes choose(int level, const Lanes& yes, const Lanes& no) const {
    return by_lane([&](std::size_t lane) {
      return holds(lane) && step_of(lane) >= Index{1} << level ? yes.lane[lane] : no.lane[lane];
    });
  }
  Lanes first(const Lanes& x) const {
    return by_lane([&](std::size_t lane) { return x.lane[static_cast<Index>(lane) % rows]; });
  }
  Lanes last(const Lanes& x) const {
    return by_lane([&](std::size_t lane) { return at(x, steps() - 1, lane); });
  }
  Lanes every_other(int odd, const Lanes& x, const Lanes& y) const {
    return by_lane([&](std::size_t lane) {
      if (!holds(lane)) return kPoison;
      const Index step = 2 * step_of(lane) + odd;
      return step < steps() ? at(x, step, lane) : at(y, step - steps(), lane);
    });
  }
};

// One line whose steps are adjacent: at `step` = -rows time runs down from `data`.
template <class T>
struct Tensor {
  T* data;
  Index step, width, line_values;

  Tensor line(Index i) const { return {data + i * line_values, step, width, line_values}; }
  Tensor abreast(Index count) const {
    return {step < 0 ? data + (count - 1) * step : data, step, width * count, line_values};
  }
  T* at(Index t) const { return data + t * step; }
};

struct Source {
  Tensor<const IntegerStep<Value>> maps;

  Source line(Index i) const { return {maps.line(i)}; }
  Source abreast(Index count) const { return {maps.abreast(count)}; }
  Op::Step load(Index row, Index t) const {
    EXPECT_EQ(row, 0);
    Op::Step out;
    for (std::size_t i = 0; i < Lanes::kLanes; ++i) {
      const bool inside = static_cast<Index>(i) < maps.width;
      const auto map = inside ? maps.at(t)[i] : IntegerStep<Value>{kPoison, kPoison, kPoison};
      out.a.lane[i] = map.a, out.z.lane[i] = map.z, out.b.lane[i] = map.b;
    }
    return out;
  }
  Op::Step step(const Op::Step& item) const { return item; }
};

struct Stored {
  Value map{0}, before{0}, after{0};
  int times = 0;
};
struct Sink {
  Tensor<Stored> out;

  Sink line(Index i) const { return {out.line(i)}; }
  Sink abreast(Index count) const { return {out.abreast(count)}; }
  void store(Index, Index t, const Op::Step& item, const Op::State& before,
             const Op::State& after) const {
    for (std::size_t i = 0; static_cast<Index>(i) < out.width; ++i) {
      Stored& to = out.at(t)[i];
      to = {item.b.lane[i], before.h.lane[i], after.h.lane[i], to.times + 1};
    }
  }
};

void run(Index lines, Index rows, Index steps, int team_size, Index chunk, bool reverse) {
  Random random(static_cast<std::uint64_t>(steps * 100 + rows));
  const Index count = steps * rows;  // of a line
  std::vector<IntegerStep<Value>> maps(static_cast<std::size_t>(lines * count));
  for (auto& map : maps) {
    const Value a(random.bits() | 1);
    map = {a, Value(1) - a, Value(random.bits())};
  }
  std::vector<Stored> stored(maps.size());
  std::vector<Op::State> carry, start;
  for (Index line = 0; line < lines; ++line) {
    carry.push_back({by_lane([&](std::size_t) { return Value(random.bits()); }), Lanes(0)});
  }
  start = carry;
  const Index from = reverse ? count - rows : 0, step = reverse ? -rows : rows;
  const Source source{{maps.data() + from, step, rows, count}};
  const Sink sink{{stored.data() + from, step, rows, count}};
  const Index chunks = chunk ? scan::chunk_count(steps, chunk) : 0;
  std::vector<Op::Element> totals(static_cast<std::size_t>(chunks * lines));
  std::vector<Op::State> starts(static_cast<std::size_t>(team_size * lines));
  const Index whole = Lanes::kLanes / rows, left = std::max<Index>(steps % whole, 1);
  const scan::StepsAbreast<Moves> arranged{{rows, whole, reverse}, {rows, left, reverse}};
  const scan::Extent extent{lines, 1, steps};
  int members = 0;
#pragma omp parallel num_threads(team_size)
  {
    const scan::Team team{omp_get_thread_num(), omp_get_num_threads()};
#pragma omp single
    members = team.size;
    if (chunk == 0) {
      scan::sequential<Op>(team, extent, source, sink, {0, steps}, carry.data(), arranged);
    } else {
      scan::parallel<Op>(team, extent, source, sink, chunk, totals.data(), starts.data(),
                         carry.data(), arranged);
    }
  }
  ASSERT_EQ(members, team_size) << "the team was cut down: the test would prove nothing";

  for (Index line = 0; line < lines; ++line) {
    for (Index row = 0; row < rows; ++row) {
      const auto lane = static_cast<std::size_t>(row);
      Value state = start[static_cast<std::size_t>(line)].h.lane[lane];
      for (Index t = 0; t < steps; ++t) {
        const Index time = reverse ? steps - 1 - t : t;
        const auto at = static_cast<std::size_t>(line * count + time * rows + row);
        const Value after = maps[at].a * state + maps[at].b;
        const Stored& got = stored[at];
        ASSERT_TRUE(got.times == 1 && got.map == maps[at].b && got.before == state &&
                    got.after == after)
            << "line " << line << " row " << row << " t " << t << ": stored " << got.times
            << " times, before " << got.before.value << " want " << state.value << ", after "
            << got.after.value << " want " << after.value;
        state = after;
      }
      ASSERT_TRUE(carry[static_cast<std::size_t>(line)].h.lane[lane] == state)
          << "carry of line " << line << " row " << row;
    }
  }
}

TEST(StepsAbreast, EveryLengthTeamAndDirection) {
  omp_set_dynamic(0);
  for (const Index rows : {1, 2, 3, 4}) {
    for (const Index chunk : {0, 16, 24, 37, 300}) {
      for (const Index steps : {0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 61, 203, 1201}) {
        for (const int team_size : {1, 3}) {
          for (const bool reverse : {false, true}) {
            if (steps == 0 && reverse) continue;  // there is no last step to begin at
            SCOPED_TRACE(testing::Message()
                         << "rows " << rows << " chunk " << chunk << " steps " << steps << " team "
                         << team_size << " reverse " << reverse);
            run(2, rows, steps, team_size, chunk, reverse);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
