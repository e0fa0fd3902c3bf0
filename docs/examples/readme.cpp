// SPDX-License-Identifier: Apache-2.0
// The C++ of README.md, which is the region between the marks, in a program that checks its result:
// with weights of zero z = 1/2 and g(0) = 1/2, so a state of 1/2 stays as it is.
#include <scanrnn/scanrnn.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::int64_t steps = 100, batch = 4;
  std::vector<float> weight(2 * 64 * 32), bias(2 * 64), inputs(steps * batch * 32, 1.0f);
  std::vector<float> start(batch * 64, 0.5f), end(batch * 64), outputs(steps * batch * 64);
  const auto view = [](std::vector<float>& data, std::initializer_list<std::int64_t> sizes) {
    return scanrnn::TensorView::of(data.data(), scanrnn::Dtype::float32, sizes);
  };
  const std::vector<scanrnn::TensorView> params{view(weight, {2 * 64, 32}), view(bias, {2 * 64})};
  const auto x = view(inputs, {steps, batch, 32}), y = view(outputs, {steps, batch, 64});
  const scanrnn::State h0{view(start, {1, batch, 64}), {}}, hn{view(end, {1, batch, 64}), {}};

  // [readme]
  scanrnn::Context context;       // all threads of the CPU
  scanrnn::LayerOptions options;  // of one layer of minGRU
  options.input_size = 32, options.hidden_size = 64;
  const scanrnn::Layer layer(options);
  const auto plan = layer.plan(context, steps, batch, scanrnn::Mode::inference);
  const scanrnn::Buffer workspace(context, layer.sizes(plan).workspace);
  scanrnn::ForwardArgs args;
  args.params = params, args.x = x, args.y = y, args.h0 = h0, args.hn = hn;
  args.workspace = workspace.span();
  layer.forward(context, plan, args);
  std::puts(explain(plan).c_str());  // what ran, and why
  // [readme]

  for (float value : outputs) {
    if (!(std::fabs(value - 0.5f) <= 1e-6f)) return std::printf("%g is not 1/2\n", value), 1;
  }
  for (float value : end) {
    if (!(std::fabs(value - 0.5f) <= 1e-6f)) return std::printf("%g is not 1/2\n", value), 1;
  }
  return 0;
}
