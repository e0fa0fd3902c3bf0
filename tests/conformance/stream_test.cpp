// SPDX-License-Identifier: Apache-2.0
// One sequence, several ways: whole, in pieces with carried state, step by step, by each strategy,
// on several threads at once. All of it is the same result.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "support/cases.h"
#include "support/conform.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

Case small_case(const LayerOptions& options, Dtype dtype = Dtype::float32) {
  Case c;
  c.layer = options;
  c.layer.dtype = dtype;
  c.layer.input_size = 5;
  c.layer.hidden_size = 9;
  fit(c.layer);
  c.steps = 70;
  c.batch = 2;
  c.threads = 2;
  return c;
}

Values slice(const Values& values, std::int64_t steps, std::int64_t begin, std::int64_t end) {
  const auto row = static_cast<std::int64_t>(values.size()) / steps;
  return {values.begin() + begin * row, values.begin() + end * row};
}

// The state after a piece, stored in the dtype, is the start of the next: of a half type the
// reference stores it too, and one flipped unit of that rounding may show.
void check_pieces(Case c, const std::vector<std::int64_t>& pieces, bool by_step) {
  Random random(21);
  const Data data = random_data(c, random);
  const Dtype dtype = c.layer.dtype;
  Context context = make_context(c.threads);
  Result got;
  oracle::Answer want;
  Values library_state = data.h0, oracle_state = data.h0;
  MoreValues library_more = data.more0, oracle_more = data.more0;
  std::int64_t begin = 0;
  for (std::int64_t length : pieces) {
    Case piece = c;
    piece.steps = length;
    Data part = data;
    part.x = slice(data.x, c.steps, begin, begin + length);
    part.dy = slice(data.dy, c.steps, begin, begin + length);
    part.h0 = oracle_state;
    part.more0 = oracle_more;
    const oracle::Answer expected = oracle::run(piece, part, false);
    part.h0 = library_state;
    part.more0 = library_more;
    Buffers buffers(piece, part);
    if (by_step) {
      buffers.step_in_place(context);
      library_state = buffers.h0.values();
      for (std::size_t i = 0; i < c.more_states(); ++i) library_more[i] = buffers.more0[i].values();
    } else {
      buffers.forward(context, Mode::inference);
      library_state = buffers.hn.values();
      library_more = buffers.result().moren;
    }
    const Result result = buffers.result();
    got.y.insert(got.y.end(), result.y.begin(), result.y.end());
    want.y.insert(want.y.end(), expected.y.begin(), expected.y.end());
    oracle_state = expected.hn;
    oracle_more = expected.moren;
    if (size_of(dtype) == 2) {
      for (double& value : oracle_state) value = rounded(value, dtype);
      for (Values& values : oracle_more) {
        for (double& value : values) value = rounded(value, dtype);
      }
    }
    begin += length;
  }
  ASSERT_EQ(begin, c.steps);
  if (size_of(dtype) > 2) want = oracle::run(c, data, false);  // the whole, at once
  Tolerance tolerance = forward_tolerance(dtype, c.steps, c.layer.num_layers);
  tolerance.scale += 2 * accuracy(dtype).rounding * c.layer.num_layers;
  EXPECT_TRUE(close("y", got.y, want.y, tolerance)) << text(c);
}

class StreamTest : public testing::TestWithParam<Dtype> {};

TEST_P(StreamTest, PiecesAreTheWhole) {
  for (const LayerOptions& options : all_variants()) {
    for (const Way& way : ways(options)) {
      Case c = small_case(options, GetParam());
      c.way = way;
      c.layer.num_layers = 2;
      c.layer.batch_first = way == Strategy::fused_sequential || way == Strategy::step_loop;
      check_pieces(c, {1, 16, 0, 33, 20}, false);
    }
  }
}

