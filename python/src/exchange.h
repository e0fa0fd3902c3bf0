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

// What DLPack calls its capsules.
inline constexpr const char* kVersionedCapsule = "dltensor_versioned";
inline constexpr const char* kLegacyCapsule = "dltensor";

void bind_exchange(pybind11::module_& m);      // exchange.cpp
void bind_export(pybind11::module_& m);        // export.cpp
void bind_tensor_calls(pybind11::module_& m);  // tensor_calls.cpp
void bind_jax_ffi(pybind11::module_& m);       // jax_ffi.cpp

}  // namespace scanrnn
