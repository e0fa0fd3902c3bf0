// SPDX-License-Identifier: Apache-2.0
// A layer's calls for a caller that makes the same one many times: what a plan needs is counted
// once, and not again in each call.
#pragma once

#include "scanrnn/layer.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

struct CountedPlan {
  dispatch::Plan plan;
  Sizes sizes;  // of this plan, by Layer::sizes
};

// What Layer's functions of the same name do, with the same errors. Workspace and reserve are
// checked against `counted.sizes`.
void forward(const Layer& layer, Context& context, const CountedPlan& counted,
             const ForwardArgs& args);
void backward(const Layer& layer, Context& context, const CountedPlan& counted,
              const BackwardArgs& args);
void step(const Layer& layer, Context& context, const CountedPlan& counted,
          const ForwardArgs& args);

}  // namespace scanrnn
#pragma GCC visibility pop
