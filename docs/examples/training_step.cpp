// SPDX-License-Identifier: Apache-2.0
// Training: forward, loss, backward, an SGD update. A layer learns to do what another one of its
// kind does with random sequences; the program fails unless the loss falls to a tenth.
#include <cmath>
#include <cstdio>

#include "tensor.h"

namespace {

constexpr std::int64_t kSteps = 64, kBatch = 16, kInput = 8, kHidden = 16;
constexpr int kUpdates = 200;
constexpr float kRate = 0.5f;

// A layer's parameters or their gradients, and everything that a call needs of them.
struct Parameters {
  std::vector<Tensor> tensors;
  std::vector<scanrnn::TensorView> views;

  Parameters(scanrnn::Context& context, const scanrnn::Layer& layer) {
    for (const scanrnn::ParameterInfo& info : layer.parameters()) {
      tensors.emplace_back(context, info.sizes);
      views.push_back(tensors.back().view());
    }
  }
  void randomise(std::mt19937& random, float bound) {
    for (Tensor& tensor : tensors) tensor.set(uniform(random, tensor.count(), bound));
  }
};

}  // namespace

int main(int argc, char** argv) try {
  std::mt19937 random(1);
  scanrnn::Context context(where(argc, argv));
  scanrnn::LayerOptions options;
  options.cell = scanrnn::Cell::MinGRU;
  options.input_size = kInput;
  options.hidden_size = kHidden;
  const scanrnn::Layer layer(options);

  Parameters teacher(context, layer), params(context, layer), gradients(context, layer);
  teacher.randomise(random, 1.0f);
  params.randomise(random, 1 / std::sqrt(float{kHidden}));
  Tensor x(context, {kSteps, kBatch, kInput}), y(context, {kSteps, kBatch, kHidden});
  Tensor dy(context, {kSteps, kBatch, kHidden});

  const auto plan = layer.plan(context, kSteps, kBatch, scanrnn::Mode::training);
  std::printf("%s\n", explain(plan).c_str());
  const scanrnn::Sizes sizes = layer.sizes(plan);
  const scanrnn::Buffer workspace(context, sizes.workspace), reserve(context, sizes.reserve);

  scanrnn::ForwardArgs forward;
  forward.x = x.view();
  forward.y = y.view();
  forward.workspace = workspace.span();
  forward.reserve = reserve.span();  // forward leaves there what backward needs
  scanrnn::BackwardArgs backward;
  backward.params = params.views;
  backward.x = x.view();
  backward.y = y.view();
  backward.dy = dy.view();
  backward.dparams = gradients.views;
  backward.workspace = workspace.span();
  backward.reserve = reserve.span();

  float first = 0, loss = 0;
  for (int update = 0; update < kUpdates; ++update) {
    x.set(uniform(random, x.count(), 1.0f));
    forward.params = teacher.views;
    layer.forward(context, plan, forward);
    const std::vector<float> target = y.values();
    forward.params = params.views;
    layer.forward(context, plan, forward);

    // The mean square error and its cotangent.
    const std::vector<float> output = y.values();
    std::vector<float> cotangent(output.size());
    const float share = kHidden / static_cast<float>(output.size());  // a mean over tokens
    loss = 0;
    for (std::size_t i = 0; i < output.size(); ++i) {
      const float error = output[i] - target[i];
      loss += error * error * share;
      cotangent[i] = 2 * error * share;
    }
    dy.set(cotangent);
    layer.backward(context, plan, backward);

    for (std::size_t p = 0; p < params.tensors.size(); ++p) {
      std::vector<float> value = params.tensors[p].values();
      const std::vector<float> gradient = gradients.tensors[p].values();
      for (std::size_t i = 0; i < value.size(); ++i) value[i] -= kRate * gradient[i];
      params.tensors[p].set(value);
    }
    if (update == 0) first = loss;
    if (update % 20 == 0 || update + 1 == kUpdates) {
      std::printf("update %3d: loss %.4f\n", update, loss);
    }
  }
  return loss < first / 10 ? 0 : 1;
} catch (const scanrnn::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
