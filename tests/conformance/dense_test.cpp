// SPDX-License-Identifier: Apache-2.0
// What only dense cells can get wrong: hidden sizes that fit no vector and no team, long sequences,
// each gradient by finite differences, states that are pairs, strategies that are not theirs.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/conform.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

std::vector<LayerOptions> dense_variants() {
  std::vector<LayerOptions> out = all_variants();
  out.erase(std::remove_if(out.begin(), out.end(), [](auto& o) { return !is_dense(o); }),
            out.end());
  return out;
}

Case dense_case(const LayerOptions& options, std::int64_t hidden, Dtype dtype = Dtype::float32) {
  Case c;
  c.layer = options;
  c.layer.dtype = dtype;
  c.layer.input_size = 5;
  c.layer.hidden_size = hidden;
  c.steps = 6;
  c.batch = 2;
  c.threads = 2;
  return c;
}

TEST(DenseConformance, AnyHiddenSize) {
  Random random(71);
  for (const LayerOptions& options : dense_variants()) {
    for (std::int64_t hidden : {1, 2, 7, 8, 31, 32, 33, 37, 129, 257}) {
      for (Dtype dtype : {Dtype::float32, Dtype::float64}) {
        Case c = dense_case(options, hidden, dtype);
        c.layer.bidirectional = hidden % 2;
        const Data data = random_data(c, random);
        expect_conforms(c, library(c, data), oracle::run(c, data));
      }
    }
    for (std::int64_t hidden : {1000, 1031}) {
      Case c = dense_case(options, hidden);
      c.steps = 4;
      c.batch = 1;
      const Data data = random_data(c, random);
      expect_conforms(c, library(c, data), oracle::run(c, data));
    }
  }
}

// R by heads of any number and size.
TEST(DenseConformance, Heads) {
  Random random(81);
  for (const LayerOptions& options : dense_variants()) {
    for (const auto& [heads, units] : {std::pair{2, 1}, {3, 5}, {7, 8}, {4, 33}}) {
      for (Dtype dtype : {Dtype::float32, Dtype::float64}) {
        Case c = dense_case(options, heads * units, dtype);
        c.layer.num_heads = heads;
        c.layer.bidirectional = units % 2;
        const Data data = random_data(c, random);
        expect_conforms(c, library(c, data), oracle::run(c, data));
      }
    }
  }
}

// With batch_first the products for dR are of lines that lie one after another, however many.
TEST(DenseConformance, ManyLinesOfFewSteps) {
  Random random(79);
  for (const LayerOptions& options : dense_variants()) {
    for (Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
      for (std::int64_t steps : {1, 2, 5}) {
        Case c = dense_case(options, 8, dtype);
        c.layer.batch_first = true;
        c.layer.bidirectional = true;
        c.steps = steps;
        c.batch = 600;
        const Data data = random_data(c, random);
        expect_conforms(c, library(c, data), oracle::run(c, data));
      }
    }
  }
}

