// SPDX-License-Identifier: Apache-2.0
// Sequences of a ragged batch behind one another in the lines of a persistent kernel, over the ends
// of launches: each is what a call for it alone gives, or a walk step by step.
#include "scanrnn/dispatch/ragged.h"
#include "support/cuda.h"
#include "support/one_by_one.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

const Way kShared{Strategy::persistent, Way::Split::shared_lines};

void expect_shared(const Case& c) {
  const BatchShape shape{c.steps, c.batch, c.layout, c.longest};
  Context& context = shared_context(c.threads);
  const auto plan =
      c.way.splits(Layer(c.layer).plan(context, shape, Mode::training, c.way.strategy));
  EXPECT_TRUE(dispatch::shares_lines(plan, false)) << text(c);
  EXPECT_TRUE(dispatch::shares_lines(plan, true)) << text(c);
}

class SharedLinesOnCuda : public CudaTest {
 protected:
  static void expect_like_steps(RaggedCase c, Random& random, std::uint64_t seed = 0) {
    c.whole.way = kShared;
    expect_shared(c.whole);
    test::expect_like_steps(c, random, seed);
  }
  // Without lengths there is nothing to share: a batch is walked as a rectangle, in launches that
  // end anywhere, and by the kernels of small layers.
  static void expect_resets_alone(const LayerOptions& options, std::int64_t hidden, Dtype dtype,
                                  Random& random) {
    RaggedCase c = without_lengths(options, 7, 33);
    c.whole.layer.hidden_size = hidden;
    c.whole.layer.bidirectional = true;
    c.whole.layer.dtype = dtype;
    fit(c.whole.layer);
    reset_some(c, 0.2, random);
    for (const Way& way : {kShared, Way(Strategy::persistent)}) {
      c.whole.way = way;
      test::expect_like_steps(c, random);
    }
  }
};

TEST_F(SharedLinesOnCuda, EveryCell) {
  Random random(1551);
  for (const LayerOptions& options : dense_variants()) {
    for (int bits = 0; bits < 8; ++bits) {
      RaggedCase c = ragged_case(options, {23, 1, 40, 0, 7, 16, 15, 17, 39, 2, 0, 9}, bits & 1);
      c.whole.layer.hidden_size = bits & 2 ? 37 : 24;
      c.whole.layer.bidirectional = bits & 4;
      c.whole.layer.dtype = bits == 3 || bits == 6 ? Dtype::bfloat16 : Dtype::float32;
      c.whole.h0 = bits != 5;
      fit(c.whole.layer);
      if (bits % 3 != 0) reset_some(c, 0.1, random);
      expect_like_steps(c, random);
      if (HasFailure()) return;
    }
  }
}

// A launch that begins and ends anywhere in a line: with a sequence, one step behind, without any.
TEST_F(SharedLinesOnCuda, AnyLengths) {
  Random random(1552);
  const std::vector<std::vector<std::int64_t>> all{
      {0, 0, 0, 0},          {15, 15, 15, 15, 15, 15},     {31, 16, 15, 14, 1, 1},
      {45, 0, 30, 15, 0, 0}, {60, 1, 1, 1, 1, 1, 1, 1, 1}, {30, 28, 29, 2, 1, 0, 15, 14}};
  for (const LayerOptions& options : dense_variants(few_variants())) {
    for (const auto& lengths : all) {
      for (bool packed : {false, true}) {
        RaggedCase c = ragged_case(options, lengths, packed);
        c.whole.way = kShared;
        c.whole.layer.bidirectional = true;
        c.whole.layer.num_layers = packed ? 2 : 1;
        if (c.whole.steps > 0) expect_shared(c.whole);
        expect_like_single_calls(c, random);
      }
    }
  }
}

TEST_F(SharedLinesOnCuda, Heads) {
  Random random(1553);
  for (const LayerOptions& options : dense_variants(few_variants())) {
    for (bool packed : {false, true}) {
      RaggedCase c = ragged_case(options, {17, 1, 0, 7, 16, 17, 2, 9}, packed);
      c.whole.way = kShared;
      c.whole.layer.num_heads = 3;
      c.whole.layer.hidden_size = 60;
      expect_shared(c.whole);
      reset_some(c, 0.05, random);
      expect_like_single_calls(c, random);
    }
  }
}

// More lines than the items of a thread's first turn.
TEST_F(SharedLinesOnCuda, ManySequences) {
  Random random(1554);
  for (const LayerOptions& options : dense_variants(few_variants())) {
    for (bool packed : {false, true}) {
      std::vector<std::int64_t> lengths;
      for (const double length : random.uniform(40, 0, 30)) {
        lengths.push_back(static_cast<std::int64_t>(length));
      }
      RaggedCase c = ragged_case(options, lengths, packed);
      c.whole.layer.hidden_size = 24;
      fit(c.whole.layer);
      reset_some(c, 0.05, random);
      expect_like_steps(c, random);
    }
  }
}

TEST_F(SharedLinesOnCuda, ResetsAlone) {
  Random random(1556);
  for (const LayerOptions& options : dense_variants()) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (const std::int64_t hidden : {24, 37}) {
        expect_resets_alone(options, hidden, dtype, random);
        if (HasFailure()) return;
      }
    }
  }
}

// As many of those as the emulator has time for.
TEST_F(SharedLinesOnCuda, SomeResetsAlone) {
  Random random(1557);
  bool half = false;
  for (const LayerOptions& options : dense_variants(few_variants())) {
    half = !half;
    expect_resets_alone(options, 24, half ? Dtype::bfloat16 : Dtype::float32, random);
  }
}

// What is drawn for a step is of its sequence and its time, wherever a line has it.
TEST_F(SharedLinesOnCuda, DrawsAreThoseOfSteps) {
  Random random(1555);
  bool packed = false;
  for (LayerOptions options : dense_variants()) {
    packed = !packed;
    options.zoneout = 0.3;
    if (info(options.cell).states == 2) options.zoneout_cell = 0.2;
    options.bidirectional = true;
    expect_like_steps(ragged_case(options, {37, 0, 20, 36, 3, 14, 1, 16}, packed), random, 7);
  }
}

}  // namespace
}  // namespace scanrnn::test
