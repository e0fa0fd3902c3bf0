// SPDX-License-Identifier: Apache-2.0
// Checks of what says which steps of a batch there are.
#pragma once

#include "scanrnn/layer.h"

namespace scanrnn {

// The same with `reset` as [T,B]. On the CPU values are looked at, too.
Ragged check_ragged(const Ragged& ragged, const dispatch::Problem& problem, bool batch_first,
                    Device device);
// `states`: of the pool.
void check_state_indices(const TensorView& indices, std::int64_t batch, std::int64_t states,
                         Device device);

}  // namespace scanrnn