// Batches around the rows that a kernel takes at once, shared by teams of any size: by units, by
// batch entries where each thread has a few going backward or there are more threads than vectors
// of units, and by both.
TEST(DenseConformance, AnyBatchAndTeam) {
  Random random(72);
  for (const LayerOptions& options : dense_variants()) {
    for (std::int64_t batch : {1, 2, 3, 4, 5, 6, 7, 12, 13, 25}) {
      for (std::int64_t hidden : {12, 70}) {
        Case c = dense_case(options, hidden, Dtype::float64);
        c.batch = batch * (hidden == 12 ? 16 : 1);  // enough for a team to be worth it
        c.steps = 5;
        c.layer.batch_first = batch % 2;
        const Data data = random_data(c, random);
        const oracle::Answer want = oracle::run(c, data);
        for (int threads : {1, 2, 3, 5, 8}) {
          if (hidden == 70 && threads > 3) continue;
          c.threads = threads;
          expect_conforms(c, library(c, data), want);
          expect_forward(c, library_inference(c, data), want, "inference: ");
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Steps before and after the recurrent weights are packed.
TEST(DenseConformance, ShortSequences) {
  Random random(73);
  for (const LayerOptions& options : dense_variants()) {
    for (std::int64_t steps : {0, 1, 2, 3, 4, 5}) {
      for (std::int64_t batch : {0, 1, 3}) {
        for (bool h0 : {false, true}) {
          Case c = dense_case(options, 40, Dtype::float64);
          c.steps = steps;
          c.batch = batch;
          c.h0 = h0;
          c.layer.num_layers = 2;
          c.layer.bidirectional = steps % 2;
          const Data data = random_data(c, random);
          const oracle::Answer want = oracle::run(c, data);
          expect_conforms(c, library(c, data), want);
          expect_forward(c, library_inference(c, data), want, "inference: ");
        }
      }
    }
  }
}

// Central differences of the library itself in float64, one input after the other: x, both states,
// all parameters.
TEST(DenseConformance, EveryGradientByFiniteDifferences) {
  for (const LayerOptions& options : dense_variants()) {
    Case c = dense_case(options, 3, Dtype::float64);
    c.layer.num_layers = 2;
    c.layer.bidirectional = true;
    c.layer.input_size = 2;
    c.steps = 5;
    Random random(74);
    Data data = random_data(c, random);
    forget_scale(c, data);
    const Result got = library(c, data);
    Context context = make_context(c.threads);
    const auto loss = [&] {
      Buffers buffers(c, data);
      buffers.forward(context, Mode::inference);
      const Result result = buffers.result();
      double out = 0;
      const auto dot = [&](const Values& a, const Values& b) {
        for (std::size_t i = 0; i < a.size(); ++i) out += a[i] * b[i];
      };
      dot(result.y, data.dy);
      dot(result.hn, data.dhn);
      for (std::size_t i = 0; i < c.more_states(); ++i) dot(result.moren[i], data.dmoren[i]);
      return out;
    };
    const auto check = [&](const std::string& what, Values& input, const Values& gradient) {
      ASSERT_EQ(gradient.size(), input.size()) << what;
      constexpr double kStep = 1e-5;
      for (std::size_t i = 0; i < input.size(); ++i) {
        const double value = input[i];
        input[i] = value + kStep;
        const double above = loss();
        input[i] = value - kStep;
        const double below = loss();
        input[i] = value;
        ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8) << text(c) << what << i;
      }
    };
    check(" dx ", data.x, got.dx);
    check(" dh_0 ", data.h0, got.dh0);
    for (std::size_t i = 0; i < c.more_states(); ++i) {
      if (c.is_scaled() && i == 2) continue;  // m
      check(" d" + letter(i + 1) + "_0 ", data.more0[i], got.dmore0[i]);
    }
    const Layer layer(c.layer);
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      check(" d" + layer.parameters()[i].name + " ", data.params[i], got.dparams[i]);
    }
  }
}

// 10^5 steps: states stay in their range, agree with the equations, and do not depend on how the
// sequence was cut.
TEST(DenseConformance, HundredThousandSteps) {
  for (const LayerOptions& options : dense_variants()) {
    Case c = dense_case(options, 17);
    c.layer.input_size = 3;
    c.steps = 100003;
    c.batch = 1;
    Random random(75);
    const Data data = random_data(c, random);
    const oracle::Answer want = oracle::run(c, data);
    const Result whole = library(c, data);
    expect_conforms(c, whole, want);
    const bool bounded = !has_jump(options);  // relu is not
    for (double value : whole.y) ASSERT_TRUE(!bounded || std::fabs(value) <= 1) << value;
    Context context = make_context(c.threads);
    Data part = data;
    Values pieces;
    for (std::int64_t begin = 0; begin < c.steps;) {
      Case piece = c;
      piece.steps = std::min<std::int64_t>(begin % 2 ? 30000 : 12345, c.steps - begin);
      const auto row = c.batch * c.layer.input_size;
      part.x.assign(data.x.begin() + begin * row, data.x.begin() + (begin + piece.steps) * row);
      part.dy.assign(static_cast<std::size_t>(piece.outputs()), 0);
      Buffers buffers(piece, part);
      buffers.forward(context, Mode::inference);
      const Result result = buffers.result();
      pieces.insert(pieces.end(), result.y.begin(), result.y.end());
      part.h0 = result.hn;
      part.more0 = result.moren;
      begin += piece.steps;
    }
    Tolerance twice = forward_tolerance(c.layer.dtype, c.steps);
    twice.scale *= 2;
    EXPECT_TRUE(close("pieces", pieces, whole.y, twice)) << text(c);
  }
}

TEST(DenseErrors, HalfAPair) {
  LayerOptions options;
  options.cell = Cell::LSTM;
  const Case c = dense_case(options, 7);
  Random random(76);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  const auto forward = [&](auto change) {
    return message<value_error>([&] { buffers.forward(context, Mode::training, 0, change); });
  };
  EXPECT_EQ(forward([](ForwardArgs& a) { a.h0.c = {}; }),
            "c_0: the state of LSTM is the pair (h_0, c_0), got h_0 alone");
  EXPECT_EQ(forward([](ForwardArgs& a) { a.h0.h = {}; }),
            "h_0: the state of LSTM is the pair (h_0, c_0), got c_0 alone");
  EXPECT_EQ(
      forward([](ForwardArgs& a) { a.h0.c.sizes[0] = 3; }),
      "c_0: expected shape (1, 2, 7) = (num_layers * num_directions, batch, hidden_size), got "
      "(3, 2, 7)");
  EXPECT_EQ(forward([](ForwardArgs& a) { --a.hn.c.sizes[2]; }).rfind("c_n: expected shape", 0), 0u);
  EXPECT_TRUE(buffers.outputs_untouched());
  buffers.forward(context, Mode::training);
  const auto backward = [&](auto change) {
    return message<value_error>([&] { buffers.backward(context, 0, change); });
  };
  EXPECT_EQ(backward([](BackwardArgs& a) { a.h0.c = {}; }).rfind("c_0: ", 0), 0u);
  EXPECT_EQ(backward([](BackwardArgs& a) { ++a.dhn.c.sizes[1]; }).rfind("dc_n: ", 0), 0u);
  EXPECT_EQ(backward([](BackwardArgs& a) { ++a.dh0.c.sizes[1]; }).rfind("dc_0: ", 0), 0u);
  EXPECT_TRUE(buffers.dx.untouched() && buffers.dmore0[0].untouched());
}

TEST(DenseErrors, PartsOfFour) {
  LayerOptions options;
  options.cell = Cell::SLSTM;
  const Case c = dense_case(options, 7);
  Random random(80);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  const auto forward = [&](auto change) {
    return message<value_error>([&] { buffers.forward(context, Mode::training, 0, change); });
  };
  EXPECT_EQ(forward([](ForwardArgs& a) { a.h0.n = {}; }),
            "n_0: the state of SLSTM is (h_0, c_0, n_0, m_0), got h_0, c_0, m_0");
  EXPECT_EQ(forward([](ForwardArgs& a) { a.h0.c = a.h0.n = a.h0.m = {}; }),
            "c_0: the state of SLSTM is (h_0, c_0, n_0, m_0), got h_0 alone");
  EXPECT_EQ(forward([](ForwardArgs& a) { ++a.h0.m.sizes[1]; }).rfind("m_0: expected shape", 0), 0u);
  EXPECT_EQ(forward([](ForwardArgs& a) { --a.hn.n.sizes[2]; }).rfind("n_n: expected shape", 0), 0u);
  EXPECT_TRUE(buffers.outputs_untouched());
}

TEST(DenseErrors, StateOfAGruIsOneTensor) {
  LayerOptions options;
  options.cell = Cell::GRU;
  const Case c = dense_case(options, 7);
  Random random(77);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  EXPECT_EQ(message<value_error>([&] {
              buffers.forward(context, Mode::inference, 0, [](ForwardArgs& a) { a.h0.c = a.h0.h; });
            }),
            "h_0: the state of GRU is one tensor, got a pair");
  EXPECT_EQ(message<value_error>([&] {
              buffers.forward(context, Mode::inference, 0, [](ForwardArgs& a) { a.h0.m = a.h0.h; });
            }),
            "h_0: the state of GRU is one tensor, got m_0");
  EXPECT_TRUE(buffers.outputs_untouched());
}

TEST(DenseErrors, RecurrentParameters) {
  for (const LayerOptions& options : dense_variants()) {
    const Case c = dense_case(options, 7);
    Random random(78);
    Buffers buffers(c, random_data(c, random));
    Context context = make_context(1);
    const auto forward = [&](auto change) {
      return message<value_error>([&] { buffers.forward(context, Mode::training, 0, change); });
    };
    const std::string rows = std::to_string(info(options.cell).gates * 7);
    const std::size_t more = info(options.cell).vectors > 0 ? 1 : 0;
    EXPECT_EQ(forward([](ForwardArgs& a) { a.params[1].sizes[1] = 5; }),
              "weight_hh_l0: expected shape (" + rows +
                  ", 7) = (gates * hidden_size, hidden_size), got (" + rows + ", 5)");
    EXPECT_EQ(forward([=](ForwardArgs& a) { a.params[3 + more] = {}; }).rfind("bias_hh_l0: ", 0),
              0u);
    EXPECT_EQ(forward([](ForwardArgs& a) {
                a.params.resize(2);
              }).rfind("params: expected " + std::to_string(4 + more), 0),
              0u);
    EXPECT_TRUE(buffers.outputs_untouched());
  }
}

TEST(DenseErrors, StrategiesOfTheOtherKind) {
  const Context context = make_context(1);
  for (LayerOptions options : all_variants()) {
    options = dense_case(options, 7).layer;
    fit(options);
    const Layer layer(options);
    for (Strategy strategy : dispatch::kStrategies) {
      const std::string words =
          message<value_error>([&] { layer.plan(context, 10, 2, Mode::inference, strategy); });
      const std::vector<Way> fit = ways(options);
      if (std::find(fit.begin(), fit.end(), strategy) != fit.end()) {
        EXPECT_EQ(words, "nothing was thrown") << name(strategy);
      } else if (!(on_cuda() && is_dense(options) && strategy == Strategy::persistent)) {
        EXPECT_EQ(words.rfind("strategy: '" + std::string(name(strategy)) + "' cannot run: ", 0),
                  0u)
            << words;
      }
    }
  }
  EXPECT_EQ(message<value_error>([&] {
              linear_scan_plan(context, {10, 1, 2, Dtype::float32}, Strategy::step_loop);
            }).rfind("strategy: 'step_loop'", 0),
            0u);
}

}  // namespace
}  // namespace scanrnn::test
