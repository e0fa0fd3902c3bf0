// SPDX-License-Identifier: Apache-2.0
// Gates that break naive scans, and long sequences of them. The weights pick, so the
// pre-activations are exactly what is asked for and all of the error is the recurrence's.
#include <gtest/gtest.h>

#include <cmath>

#include "support/cases.h"
#include "support/conform.h"
#include "support/oracle.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

Case picking_case(LayerOptions options, std::int64_t hidden) {
  Case c;
  c.layer = options;
  c.layer.hidden_size = hidden;
  c.layer.input_size = info(options.cell).gates * hidden;
  c.layer.bias = false;
  c.batch = 1;
  c.threads = 3;
  return c;
}

// CUDA keeps states in the tensors' dtype. float16 takes those below 3e-8 for zero, and with its
// sign a state loses the slope of relu.
bool loses_signs(const Case& c) {
  const auto& variants = info(c.layer.cell).variants;
  return on_cuda() && c.layer.dtype == Dtype::float16 &&
         variants[static_cast<std::size_t>(c.layer.variant)] == "relu";
}

// One reference, every strategy and domain.
void check_everywhere(Case c, const Data& data, const std::string& what) {
  const oracle::Answer want = oracle::run(c, data);
  for (const Way& way : ways(c.layer)) {
    for (Domain domain : {Domain::log, Domain::linear}) {
      if (domain == Domain::linear && way != Strategy::parallel_scan) continue;  // one code
      c.way = way;
      c.layer.domain = domain;
      const Result got = library(c, data);
      expect_forward(c, got, want, what + ": ");
      if (!loses_signs(c)) expect_backward(c, got, want, what + ": ");
    }
  }
}

class GatesTest : public testing::TestWithParam<GatePattern> {
 protected:
  void check(const LayerOptions& options, Dtype dtype, std::int64_t steps, std::int64_t hidden) {
    Case c = picking_case(options, hidden);
    c.layer.dtype = dtype;
    c.steps = steps;
    for (int start = 0; start < 3; ++start) {  // zeros, both signs, all negative
      c.h0 = start > 0;
      Random random(static_cast<std::uint64_t>(steps + start));
      Data data = picking_data(c, GetParam(), random);
      if (start == 2) {
        for (double& value : data.h0) value = -std::fabs(value);
      }
      check_everywhere(c, data, GetParam().name);
    }
  }
};

TEST_P(GatesTest, ShortSequences) {
  for (const LayerOptions& options : picking_variants()) {
    for (std::int64_t steps : {1, 2, 16, 17, 61}) check(options, Dtype::float32, steps, 5);
    check(options, Dtype::float64, 61, 5);
    check(options, Dtype::bfloat16, 61, 5);
    check(options, Dtype::float16, 61, 5);
  }
}

