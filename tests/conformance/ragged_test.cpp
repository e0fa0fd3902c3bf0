// SPDX-License-Identifier: Apache-2.0
// Ragged batches against a call for each stretch of each sequence by itself, forward and backward:
// lengths with NaN in the padding, packed tokens, resets.
#include <gtest/gtest.h>

#include <cmath>

#include "support/by_lines.h"
#include "support/one_by_one.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

using dispatch::Batch;
using dispatch::Strategy;

std::vector<Way> ways_of(const LayerOptions& layer) {
  std::vector<Way> out = ways_of_layer(layer);
  out.emplace_back(Strategy::automatic);
  return out;
}

class RaggedTest : public testing::TestWithParam<LayerOptions> {};
// Without dense cells and square weights, which would be too large with so many units.
class WideRaggedTest : public testing::TestWithParam<LayerOptions> {};

std::vector<LayerOptions> light_layers() {
  std::vector<LayerOptions> out;
  for (const LayerOptions& options : few_layers()) {
    if (!is_dense(options) && !info(options.cell).square) out.push_back(options);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Layer, RaggedTest, testing::ValuesIn(few_layers()), variant_name);
INSTANTIATE_TEST_SUITE_P(Layer, WideRaggedTest, testing::ValuesIn(light_layers()), variant_name);

TEST_P(RaggedTest, EveryWay) {
  Random random(1501);
  const LayerOptions& options = GetParam();
  for (const Way& way : ways_of(options)) {
    for (int bits = 0; bits < 16; ++bits) {
      RaggedCase c = ragged_case(options, {7, 0, 12, 1, 12, 3}, bits & 1);
      c.whole.way = way;
      c.whole.layer.bidirectional = bits & 2;
      c.whole.layer.batch_first = bits & 4;
      c.whole.layer.num_layers = 1 + (bits & 8 ? 1 : 0);
      fit(c.whole.layer);
      c.whole.layer.dtype = bits & 1 ? Dtype::float64 : Dtype::float32;
      c.whole.h0 = bits != 3;
      c.whole.threads = 1 + bits % 3;
      if (bits % 3 != 0) reset_some(c, 0.2, random);
      expect_like_single_calls(c, random);
    }
  }
}

void expect_same(const Result& got, const Result& wanted) {
  EXPECT_EQ(got.y, wanted.y);
  EXPECT_EQ(got.hn, wanted.hn);
  EXPECT_EQ(got.moren, wanted.moren);
  EXPECT_EQ(got.dx, wanted.dx);
  EXPECT_EQ(got.dh0, wanted.dh0);
  EXPECT_EQ(got.dmore0, wanted.dmore0);
  EXPECT_EQ(got.dparams, wanted.dparams);
}
void expect_same_in_place(const LayerOptions& options, Random& random) {
  for (const Way& way : ways_of(options)) {
    for (int bits = 0; bits < 8; ++bits) {
      RaggedCase c = ragged_case(options, {70, 0, 12, 1, 120, 3}, bits & 1);
      c.whole.way = way;
      c.whole.layer.bidirectional = bits & 2;
      fit(c.whole.layer);
      c.whole.threads = 1 + bits % 3;
      if (bits & 4) reset_some(c, 0.1, random);
      const Data data = random_data(c.whole, random);
      SCOPED_TRACE(text(c.whole));
      expect_same(with_states(c, data, true), with_states(c, data, false));
    }
  }
}
TEST_P(RaggedTest, StatesInPlace) {
  Random random(1520);
  expect_same_in_place(GetParam(), random);
}
TEST_P(RaggedTest, StatesOfAllLinesInPlace) {
  Random random(1522);
  for (const Way& way : ways_of(GetParam())) {
    for (const std::int64_t steps : {0, 1, 130, 3000}) {
      Case c;
      c.layer = GetParam();
      c.layer.input_size = 3;
      c.layer.hidden_size = 4;
      fit(c.layer);
      c.steps = steps;
      c.batch = 1;
      c.way = way;
      c.threads = 2;
      const Data data = random_data(c, random);
      SCOPED_TRACE(text(c));
      expect_same(with_states(c, data, {}, true), with_states(c, data, {}, false));
    }
  }
}
TEST(Ragged, StatesOfLinesInPlace) {
  Random random(1521);
  for (const LayerOptions& options : layers_by_lines_and_more()) {
    expect_same_in_place(options, random);
  }
}

TEST_P(RaggedTest, ResetsAlone) {
  Random random(1512);
  const LayerOptions& options = GetParam();
  constexpr Dtype kTypes[][2] = {{Dtype::float64, Dtype::float32},
                                 {Dtype::float16, Dtype::bfloat16}};
  const int cases = options.layer_norm ? 8 : 16;  // norms are compared in float64 alone
  for (const Way& way : ways_of(options)) {
    for (int bits = 0; bits < cases; ++bits) {
      const int kind = bits % 8;
      RaggedCase c = without_lengths(options, bits & 1 ? 5 : 1, kind == 6 ? 1 : 11);
      c.whole.way = way;
      c.whole.layer.bidirectional = bits & 2;
      c.whole.layer.batch_first = bits & 4;
      fit(c.whole.layer);
      c.whole.layer.dtype = kTypes[bits / 8][bits & 1];
      c.whole.h0 = kind != 3;
      reset_some(c, kind == 5 ? 1 : 0.2, random);
      expect_like_single_calls(c, random);
    }
  }
}

TEST_P(RaggedTest, AnyLengths) {
  Random random(1502);
  const std::vector<std::vector<std::int64_t>> all{
      {0}, {1}, {0, 0, 0}, {4, 4, 4}, {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, {0, 9, 0}, {300, 1, 2}};
  const LayerOptions& options = GetParam();
  for (const auto& lengths : all) {
    for (bool packed : {false, true}) {
      RaggedCase c = ragged_case(options, lengths, packed);
      c.whole.layer.dtype = Dtype::float64;
      c.whole.layer.bidirectional = true;
      c.whole.threads = 2;
      expect_like_single_calls(c, random);
    }
  }
}

TEST(Ragged, StepsOfLinesWithMoreOptions) {
  Random random(1511);
  for (const LayerOptions& options : layers_by_lines_and_more()) {
    for (int bits = 0; bits < 16; ++bits) {
      RaggedCase c = ragged_case(options, {7, 0, 12, 1, 12, 3}, bits & 1);
      c.whole.layer.bidirectional = bits & 2;
      c.whole.layer.batch_first = bits & 4;
      c.whole.layer.num_layers = 1 + (bits & 8 ? 1 : 0);
      c.whole.layer.dtype = Dtype::float64;
      c.whole.h0 = bits != 3;
      c.whole.threads = 1 + bits % 3;
      if (bits % 3 != 0) reset_some(c, 0.2, random);
      expect_like_single_calls(c, random);
    }
  }
}

// More sequences than a kernel takes at once, shared by threads in every way.
TEST_P(RaggedTest, ManySequences) {
  Random random(1503);
  const LayerOptions& options = GetParam();
  for (std::int64_t hidden : {4, 40}) {
    for (int threads : {1, 2, 5}) {
      for (bool packed : {false, true}) {
        std::vector<std::int64_t> lengths;
        for (int i = 0; i < 29; ++i) {
          lengths.push_back(static_cast<std::int64_t>(random.uniform(1, 0, 24)[0]));
        }
        RaggedCase c = ragged_case(options, lengths, packed);
        c.whole.layer.hidden_size = hidden;
        fit(c.whole.layer);
        c.whole.threads = threads;
        reset_some(c, 0.05, random);
        expect_like_single_calls(c, random);
      }
    }
  }
}

// Sequences that begin and end anywhere in the tiles of a GPU's kernels, and states that its blocks
// hand to one another.
TEST_P(RaggedTest, AcrossTiles) {
  Random random(1508);
  const LayerOptions& options = GetParam();
  for (const Way& way : ways_of(options)) {
    for (int bits = 0; bits < 4; ++bits) {
      const bool dense = is_dense(options);
      RaggedCase c = dense ? ragged_case(options, {33, 1, 40, 0, 7, 16, 15, 17, 40, 2}, bits & 1)
                           : ragged_case(options, {15, 700, 0, 16, 1, 255, 257, 64}, bits & 1);
      c.whole.way = way;
      c.whole.layer.hidden_size = dense ? 150 : 40;
      c.whole.layer.bidirectional = bits & 2;
      fit(c.whole.layer);
      c.whole.layer.dtype = on_cuda() && bits == 3 ? Dtype::bfloat16 : Dtype::float32;
      c.whole.threads = 2;
      if (bits > 0) reset_some(c, 0.02, random);
      expect_like_single_calls(c, random);
    }
  }
}

// Heads, of which a GPU's blocks take several or a part of one.
TEST(Ragged, Heads) {
  Random random(1511);
  for (const LayerOptions& options : few_variants()) {
    if (!is_dense(options)) continue;
    for (const Way& way : ways_of(options)) {
      for (const auto& [heads, hidden] : {std::pair{3, 39}, {2, 270}}) {
        for (int bits = 0; bits < 4; ++bits) {
          RaggedCase c = ragged_case(options, {17, 1, 0, 7, 16, 17, 2, 9}, bits & 1);
          c.whole.way = way;
          c.whole.layer.hidden_size = hidden;
          c.whole.layer.num_heads = heads;
          c.whole.layer.bidirectional = bits & 2;
          c.whole.layer.dtype = on_cuda() && bits == 3 ? Dtype::bfloat16 : Dtype::float32;
          c.whole.threads = 2;
          if (bits > 0) reset_some(c, 0.05, random);
          expect_like_single_calls(c, random);
        }
      }
    }
  }
}

// Units enough for a GPU to walk each sequence for itself, and lengths that do or do not let it.
TEST_P(WideRaggedTest, WideBatches) {
  Random random(1510);
  const std::vector<std::vector<std::int64_t>> all{{17, 16, 0, 33, 40, 1, 35, 38},
                                                   {170, 1, 2, 3, 0, 4, 0, 0}};
  const LayerOptions& options = GetParam();
  for (const Way& way :
       {Way(Strategy::fused_sequential), Way(Strategy::parallel_scan), Way(Strategy::automatic)}) {
    if (way == Strategy::parallel_scan && !is_linear(options)) continue;
    for (const auto& lengths : all) {
      for (int bits = 0; bits < 4; ++bits) {
        RaggedCase c = ragged_case(options, lengths, bits & 1);
        c.whole.way = way;
        c.whole.layer.hidden_size = on_cuda() ? 1100 : 110;
        c.whole.layer.bidirectional = bits & 2;
        c.whole.layer.dtype = on_cuda() && bits == 3 ? Dtype::bfloat16 : Dtype::float32;
        c.whole.h0 = bits != 2;
        c.whole.longest = bits == 3 ? *std::max_element(lengths.begin(), lengths.end()) : 0;
        expect_like_single_calls(c, random);
      }
    }
  }
}

// A plan may be told how long the longest packed sequence is.
TEST_P(RaggedTest, TheLongestIsKnown) {
  Random random(1509);
  const LayerOptions& options = GetParam();
  for (const Way& way : ways_of(options)) {
    RaggedCase c = ragged_case(options, {7, 0, 12, 1, 12, 3}, true);
    c.whole.way = way;
    c.whole.longest = 12;
    expect_like_single_calls(c, random);
    if (!on_cuda()) {  // where nobody looks at the values
      c.whole.longest = 11;
      const Data data = random_data(c.whole, random);
      EXPECT_EQ(message<value_error>([&] { forward_alone(c, data); }),
                "longest: expected at least 12, the steps of sequence 2, got 11");
    }
    c.whole.longest = c.whole.steps + 1;
    const Layer layer(c.whole.layer);
    const BatchShape shape{c.whole.steps, c.whole.batch, Batch::packed, c.whole.longest};
    EXPECT_THROW(layer.problem(shape, Mode::inference), std::exception);
  }
}

TEST_P(RaggedTest, ResetsAnywhere) {
  Random random(1504);
  const LayerOptions& options = GetParam();
  for (bool packed : {false, true}) {
    for (double share : {0.0, 0.5, 1.0}) {
      RaggedCase c = ragged_case(options, {6, 6, 5}, packed);
      c.whole.layer.dtype = Dtype::float64;
      c.whole.layer.bidirectional = true;
      reset_some(c, share, random);
      expect_like_single_calls(c, random);
    }
    for (std::int64_t at : {0, 5}) {  // the first step, and the last
      RaggedCase c = ragged_case(options, {6, 6, 5}, packed);
      c.reset.assign(static_cast<std::size_t>(c.whole.tokens()), 0);
      c.reset[c.token(1, at)] = 1;
      expect_like_single_calls(c, random);
    }
  }
}

TEST_P(RaggedTest, HalfPrecision) {
  Random random(1505);
  const LayerOptions& options = GetParam();
  for (Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (bool packed : {false, true}) {
      RaggedCase c = ragged_case(options, {7, 0, 12, 1}, packed);
      c.whole.layer.dtype = dtype;
      c.whole.layer.num_layers = 2;
      reset_some(c, 0.2, random);
      expect_like_single_calls(c, random);
    }
  }
}

// Nothing of a sequence that overflows reaches the next one, nor what comes after a reset.
TEST_P(RaggedTest, InfinitiesStayWhereTheyAre) {
  Random random(1506);
  const LayerOptions& options = GetParam();
  for (const Way& way : ways_of(options)) {
    RaggedCase c = ragged_case(options, {9, 9, 9}, true);
    c.whole.way = way;
    reset_some(c, 0, random);
    c.reset[c.token(1, 4)] = 1;
    Data data = random_data(c.whole, random);
    const auto put = [&](std::int64_t row, std::int64_t t) {
      const auto at = static_cast<std::ptrdiff_t>(c.token(row, t)) * c.whole.layer.input_size;
      data.x[static_cast<std::size_t>(at)] = std::nan("");
    };
    put(0, 5);
    put(1, 2);
    const Result got = forward_alone(c, data);
    const std::int64_t width = c.whole.layer.hidden_size;
    for (std::int64_t row : {0, 1, 2}) {
      for (std::int64_t t = 0; t < 9; ++t) {
        const bool lost = (row == 0 && t >= 5) || (row == 1 && t >= 2 && t < 4);
        const double y = got.y[c.token(row, t) * static_cast<std::size_t>(width)];
        EXPECT_EQ(std::isnan(y), lost) << text(c.whole) << " row " << row << " t " << t;
      }
    }
  }
}

// Nor does the gradient of what overflows reach what a reset cuts off, in either direction.
TEST_P(RaggedTest, LostGradientsStayWhereTheyAre) {
  Random random(1513);
  const LayerOptions& options = GetParam();
  for (const Way& way : ways_of(options)) {
    for (int bits = 0; bits < 4; ++bits) {
      RaggedCase c = ragged_case(options, {9, 9}, bits & 1);
      c.whole.way = way;
      c.whole.layer.bidirectional = bits & 2;
      fit(c.whole.layer);
      reset_some(c, 0, random);
      c.reset[c.token(1, 3)] = c.reset[c.token(1, 6)] = 1;
      Data data = random_data(c.whole, random);
      const Result clean = trained(c, data);
      const std::int64_t input = c.whole.layer.input_size;
      for (std::int64_t t = 3; t < 6; ++t) {
        data.x[c.token(1, t) * static_cast<std::size_t>(input)] = std::nan("");
      }
      const Result got = trained(c, data);
      for (std::int64_t row : {0, 1}) {
        for (std::int64_t t = 0; t < 9; ++t) {
          const std::size_t at = c.token(row, t) * static_cast<std::size_t>(input);
          if (row == 1 && t >= 3 && t < 6) continue;
          EXPECT_EQ(got.dx[at], clean.dx[at]) << text(c.whole) << " row " << row << " t " << t;
        }
      }
      EXPECT_EQ(got.dh0, clean.dh0) << text(c.whole);
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
