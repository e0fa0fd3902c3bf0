// SPDX-License-Identifier: Apache-2.0
// The whole registry against the oracle, forward and backward: every pair of choices once, and the
// lengths around each strategy's own tiles for every cell.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "support/cases.h"
#include "support/conform.h"
#include "support/oracle.h"
#include "support/pairwise.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

TEST(Pairwise, EveryPairIsThere) {
  const std::vector<int> sizes{9, 4, 3, 2, 7, 2};
  const auto rows = pairwise(sizes);
  std::set<Pair> seen;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t j = i + 1; j < sizes.size(); ++j) seen.insert(pair_of(i, row[i], j, row[j]));
    }
  }
  std::size_t all = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = i + 1; j < sizes.size(); ++j) {
      all += static_cast<std::size_t>(sizes[i] * sizes[j]);
    }
  }
  EXPECT_EQ(seen.size(), all);
  EXPECT_LT(rows.size(), 2u * 9 * 7);
}

struct Trial {
  Case run;
  Memory memory;
};
void PrintTo(const Trial& trial, std::ostream* out) { *out << text(trial.run); }

std::vector<Trial> trials() {
  const std::vector<LayerOptions> variants = all_variants();
  std::vector<Way> ways = linear_ways();
  ways.emplace_back(Strategy::automatic);
  const std::vector<std::int64_t> steps = lengths(16, 257), batches{0, 1, 3},
                                  hidden{1, 7, 16, 17, 64, 129};
  const auto count = [](const auto& values) { return static_cast<int>(values.size()); };
  std::vector<Trial> out;
  for (const auto& row : pairwise({count(variants), count(dtypes()), count(ways), count(steps),
                                   count(batches), count(hidden), 3, 3, 2, 2, 2, 2, 2, 2, 2, 2})) {
    const auto at = [](const auto& values, int i) { return values[static_cast<std::size_t>(i)]; };
    Trial trial;
    Case& c = trial.run;
    c.layer = at(variants, row[0]);
    c.layer.dtype = at(dtypes(), row[1]);
    c.way = at(ways, row[2]);
    if (is_dense(c.layer) && c.way != Strategy::automatic) c.way = Strategy::step_loop;
    const bool scans = c.way == Strategy::parallel_scan;
    if (scans && !is_linear(c.layer)) c.way = Strategy::fused_sequential;
    c.steps = at(steps, row[3]);
    c.batch = at(batches, row[4]);
    c.layer.hidden_size = at(hidden, row[5]);
    if (c.layer.hidden_size > 64 && c.steps > 100 && c.batch > 1) c.batch = 1;  // oracle's time
    c.layer.input_size = row[6] == 0 ? c.layer.hidden_size : row[6] == 1 ? 5 : 37;
    c.threads = 1 + row[7];
    c.layer.domain = row[8] ? Domain::log : Domain::linear;
    c.layer.batch_first = row[9];
    c.h0 = row[10];
    c.layer.bias = row[11];
    c.layer.num_layers = 1 + row[12];
    c.layer.bidirectional = row[13];
    fit(c.layer);
    trial.memory.gap = 3 * row[14];
    trial.memory.offset = row[15];
    out.push_back(trial);
  }
  return out;
}

class ConformanceTest : public testing::TestWithParam<Trial> {};

TEST_P(ConformanceTest, MatchesTheOracle) {
  const auto& [c, memory] = GetParam();
  // Other numbers on CUDA: a float32 candidate within rounding of g's jump may take either slope,
  // and its matrix products round otherwise.
  Random random(static_cast<std::uint64_t>(c.steps * 131 + c.layer.hidden_size + on_cuda()));
  const Data data = random_data(c, random);
  const oracle::Answer want = oracle::run(c, data);
  expect_conforms(c, library(c, data, memory), want, "training: ");
  expect_forward(c, library_inference(c, data, memory), want, "inference: ");
}

INSTANTIATE_TEST_SUITE_P(Pairwise, ConformanceTest, testing::ValuesIn(trials()),
                         [](const auto& info) {
                           return std::to_string(info.index) + "_" + text(info.param.run);
                         });

// More rows than a grid may be high: sequences, units, and their products.
TEST(Rows, MoreThanSixteenBits) {
  Random random(12);
  for (const CellInfo& cell : cells()) {
    LayerOptions options;
    options.cell = cell.cell;
    for (bool wide : {false, true}) {
      // Whose weights would be a square of that size.
      if (wide && (is_dense(options) || cell.square)) continue;
      Case c;
      c.layer = options;
      c.layer.input_size = 1;
      c.layer.hidden_size = wide ? 70001 : 1;
      c.layer.batch_first = !wide;
      c.layer.dtype = wide ? Dtype::bfloat16 : Dtype::float32;
      c.steps = 3;
      c.batch = wide ? 1 : 70001;
      c.threads = 2;
      const Data data = random_data(c, random);
      const oracle::Answer want = oracle::run(c, data);
      for (const Way& way : ways(options)) {
        c.way = way;
        // A gradient of a parameter is a float32 sum of 210003 terms.
        expect_conforms(c, library(c, data), want, "", 6e-6);
        if (HasFailure()) return;
      }
    }
  }
}