TEST_P(GatesTest, Thousands) {
  for (const LayerOptions& options : picking_variants()) {
    if (options.variant < 2) check(options, Dtype::float32, 4099, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Pattern, GatesTest, testing::ValuesIn(gate_patterns()),
                         [](const auto& info) { return info.param.name; });

class LongTest : public testing::TestWithParam<GatePattern> {};

TEST_P(LongTest, HundredThousandSteps) {
  for (const LayerOptions& options : picking_variants()) {
    if (options.variant > 0) continue;
    Case c = picking_case(options, 1);
    c.steps = 100003;
    Random random(5);
    check_everywhere(c, picking_data(c, GetParam(), random), GetParam().name);
  }
}

// "nearly_kept_random": rounding errors stay for a million steps.
TEST(VeryLong, MillionSteps) {
  Case c = picking_case({}, 1);
  c.steps = std::int64_t{1} << 20;
  Random random(6);
  check_everywhere(c, picking_data(c, gate_patterns()[6], random), "nearly_kept_random");
}

INSTANTIATE_TEST_SUITE_P(Pattern, LongTest, testing::ValuesIn(gate_patterns()),
                         [](const auto& info) { return info.param.name; });

// Opposite inputs that cancel in the state: the bound is relative to the largest state.
TEST(Cancellation, OppositeInputs) {
  for (const LayerOptions& options : picking_variants()) {
    const CellInfo& cell = info(options.cell);
    Case c = picking_case(options, 3);
    c.steps = 513;
    Random random(8);
    const GatePattern pattern{"", [](const LayerOptions& layer, Random& random) {
                                return gates_for(layer, 1e-3, random.bits() & 1 ? 2 : -2);
                              }};
    check_everywhere(c, picking_data(c, pattern, random), "cancelling " + cell.name);
  }
}

// A share of e^-200 is a number too: each value of one step is right to the end of the dtype,
// relative to itself. From no state the step is b, with a state of ones its gradient is a.
void expect_relative(const Case& c, const std::string& what, const Values& got,
                     const Values& want) {
  const Dtype dtype = c.layer.dtype;
  const bool wide = dtype == Dtype::float64;
  // A logit of 200 has so much of a rounding error; a smaller result is the exponential's bound.
  const double bound = 200 * (wide ? 0x1p-50 : 0x1p-21) + 2 * accuracy(dtype).rounding,
               tail = 200 * std::exp(wide ? -700 : -84);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(got[i] - want[i]);
    ASSERT_TRUE(error <= bound * std::fabs(want[i]) + tail)
        << what << '[' << i << "]: " << got[i] << ", not " << want[i] << "; " << text(c);
  }
}

// The parameters that do not pick.
void rest_of_zeros(const Case& c, Data& data) {
  const Layer layer(c.layer);
  const auto& parameters = layer.parameters();
  for (std::size_t i = data.params.size(); i < parameters.size(); ++i) {
    data.params.emplace_back(parameters[i].sizes[0] * c.layer.hidden_size, 0.0);
  }
}

// Gates that are exponentials: e^200 of them a step, and states that large sums have left.
TEST(Exponentials, OfAnySizeAreStable) {
  const GatePattern pattern{
      "", [](const LayerOptions& layer, Random& random) {
        Values out;
        for (int g = 0; g < info(layer.cell).gates; ++g) {
          out.push_back((random.bits() & 1 ? 1 : -1) * (random.bits() & 1 ? 30 : 200));
        }
        return out;
      }};
  LayerOptions options;
  options.cell = Cell::SLSTM;
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16}) {
    Case c = picking_case(options, 5);
    c.layer.dtype = dtype;
    c.steps = 61;
    for (const double size : {0.0, 1.0, 1e30}) {
      c.h0 = size > 0;
      Random random(10);
      Data data = picking_data(c, pattern, random);
      rest_of_zeros(c, data);
      for (std::size_t i = 0; i < c.more_states(); ++i) {
        if (c.h0) data.more0[i] = data.h0;
        data.dmoren[i] = data.dhn;
      }
      for (std::size_t i = 0; i < data.more0[0].size(); ++i) {
        data.more0[0][i] = rounded(data.more0[0][i] * size, dtype);
        data.more0[1][i] = rounded((1 + std::fabs(data.more0[1][i])) * size, dtype);
        data.more0[2][i] = 200;
      }
      check_everywhere(c, data, "exponential");
    }
  }
}

TEST(Tails, OfOneStepAreRelative) {
  const GatePattern pattern{"", [](const LayerOptions& layer, Random& random) {
                              Values out = random.uniform(info(layer.cell).gates, -200, 200);
                              for (double& value : out) value = std::round(value);
                              return out;
                            }};
  for (const LayerOptions& options : all_variants()) {
    if (info(options.cell).vectors > 0) continue;  // tests/cells has their tails
    for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16}) {
      Case c = picking_case(options, 5);
      c.layer.dtype = dtype;
      c.steps = 1;
      c.batch = 23;
      for (const bool h0 : {false, true}) {
        c.h0 = h0;
        Random random(9);
        Data data = picking_data(c, pattern, random);
        rest_of_zeros(c, data);
        const Values ones(static_cast<std::size_t>(c.states()), 1.0);
        data.dy.assign(data.dy.size(), 0.0);
        data.dhn = ones;
        if (h0) data.h0 = ones;
        for (std::size_t i = 0; i < c.more_states(); ++i) {
          if (h0) data.more0[i] = ones;
          data.dmoren[i] = ones;
        }
        // So that it does not cancel: what n gets by h is between -1 and 1.
        if (c.is_scaled()) data.dmoren[1].assign(ones.size(), 2.0);
        const oracle::Answer want = oracle::run(c, data);
        for (const Way& way : ways(options)) {
          for (const Domain domain : {Domain::log, Domain::linear}) {
            c.way = way;
            c.layer.domain = domain;
            const Result got = library(c, data);
            if (h0) {  // a state of ones cancels with a candidate of -1
              expect_relative(c, "dh_0", got.dh0, want.dh0);
              for (std::size_t i = 0; i < c.more_states(); ++i) {
                expect_relative(c, letter(i + 1), got.dmore0[i], want.dmore0[i]);
              }
            } else {
              expect_relative(c, "h_n", got.hn, want.hn);
              for (std::size_t i = 0; i < c.more_states(); ++i) {
                expect_relative(c, letter(i + 1), got.moren[i], want.moren[i]);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
