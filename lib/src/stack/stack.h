// SPDX-License-Identifier: Apache-2.0
// Layers and directions of a stack, one after the other, over any backend.
#pragma once

#include "scanrnn/layer.h"
#include "stack/backend.h"

namespace scanrnn {

// Checked arguments; tensors that are [T,B,.] in any layout. With arenas that only count, the
// memory is taken and nothing is computed: this is how sizes() knows.
struct Stack {
  const LayerOptions& options;
  const dispatch::Plan& plan;
  Backend& backend;
  Arena& workspace;
  Arena& reserve;

  void forward(const ForwardArgs& args);
  void backward(const BackwardArgs& args);
};

// View of one entry of the first axis; of [B,H] out of [L*D,B,H], say.
TensorView entry(const TensorView& view, Index index);

}  // namespace scanrnn