// Lengths around the tile that the planner itself chose, in one direction or in both.
class LengthTest : public testing::TestWithParam<std::tuple<Way, bool>> {};

TEST_P(LengthTest, AroundTheTile) {
  Random random(11);
  for (const CellInfo& cell : cells()) {
    for (const bool batch_first : {false, true}) {
      Case c;
      c.layer.cell = cell.cell;
      c.way = std::get<0>(GetParam());
      if (is_dense(c.layer) != (c.way == Strategy::step_loop)) continue;
      if (c.way == Strategy::parallel_scan && !is_linear(c.layer)) continue;
      c.layer.input_size = 2;
      c.layer.hidden_size = 3;
      c.layer.batch_first = batch_first;
      c.layer.bidirectional = std::get<1>(GetParam());
      fit(c.layer);
      c.threads = 2;
      c.batch = 2;
      const Context context = make_context(c.threads);
      const dispatch::Plan plan =
          Layer(c.layer).plan(context, 2000, c.batch, Mode::training, c.way.strategy);
      ASSERT_FALSE(plan.in_turn);
      const std::int64_t tile = on_cuda()                          ? 128  // the longest of them
                                : c.way == Strategy::parallel_scan ? plan.chunk_steps
                                : c.way == Strategy::direct        ? 3
                                                                   : plan.tile_steps;
      for (std::int64_t steps : lengths(tile, 2 * tile + 7)) {
        c.steps = steps;
        const Data data = random_data(c, random);
        expect_conforms(c, library(c, data), oracle::run(c, data));
        if (HasFailure()) return;
      }
    }
  }
}

// How threads of the CPU share tiles is of training and inference each.
void expect_both(const Case& c, Random& random) {
  const Data data = random_data(c, random);
  const oracle::Answer want = oracle::run(c, data);
  expect_conforms(c, library(c, data), want);
  expect_forward(c, library_inference(c, data), want, "inference: ");
}
dispatch::Plan planned(const Case& c, std::int64_t steps) {
  const Context context = make_context(c.threads);
  return Layer(c.layer).plan(context, steps, c.batch, Mode::training, c.way.strategy);
}

// A product that is large, and steps enough: threads take tiles in turn. With three sequences they
// cannot have as many each, so that those whose tokens are adjacent are walked so, too.
class TurnTest : public testing::TestWithParam<bool> {};

TEST_P(TurnTest, TilesInTurn) {
  if (on_cuda()) GTEST_SKIP() << "a CPU's tiles";
  Random random(13);
  for (const CellInfo& cell : cells()) {
    Case c;
    c.layer.cell = cell.cell;
    if (is_dense(c.layer)) continue;
    c.way = Strategy::fused_sequential;
    c.layer.input_size = 56;
    c.layer.hidden_size = cell.square ? 56 : 27 / cell.gates;
    c.layer.batch_first = GetParam();
    c.layer.bidirectional = true;
    fit(c.layer);
    c.threads = 2;
    c.batch = 3;
    const std::int64_t least =
        dispatch::ceiling(dispatch::kCpuTurns * dispatch::kCpuTurnTokens * c.threads, c.batch);
    ASSERT_FALSE(planned(c, least - 1).in_turn);
    bool whole = false, rest = false;  // of tiles, at the end of a sequence
    for (c.steps = least; c.steps < least + 8; c.steps += 7) {
      const dispatch::Plan plan = planned(c, c.steps);
      ASSERT_TRUE(plan.in_turn);
      (c.steps % plan.tile_steps == 0 ? whole : rest) = true;
      expect_both(c, random);
      if (HasFailure()) return;
    }
    EXPECT_TRUE(whole && rest);
  }
}
INSTANTIATE_TEST_SUITE_P(Layout, TurnTest, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "BTH" : "TBH"); });

// Few narrow sequences whose tokens are adjacent, of two tiles and more: threads that cannot have
// as many each share pieces of all of them and, where training keeps pre-activations, whole ones.
TEST(Oracle, SequencesForThreads) {
  if (on_cuda()) GTEST_SKIP() << "a CPU's tiles";
  Random random(12);
  for (const CellInfo& cell : cells()) {
    for (const std::int64_t batch : {3, 4}) {
      Case c;
      c.layer.cell = cell.cell;
      if (is_dense(c.layer)) continue;
      c.way = Strategy::fused_sequential;
      c.layer.input_size = 20;
      c.layer.hidden_size = 32;
      c.layer.batch_first = true;
      c.layer.bidirectional = batch == 4;
      fit(c.layer);
      c.threads = 2;
      c.batch = batch;
      c.steps = 2 * planned(c, 2000).tile_steps + 1;
      ASSERT_FALSE(planned(c, c.steps).in_turn);
      expect_both(c, random);
      if (HasFailure()) return;
    }
  }
}

std::vector<Way> all_ways() {
  std::vector<Way> out = linear_ways();
  out.emplace_back(Strategy::step_loop);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Way, LengthTest,
                         testing::Combine(testing::ValuesIn(all_ways()), testing::Bool()),
                         [](const auto& info) {
                           return name(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_both" : "");
                         });

}  // namespace
}  // namespace scanrnn::test
