// SPDX-License-Identifier: Apache-2.0
// The whole registry against the oracle, forward and backward: every pair of choices once, and the
// lengths around each strategy's own tiles for every cell.
#include <gtest/gtest.h>

#include <set>

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

// Lengths around the tile that the planner itself chose.
class LengthTest : public testing::TestWithParam<Way> {};

TEST_P(LengthTest, AroundTheTile) {
  Random random(11);
  for (const CellInfo& cell : cells()) {
    for (int layout = 0; layout < 8; ++layout) {
      Case c;
      c.layer.cell = cell.cell;
      c.way = GetParam();
      if (is_dense(c.layer) != (c.way == Strategy::step_loop)) continue;
      if (c.way == Strategy::parallel_scan && !is_linear(c.layer)) continue;
      // A product that is large lets threads on the CPU take the tiles of a fused-sequential layer
      // in turn, from so many steps on.
      const bool large = layout & 4;
      if (large && (on_cuda() || c.way != Strategy::fused_sequential || !(layout & 2))) continue;
      c.layer.input_size = large ? 56 : 2;
      c.layer.hidden_size = !large ? 3 : cell.square ? 56 : 27 / cell.gates;
      c.layer.batch_first = layout & 1;
      c.layer.bidirectional = layout & 2;
      fit(c.layer);
      c.threads = 2;
      c.batch = large ? 3 : 2;  // of three sequences threads cannot have as many each
      const std::int64_t turns =
          1 + (dispatch::kCpuTurns * dispatch::kCpuTurnTokens * c.threads - 1) / c.batch;
      const Context context = make_context(c.threads);
      const auto planned = [&](std::int64_t steps) {
        return Layer(c.layer).plan(context, steps, c.batch, Mode::training, c.way.strategy);
      };
      ASSERT_EQ(planned(turns).in_turn, large);
      ASSERT_FALSE(planned(turns - 1).in_turn);
      const std::int64_t tile = on_cuda()                          ? 128  // the longest of them
                                : c.way == Strategy::parallel_scan ? planned(2000).chunk_steps
                                : c.way == Strategy::direct        ? 3
                                                                   : planned(2000).tile_steps;
      std::vector<std::int64_t> around{turns + 7};
      if (!large) around = lengths(tile, 2 * tile + 7);
      if (!large && tile > 2000) {  // long for an oracle
        around = {0, 1, 2, 61};
        if (!c.layer.bidirectional) around.insert(around.end(), {tile, tile + 1});
      }
      for (const std::int64_t steps : around) {
        c.steps = steps;
        const Data data = random_data(c, random);
        const oracle::Answer want = oracle::run(c, data);
        expect_conforms(c, library(c, data), want);
        if (large) expect_forward(c, library_inference(c, data), want, "inference: ");
        if (HasFailure()) return;
      }
    }
  }
}
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
      c.layer.hidden_size = cell.gates > 1 ? 22 : 40;
      c.layer.batch_first = true;
      c.layer.bidirectional = batch == 4;
      fit(c.layer);
      c.threads = 2;
      c.batch = batch;
      const Context context = make_context(c.threads);
      const auto planned = [&](std::int64_t steps) {
        return Layer(c.layer).plan(context, steps, batch, Mode::training, c.way.strategy);
      };
      c.steps = 2 * planned(2000).tile_steps + 1;
      ASSERT_FALSE(planned(c.steps).in_turn);
      const Data data = random_data(c, random);
      const oracle::Answer want = oracle::run(c, data);
      expect_conforms(c, library(c, data), want);
      expect_forward(c, library_inference(c, data), want, "inference: ");
      if (HasFailure()) return;
    }
  }
}

std::vector<Way> all_ways() {
  std::vector<Way> out = linear_ways();
  out.emplace_back(Strategy::step_loop);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Way, LengthTest, testing::ValuesIn(all_ways()),
                         [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace scanrnn::test
