// SPDX-License-Identifier: Apache-2.0
// Checks of what says which steps of a batch there are.
#pragma once

#include "scanrnn/layer.h"

namespace scanrnn {

// The same with `reset` as [T,B]. On the CPU values are looked at, too, and on CUDA, which takes a
// wait for the device, where the environment has SCANRNN_CHECK=1.
Ragged check_ragged(const Ragged& ragged, const dispatch::Problem& problem, bool batch_first,
                    const Context& context);
// `states`: of the pool.
TensorView check_state_indices(const TensorView& indices, std::int64_t batch, std::int64_t states,
                               const Context& context);

}  // namespace scanrnn
