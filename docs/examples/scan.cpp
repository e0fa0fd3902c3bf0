// SPDX-License-Identifier: Apache-2.0
// The forward algorithm of a chain that is seen a million times, by one scan over logarithms: how
// likely the observations are after each step, far below what any float holds. Beside it the same
// loop over logarithms in double.
#include <scanrnn/scanrnn.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  using namespace scanrnn;
  constexpr std::int64_t kSteps = 1000000;
  Context context;
  ScanShape shape;
  shape.steps = kSteps;
  shape.rows = 1;
  shape.form = ScanForm::log_output;
  const auto plan = linear_scan_plan(context, shape);

  // What comes in at a step is lost against what is there, but at the first.
  std::vector<float> log_a(kSteps), log_b(kSteps, -INFINITY), log_h(kSteps), sign_h(kSteps);
  log_b[0] = 0;
  for (std::int64_t t = 0; t < kSteps; ++t) {
    log_a[static_cast<std::size_t>(t)] = -0.5f - static_cast<float>(t % 101) / 100;
  }
  const Buffer workspace(context, linear_scan_workspace(plan));
  const auto view = [&](const std::vector<float>& values) {
    return TensorView::of(values.data(), Dtype::float32, {kSteps, 1});
  };
  ScanArgs args;
  args.form = shape.form;
  args.a = view(log_a);
  args.b = view(log_b);
  args.h = view(log_h);
  args.sign_h = view(sign_h);
  args.workspace = workspace.span();
  linear_scan(context, plan, args);

  double log_state = 0;
  for (std::size_t t = 1; t < log_a.size(); ++t) log_state += double{log_a[t]};
  std::printf("log-likelihood %.1f, in double %.1f\n", double{log_h.back()}, log_state);
  const bool right = std::fabs(double{log_h.back()} - log_state) <= 3e-7 * 21 * 1e6;
  return right && sign_h.back() == 1 ? 0 : 1;
}
