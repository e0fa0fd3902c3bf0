// SPDX-License-Identifier: Apache-2.0
// A user's program, with one include and one library: minGRU with zero weights has z = 1/2 and
// g(0) = 1/2 at every step, so h_t = h_{t-1}/2 + 1/4.
#include <scanrnn/scanrnn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main() {
  constexpr int steps = 4, batch = 2, size = 3;
  scanrnn::LayerOptions options;
  options.cell = scanrnn::Cell::MinGRU;
  options.input_size = options.hidden_size = size;
  const scanrnn::Layer layer(options);
  scanrnn::Context context;
  const auto plan = layer.plan(context, steps, batch, scanrnn::Mode::inference);
  std::puts(explain(plan).c_str());

  const auto view = [](std::vector<float>& data, std::initializer_list<std::int64_t> sizes) {
    return scanrnn::TensorView::of(data.data(), scanrnn::Dtype::float32, sizes);
  };
  std::vector<float> weight(2 * size * size), bias(2 * size), x(steps * batch * size, 1.0f);
  std::vector<float> y(steps * batch * size, -1.0f);
  scanrnn::ForwardArgs args;
  args.params = {view(weight, {2 * size, size}), view(bias, {2 * size})};
  args.x = view(x, {steps, batch, size});
  args.y = view(y, {steps, batch, size});
  args.workspace.bytes = layer.sizes(plan).workspace;
  args.workspace.data = std::aligned_alloc(256, args.workspace.bytes);
  layer.forward(context, plan, args);
  std::free(args.workspace.data);

  double h = 0;
  for (int t = 0; t < steps; ++t) {
    h = h / 2 + 0.25;
    for (int i = 0; i < batch * size; ++i) {
      const double error = std::abs(y[t * batch * size + i] - h);
      if (!(error <= 1e-6)) return std::printf("y[%d] is off by %g\n", t, error), 1;
    }
  }

  options.hidden_size = -1;  // what the library throws is caught by its type
  try {
    scanrnn::Layer{options};
  } catch (const scanrnn::value_error& e) {
    return std::puts(e.what()), 0;
  }
  return std::puts("a negative hidden_size was accepted"), 1;
}
