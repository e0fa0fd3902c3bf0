// SPDX-License-Identifier: Apache-2.0
// The kernels of the bare scan, as kernels_test.cpp has those of layers: each on a small case of
// its own, in memory that nobody has set.
#include "support/cuda.h"
#include "support/unset.h"

namespace scanrnn::test {
namespace {

using dispatch::Plan;
using dispatch::Strategy;

// The bare scan: h_t = h_{t-1} / 2 + b from 0 on, which is b (2 - 2^(1-t)), with b of each row its
// own.
struct SmallScan {
  const char* kernel;
  Strategy strategy;
  bool across_blocks;
  std::int64_t steps, rows;
  bool along_lanes = false;
  bool packed = false;  // each row's steps, and then the next row's

  std::vector<std::int64_t> sizes() const { return {steps, rows}; }
  TensorView laid(TensorView view) const {
    if (packed) view.strides = {1, steps, 0};
    return view;
  }
  // The step of an element in memory, and b of its row.
  std::int64_t step_of(std::size_t i) const {
    const auto at = static_cast<std::int64_t>(i);
    return packed ? at % steps : at / rows;
  }
  double b_of(std::size_t i) const {
    const auto at = static_cast<std::int64_t>(i);
    return 1 + static_cast<double>((packed ? at / steps : at % rows) % 7) / 8;
  }
  Plan plan(Context& context, Dtype dtype, ScanForm form) const {
    Plan out = linear_scan_plan(context, {steps, 1, rows, dtype, form, true, packed}, strategy);
    out.across_blocks = across_blocks;
    out.along_lanes = along_lanes;
    return out;
  }
};
std::ostream& operator<<(std::ostream& out, const SmallScan& s) { return out << s.kernel; }

class CudaScanKernelsTest : public CudaTest, public testing::WithParamInterface<SmallScan> {};

TEST_P(CudaScanKernelsTest, OnASmallCase) {
  const SmallScan& s = GetParam();
  Context& context = shared_context(1);
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
    for (const ScanForm form : {ScanForm::linear, ScanForm::log, ScanForm::log_output}) {
      const bool log_form = form != ScanForm::linear, log_states = form == ScanForm::log_output;
      Unset memory(context);
      const auto laid = [&](const Values& values) {
        return s.laid(memory.given(dtype, s.sizes(), values));
      };
      const auto given = [&](double value) {
        return laid(Values(static_cast<std::size_t>(s.steps * s.rows), value));
      };
      const auto unset = [&] { return s.laid(memory.unset(dtype, s.sizes())); };
      Values b(static_cast<std::size_t>(s.steps * s.rows));
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = log_form ? std::log(s.b_of(i)) : s.b_of(i);
      ScanArgs args;
      args.a = given(log_form ? std::log(0.5) : 0.5);
      args.b = laid(b);
      args.h = unset();
      if (log_states) args.sign_h = unset();
      args.form = form;
      const Plan plan = s.plan(context, dtype, form);
      args.workspace = memory.span(linear_scan_workspace(plan));
      linear_scan(context, plan, args);
      const Values got = memory.values(args.h);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double t = static_cast<double>(s.step_of(i)) + 1;
        const double h = log_states ? std::exp(got[i]) : got[i];
        ASSERT_NEAR(h / s.b_of(i), 2 - std::exp2(1 - t), 0.02) << name(dtype) << " at " << i;
      }
      // The cotangents of the inputs: of the last step the given one, or its share.
      ScanBackwardArgs back;
      back.form = form;
      back.a = args.a;
      if (log_form) back.b = args.b;
      back.h = args.h;
      back.sign_h = args.sign_h;
      back.dh = given(1.0);
      back.da = unset();
      back.db = unset();
      back.workspace = memory.span(linear_scan_workspace(plan));
      linear_scan_backward(context, plan, back);
      const Values db = memory.values(back.db), da = memory.values(back.da);
      for (std::size_t i = 0; i < db.size(); ++i) {
        const bool last = s.step_of(i) + 1 == s.steps;
        const double t = static_cast<double>(s.step_of(i)) + 1;
        const double share = log_states ? 1 / (2 - std::exp2(1 - t)) : log_form ? s.b_of(i) : 1;
        if (last) {
          ASSERT_NEAR(db[i], share, 0.02) << name(dtype) << " at " << i;
        }
        ASSERT_TRUE(std::isfinite(da[i])) << name(dtype) << " at " << i;
      }
    }
  }
}
// Zeros behind decays whose product is beyond every number, then the same h.
TEST_P(CudaScanKernelsTest, ZerosStay) {
  const SmallScan& s = GetParam();
  Context& context = shared_context(1);
  const std::int64_t first = s.steps * 3 / 4;
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
    Unset memory(context);
    const auto given = [&](const auto& at_step) {
      Values values(static_cast<std::size_t>(s.steps * s.rows));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = at_step(s.step_of(i));
      return s.laid(memory.given(dtype, s.sizes(), values));
    };
    ScanArgs args;
    args.a = given([&](std::int64_t t) {
      return t < first ? (t % 2 ? 1e30 : -1e30) : t == first ? 0.0 : 0.5;
    });
    args.b = given([&](std::int64_t t) { return t < first ? 0.0 : 1.0; });
    args.h = s.laid(memory.unset(dtype, s.sizes()));
    const Plan plan = s.plan(context, dtype, ScanForm::linear);
    args.workspace = memory.span(linear_scan_workspace(plan));
    linear_scan(context, plan, args);
    const Values got = memory.values(args.h);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto t = static_cast<double>(s.step_of(i) - first);
      ASSERT_NEAR(got[i], t < 0 ? 0 : 2 - std::exp2(-t), 0.02) << name(dtype) << " at " << i;
    }
  }
}
// An odd number of rows has no pairs; so many as those of pairs and words have them outside the
// device scan, and those of words do not all begin with vectors.
const SmallScan kScans[] = {
    {"sequential", Strategy::fused_sequential, false, 37, 70},
    {"block", Strategy::parallel_scan, false, 150, 70},
    {"device", Strategy::parallel_scan, true, 600, 70},
    {"device_odd", Strategy::parallel_scan, true, 600, 71},
    {"sequential_pairs", Strategy::fused_sequential, false, 9, 256 * 200},
    {"short", Strategy::fused_sequential, false, 5, 70},
    {"short_of_two", Strategy::fused_sequential, false, 2, 70},
    {"short_pairs", Strategy::fused_sequential, false, 3, 256 * 200},
    {"block_pairs", Strategy::parallel_scan, false, 9, 256 * 200},
    {"sequential_words", Strategy::fused_sequential, false, 17, 256 * 200 + 2},
    {"block_words", Strategy::parallel_scan, false, 17, 256 * 200 + 2},
    {"lanes", Strategy::parallel_scan, false, 1700, 1, true},
    {"lines", Strategy::parallel_scan, false, 30, 1, true},
    {"packed", Strategy::parallel_scan, false, 29, 90, true, true},
    {"few_of_one", Strategy::fused_sequential, false, 1, 90},
    {"few_of_two", Strategy::parallel_scan, false, 2, 90, true, true},
    {"few_of_four", Strategy::parallel_scan, false, 4, 90, true, true},
    {"lanes_device", Strategy::parallel_scan, true, 20000, 3, true},
    {"no_steps", Strategy::automatic, false, 0, 70},
    {"no_rows", Strategy::automatic, false, 9, 0},
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaScanKernelsTest, testing::ValuesIn(kScans),
                         [](const auto& of) { return std::string(of.param.kernel); });

}  // namespace
}  // namespace scanrnn::test
