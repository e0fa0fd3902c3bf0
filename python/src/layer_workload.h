// SPDX-License-Identifier: Apache-2.0
// A layer of random parameters, forward or forward and backward.
#pragma once

#include "workload.h"

namespace scanrnn {

class LayerWorkload : public Workload {
 public:
  LayerWorkload(const Layer& layer, Device device, std::int64_t steps, std::int64_t batch,
                bool training, MatmulPrecision precision)
      : Workload(layer.options().dtype, device, precision),
        layer_(layer),
        steps_(steps),
        batch_(batch),
        mode_(training ? Mode::training : Mode::inference) {
    const LayerOptions& o = layer_.options();
    const auto tokens = static_cast<std::size_t>(steps * batch);
    const auto input = static_cast<std::size_t>(o.input_size);
    const auto width = static_cast<std::size_t>(layer_.directions() * layer_.output_size());
    x_ = random(tokens * input, 0);
    output_ = empty(tokens * width);
    // Weights of about 1 / sqrt(H), by the nearest power of two.
    int shift = 0;
    while (shift < 7 && (std::int64_t{2} << 2 * shift) <= o.hidden_size) ++shift;
    for (const ParameterInfo& parameter : layer_.parameters()) {
      std::size_t count = 1;
      for (std::int64_t size : parameter.sizes) count *= static_cast<std::size_t>(size);
      params_.push_back(random(count, shift));
      if (training) gradients_.push_back(empty(count));
    }
    if (training) {
      dy_ = random(tokens * width, 0);
      gradients_.push_back(empty(tokens * input));  // dx
    }
  }

 private:
  dispatch::Plan plan(Strategy strategy) const override {
    return layer_.plan(context_, steps_, batch_, mode_, strategy);
  }
  Sizes sizes(const dispatch::Plan& plan) const override { return layer_.sizes(plan); }

  TensorView tokens(const Tensor& tensor, std::int64_t width) const {
    const bool batch_first = layer_.options().batch_first;
    return view(tensor, {batch_first ? batch_ : steps_, batch_first ? steps_ : batch_, width});
  }
  // Views of as many tensors as there are parameters.
  std::vector<TensorView> views(const std::vector<Tensor>& tensors) const {
    std::vector<TensorView> out;
    for (std::size_t i = 0; i < layer_.parameters().size(); ++i) {
      const auto& sizes = layer_.parameters()[i].sizes;
      out.push_back(sizes.size() > 1 ? view(tensors[i], {sizes[0], sizes[1]})
                                     : view(tensors[i], {sizes[0]}));
    }
    return out;
  }

  void run(const Recorded& recorded) override {
    const LayerOptions& o = layer_.options();
    const std::int64_t width = layer_.directions() * layer_.output_size();
    ForwardArgs forward;
    forward.params = views(params_);
    forward.x = tokens(x_, o.input_size);
    forward.y = tokens(output_, width);
    forward.workspace = recorded.workspace.span();
    forward.reserve = recorded.reserve.span();
    layer_.forward(context_, recorded.plan, forward);
    if (mode_ == Mode::inference) return;
    BackwardArgs backward;
    backward.params = forward.params;
    backward.dparams = views(gradients_);
    backward.x = forward.x;
    backward.y = forward.y;
    backward.dy = tokens(dy_, width);
    backward.dx = tokens(gradients_.back(), o.input_size);
    backward.workspace = forward.workspace;
    backward.reserve = forward.reserve;
    layer_.backward(context_, recorded.plan, backward);
  }

  Layer layer_;
  std::int64_t steps_, batch_;
  Mode mode_;
  Tensor x_, dy_;
  std::vector<Tensor> params_;
};

}  // namespace scanrnn
