// SPDX-License-Identifier: Apache-2.0
// What the bare recurrence refuses: each error names the argument, and nothing is written.
#include "support/scan_case.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

testing::AssertionResult begins(const std::string& text, const std::string& with) {
  return text.rfind(with, 0) == 0 ? testing::AssertionSuccess()
                                  : testing::AssertionFailure() << text;
}

class ScanErrors : public testing::Test {
 protected:
  ScanErrors() : context_(make_context(1)), random_(191) {}

  // What forward says when its arguments are changed so.
  template <class F>
  std::string forward(const ScanCase& c, F&& change) {
    return message([&] { run(c, draw(c, random_), context_, true, change); });
  }
  template <class F>
  std::string backward(const ScanCase& c, F&& change) {
    return message([&] { run(c, draw(c, random_), context_, true, [](ScanArgs&) {}, change); });
  }
  static ScanCase of(ScanForm form, Dtype dtype = Dtype::float32) {
    ScanCase c{6, 2, 4, dtype, form};
    c.reset_share = 0.1;
    return c;
  }

  Context context_;
  Random random_;
};

TEST_F(ScanErrors, WhatBelongsToAnotherForm) {
  const ScanCase linear = of(ScanForm::linear), log = of(ScanForm::log),
                 states = of(ScanForm::log_output);
  EXPECT_TRUE(begins(forward(linear, [](auto& a) { a.sign_b = a.b; }), "sign_b: it belongs to"));
  EXPECT_TRUE(begins(forward(linear, [](auto& a) { a.sign_h0 = a.h0; }), "sign_h_0: it belongs"));
  EXPECT_TRUE(begins(forward(linear, [](auto& a) { a.sign_h = a.h; }), "sign_h: it belongs to"));
  EXPECT_TRUE(begins(forward(log, [](auto& a) { a.sign_h0 = a.h0; }), "sign_h_0: it belongs to"));
  EXPECT_TRUE(begins(forward(log, [](auto& a) { a.sign_h = a.h; }), "sign_h: it belongs to"));
  EXPECT_TRUE(begins(forward(states, [](auto& a) { a.sign_h = {}; }), "sign_h: expected a tensor"));
  EXPECT_TRUE(begins(forward(states, [](auto& a) { a.h0 = {}; }), "sign_h_0: expected none"));
  EXPECT_TRUE(
      begins(forward(states, [](auto& a) { a.form = ScanForm::log; }), "plan: it was made"));
  EXPECT_TRUE(begins(forward(linear, [](auto& a) { a.form = ScanForm::log; }),
                     "plan: it was made for another dtype, form or device than float32, log and " +
                         name(test_device())));
}

TEST_F(ScanErrors, ShapesAndDtypes) {
  const ScanCase linear = of(ScanForm::linear), states = of(ScanForm::log_output),
                 complex = of(ScanForm::linear, Dtype::complex64);
  EXPECT_TRUE(begins(forward(linear, [](auto& a) { ++a.b.sizes[2]; }),
                     "b: expected shape (6, 2, 4) = (steps, lines, rows), got (6, 2, 5)"));
  EXPECT_TRUE(
      begins(forward(linear, [](auto& a) { --a.h0.sizes[0]; }), "h_0: expected shape (2, 4)"));
  EXPECT_TRUE(begins(forward(states, [](auto& a) { --a.h0.sizes[0]; }), "log_h_0: expected shape"));
  EXPECT_TRUE(begins(forward(states, [](auto& a) { a.b = {}; }), "log_b: expected a tensor"));
  EXPECT_TRUE(
      begins(forward(linear, [](auto& a) { --a.reset.sizes[0]; }), "reset: expected shape"));
  EXPECT_TRUE(begins(forward(linear, [](auto& a) { a.reset.dtype = Dtype::float32; }),
                     "reset: expected dtype bool, got float32"));
  EXPECT_TRUE(begins(forward(complex, [](auto& a) { a.h0.dtype = Dtype::float32; }),
                     "h_0: expected dtype complex64, got float32"));
  EXPECT_TRUE(begins(forward(complex, [](auto& a) { a.a.dtype = Dtype::float64; }),
                     "plan: it was made for another dtype, form or device than float64, linear"));
  EXPECT_TRUE(begins(forward(complex, [](auto& a) { a.a = {}; }), "a: expected a tensor of shape"));
  EXPECT_TRUE(begins(backward(linear, [](auto& a) { a.dh = {}; }), "dh: expected a tensor"));
  EXPECT_TRUE(begins(backward(states, [](auto& a) { --a.dh0.sizes[1]; }), "dlog_h_0: expected"));
  EXPECT_TRUE(begins(backward(states, [](auto& a) { --a.da.sizes[1]; }), "dlog_a: expected shape"));
}