TEST_P(StreamTest, StepsAreTheWhole) {
  for (const LayerOptions& options : all_variants()) {
    for (bool batch_first : {false, true}) {
      Case c = small_case(options, GetParam());
      c.layer.num_layers = 2;
      c.layer.batch_first = batch_first;
      c.way = batch_first         ? Strategy::automatic
              : is_dense(options) ? Strategy::step_loop
                                  : Strategy::fused_sequential;
      check_pieces(c, std::vector<std::int64_t>(70, 1), true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtype, StreamTest, testing::ValuesIn(dtypes()),
                         [](const auto& info) { return name(info.param); });

// To the same bits: one step is one step of a sequence.
TEST(Stream, StepIsForwardOfOneStep) {
  for (const LayerOptions& options : all_variants()) {
    Case c = small_case(options);
    c.steps = 1;
    Random random(22);
    const Data data = random_data(c, random);
    Context context = make_context(1);
    Buffers sequence(c, data), step(c, data);
    sequence.forward(context, Mode::inference);
    step.step_in_place(context);
    EXPECT_TRUE(same_bits("y", step.y.bits(), sequence.y.bits()));
    EXPECT_TRUE(same_bits("h", step.h0.bits(), sequence.hn.bits()));
    for (std::size_t i = 0; i < c.more_states(); ++i) {
      EXPECT_TRUE(same_bits(letter(i + 1), step.more0[i].bits(), sequence.moren[i].bits()));
    }
  }
}

// Twice the table's tolerance: once from each side.
TEST(Stream, StrategiesAndDomainsAgree) {
  for (const LayerOptions& options : linear_variants()) {
    Case c = small_case(options);
    c.steps = 700;
    c.layer.bidirectional = true;
    Random random(23);
    const Data data = random_data(c, random);
    c.way = Strategy::fused_sequential;
    const Result reference = library(c, data);
    Tolerance twice = forward_tolerance(c.layer.dtype, c.steps);
    twice.scale *= 2;
    for (const Way& way : ways(options)) {
      if (way == Strategy::fused_sequential) continue;
      for (Domain domain : {Domain::log, Domain::linear}) {
        c.way = way;
        c.layer.domain = domain;
        const Result result = library(c, data);
        EXPECT_TRUE(close("y", result.y, reference.y, twice)) << text(c);
        EXPECT_TRUE(
            close_rms("dx", result.dx, reference.dx, 2 * accuracy(c.layer.dtype).gradient, 0))
            << text(c);
      }
    }
  }
}

std::vector<std::uint8_t> bits_of(const Case& c, const Data& data, Context& context) {
  Buffers buffers(c, data);
  buffers.forward(context, Mode::training);
  buffers.backward(context);
  return buffers.bits();
}

TEST(Stream, RepeatedRunsGiveTheSameBits) {
  for (const LayerOptions& options : few_variants()) {
    for (const Way& way : ways(options)) {
      Case c = small_case(options);
      c.steps = 517;
      c.batch = 5;
      c.layer.hidden_size = 33;
      c.layer.bidirectional = true;
      c.layer.num_layers = 2;
      fit(c.layer);
      c.way = way;
      c.threads = 3;
      Random random(24);
      const Data data = random_data(c, random);
      Context context = make_context(c.threads);
      const auto first = bits_of(c, data, context);
      for (int repeat = 0; repeat < 2; ++repeat) {
        EXPECT_TRUE(same_bits("all outputs", bits_of(c, data, context), first)) << text(c);
      }
    }
  }
}

TEST(Stream, ContextsInTwoThreadsDoNotMeet) {
  struct Work {
    Case c;
    Data data;
    std::vector<std::uint8_t> want, got;
    bool same = true;
  };
  std::vector<Work> work(2);
  Random random(25);
  for (std::size_t i = 0; i < work.size(); ++i) {
    Case& c = work[i].c;
    c = small_case(few_variants()[2 * i]);
    c.steps = 300;
    c.layer.hidden_size = 40 + static_cast<std::int64_t>(i);
    c.way = i ? Strategy::parallel_scan : Strategy::fused_sequential;
    work[i].data = random_data(c, random);
    Context context = make_context(c.threads);
    work[i].want = bits_of(c, work[i].data, context);
  }
  std::vector<std::thread> threads;
  for (Work& mine : work) {
    threads.emplace_back([&mine] {
      Context context = make_context(mine.c.threads);
      for (int repeat = 0; repeat < 20; ++repeat) {
        mine.same = mine.same && bits_of(mine.c, mine.data, context) == mine.want;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Work& each : work) EXPECT_TRUE(each.same) << text(each.c);
}

// One layer object, described once, serves any number of threads.
TEST(Stream, OneLayerInTwoThreads) {
  const Case c = small_case({});
  Random random(26);
  const Data data = random_data(c, random);
  Context context = make_context(1);
  const auto want = bits_of(c, data, context);
  std::vector<std::uint8_t> got[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] {
      Context own = make_context(1);
      for (int repeat = 0; repeat < 10; ++repeat) got[i] = bits_of(c, data, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got[0], want);
  EXPECT_EQ(got[1], want);
}

}  // namespace
}  // namespace scanrnn::test
