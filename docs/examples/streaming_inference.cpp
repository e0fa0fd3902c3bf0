// SPDX-License-Identifier: Apache-2.0
// Inference on a stream: chunks of any length come in, the state is carried from one to the next,
// and what comes out is what the whole sequence at once gives (or the program fails).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tensor.h"

namespace {

constexpr std::int64_t kSteps = 1000, kBatch = 2, kInput = 32, kHidden = 64;
constexpr float kAllowed = 1e-5f;  // outputs of this model stay below 2

std::vector<scanrnn::TensorView> views(const std::vector<Tensor>& tensors) {
  std::vector<scanrnn::TensorView> out;
  for (const Tensor& tensor : tensors) out.push_back(tensor.view());
  return out;
}

// Steps [first, first + count) of a [T,B,.] tensor, where they lie.
scanrnn::TensorView steps_of(scanrnn::TensorView view, std::int64_t first, std::int64_t count) {
  view.data = static_cast<float*>(view.data) + first * view.strides[0];
  view.sizes[0] = count;
  return view;
}

}  // namespace

int main(int argc, char** argv) try {
  std::mt19937 random(1);
  scanrnn::Context context(where(argc, argv));
  scanrnn::LayerOptions options;
  options.cell = scanrnn::Cell::MinGRU;
  options.input_size = kInput;
  options.hidden_size = kHidden;
  options.num_layers = 2;
  const scanrnn::Layer layer(options);

  std::vector<Tensor> params;  // random here; yours come from a file
  for (const scanrnn::ParameterInfo& info : layer.parameters()) {
    params.emplace_back(context, info.sizes);
    params.back().set(uniform(random, params.back().count(), 1 / std::sqrt(float{kHidden})));
  }
  const Tensor x(context, {kSteps, kBatch, kInput},
                 uniform(random, kSteps * kBatch * kInput, 1.0f));
  const Tensor whole(context, {kSteps, kBatch, kHidden}),
      streamed(context, {kSteps, kBatch, kHidden});

  // The whole sequence, for comparison.
  {
    const auto plan = layer.plan(context, kSteps, kBatch, scanrnn::Mode::inference);
    const scanrnn::Buffer workspace(context, layer.sizes(plan).workspace);
    scanrnn::ForwardArgs args;
    args.params = views(params);
    args.x = x.view();
    args.y = whole.view();
    args.workspace = workspace.span();
    layer.forward(context, plan, args);
    std::printf("whole:  %s\n", explain(plan).c_str());
  }

  // The stream. A state is [layers * directions, batch, hidden]; absent, it is zeros.
  const Tensor first_state(context, {2, kBatch, kHidden}),
      second_state(context, {2, kBatch, kHidden});
  scanrnn::TensorView state, next = first_state.view();
  const std::int64_t lengths[] = {1, 7, 64, 200};
  for (std::int64_t t = 0, i = 0; t < kSteps; ++i) {
    const std::int64_t count = std::min(lengths[i % 4], kSteps - t);
    const auto plan = layer.plan(context, count, kBatch, scanrnn::Mode::inference);
    const scanrnn::Buffer workspace(context, layer.sizes(plan).workspace);
    scanrnn::ForwardArgs args;
    args.params = views(params);
    args.x = steps_of(x.view(), t, count);
    args.h0.h = state;
    args.y = steps_of(streamed.view(), t, count);
    args.hn.h = next;
    args.workspace = workspace.span();
    layer.forward(context, plan, args);
    if (i < 4) std::printf("chunk:  %s\n", explain(plan).c_str());
    state = std::exchange(next, i % 2 == 0 ? second_state.view() : first_state.view());
    t += count;
  }

  const std::vector<float> want = whole.values(), got = streamed.values();
  float worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float error = std::fabs(got[i] - want[i]);
    if (!(error <= worst)) worst = error;  // this way round a NaN is kept
  }
  std::printf("largest difference between the stream and the whole: %g\n", worst);
  return worst <= kAllowed ? 0 : 1;
} catch (const scanrnn::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