TEST_F(ScanErrors, Memory) {
  const ScanCase c = of(ScanForm::linear);
  EXPECT_TRUE(begins(forward(c, [](auto& a) { a.a.strides[0] = -1; }),
                     "a: expected strides of at least 0, got stride -1 on axis 0"));
  EXPECT_TRUE(begins(forward(c, [](auto& a) { a.h.strides[1] = 0; }),
                     "h: expected elements that do not overlap, each stride larger than all that "
                     "lies within it, got stride 0 on axis 1"));
  EXPECT_TRUE(begins(forward(c, [](auto& a) { a.h.strides = {8, 3, 1}; }),
                     "h: expected elements that do not overlap, each stride larger than all that "
                     "lies within it, got stride 3 on axis 1"));
  EXPECT_TRUE(begins(forward(c, [](auto& a) { a.h.data = static_cast<char*>(a.h.data) + 1; }),
                     "h: expected an address"));
  EXPECT_TRUE(begins(forward(of(ScanForm::log_output), [](auto& a) { a.sign_h = a.h; }),
                     "sign_h: expected memory of its own, got that of log_h"));
  EXPECT_TRUE(begins(backward(c, [](auto& a) { a.db = a.da; }),
                     "db: expected memory of its own, got that of da"));
  EXPECT_TRUE(begins(forward(c, [](auto& a) { a.h.device = Device::cuda(3); }), "h: expected dev"));
  ScanCase long_one = c;
  long_one.way = {dispatch::Strategy::parallel_scan, Way::Split::across_blocks};
  EXPECT_TRUE(
      begins(forward(long_one, [](auto& a) { --a.workspace.bytes; }), "workspace: expected"));
}

TEST_F(ScanErrors, Plans) {
  const auto plan = [&](ScanShape shape) {
    return message([&] { linear_scan_plan(context_, shape); });
  };
  EXPECT_TRUE(begins(plan({-1, 1, 4}), "steps: expected a number >= 0, got -1"));
  EXPECT_TRUE(begins(plan({1, -1, 4}), "lines: expected a number >= 0, got -1"));
  EXPECT_TRUE(begins(plan({1, 1, -4}), "rows: expected a number >= 0, got -4"));
  for (ScanForm form : {ScanForm::log, ScanForm::log_output}) {
    EXPECT_TRUE(begins(plan({1, 1, 4, Dtype::complex64, form}), "log_a: expected a real dtype"));
  }
  EXPECT_TRUE(begins(plan({1, 1, 4, Dtype::boolean}), "a: expected floating-point numbers"));
  // complex64 is as large as float64, and yet another dtype.
  const ScanCase complex = of(ScanForm::linear, Dtype::complex64);
  EXPECT_TRUE(
      begins(forward(complex, [](auto& a) { a.a.dtype = a.b.dtype = a.h.dtype = Dtype::float64; }),
             "plan: it was made for another dtype"));
  // A plan for inference has no memory for backward.
  const ScanCase c = of(ScanForm::linear);
  const std::string words = message(
      [&] { linear_scan_backward(context_, plan_of(context_, c, false), ScanBackwardArgs{}); });
  EXPECT_TRUE(begins(words, "plan: it was not made for training")) << words;
}

TEST_F(ScanErrors, LayersAreReal) {
  for (Dtype dtype : {Dtype::complex64, Dtype::complex128, Dtype::boolean}) {
    LayerOptions options;
    options.input_size = options.hidden_size = 4;
    options.dtype = dtype;
    EXPECT_TRUE(begins(message([&] { Layer{options}; }), "dtype: expected a real floating-point"));
  }
}

// No steps leave the state as it was given: its cotangent is zero.
TEST_F(ScanErrors, NoStepsAreNoError) {
  for (ScanForm form : {ScanForm::linear, ScanForm::log, ScanForm::log_output}) {
    ScanCase c{0, 2, 3, Dtype::float32, form};
    const ScanNumbers got = run(c, draw(c, random_), context_);
    EXPECT_EQ(got.dh0, Numbers(6, Wide(0)));
  }
}

}  // namespace
}  // namespace scanrnn::test
