// SPDX-License-Identifier: Apache-2.0
// Checks of what says which steps of a batch there are.
#pragma once

#include <utility>

#include "scanrnn/layer.h"

namespace scanrnn {

// A user's [B,T,.] as the [T,B,.] that everything below the API sees, and packed tokens, [T,.],
// as those of one line, [T,1,.].
inline TensorView time_first(TensorView view, bool batch_first, dispatch::Batch layout) {
  if (layout == dispatch::Batch::packed) {
    for (int axis = view.rank; axis > 1; --axis) {
      view.sizes[static_cast<std::size_t>(axis)] = view.sizes[static_cast<std::size_t>(axis - 1)];
      view.strides[static_cast<std::size_t>(axis)] =
          view.strides[static_cast<std::size_t>(axis - 1)];
    }
    view.sizes[1] = 1;
    view.strides[1] = 0;
    ++view.rank;
  } else if (batch_first) {
    std::swap(view.sizes[0], view.sizes[1]);
    std::swap(view.strides[0], view.strides[1]);
  }
  return view;
}

// The same with `reset` as [T,B]. On the CPU values are looked at, too, and on CUDA, which takes a
// wait for the device, where the environment has SCANRNN_CHECK=1.
Ragged check_ragged(const Ragged& ragged, const dispatch::Problem& problem, bool batch_first,
                    const Context& context);
// `states`: of the pool.
TensorView check_state_indices(const TensorView& indices, std::int64_t batch, std::int64_t states,
                               const Context& context);

}  // namespace scanrnn
