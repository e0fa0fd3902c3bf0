// SPDX-License-Identifier: Apache-2.0
// Memory of other libraries as the library's views, and the calls that take it: nothing is copied,
// nothing is waited for, and everything is enqueued on the stream that the caller names.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "scanrnn/tensor.h"

namespace scanrnn {

// A view, and what keeps its memory alive for as long as this object lives.
struct Tensor {
  TensorView view;
  std::shared_ptr<void> owner;
};

void bind_exchange(pybind11::module_& m);
void bind_jax_ffi(pybind11::module_& m);

}  // namespace scanrnn
