// SPDX-License-Identifier: Apache-2.0
// Memory of every array library as the library's views, and the calls that take it: nothing is
// copied, nothing is waited for, and everything is enqueued on the stream that the caller names.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "scanrnn/memory.h"
#include "scanrnn/tensor.h"

namespace scanrnn {

namespace py = pybind11;

// A view, and what keeps its memory alive for as long as this object lives.
struct Tensor {
  TensorView view;
  std::shared_ptr<void> owner;
};

// Many of them, such as a layer's parameters, which are looked at once for all calls.
struct Tensors {
  std::vector<TensorView> views;
  py::object held;  // what they are views of
};

// What an argument of a call is. `name` is that of errors. A view of an array does not keep it: the
// caller does, until the call returns. None is the absent tensor.
//   Tensor                      as it is
//   NumPy's array               its memory
//   an array with DLPack's      its memory, safe to use on its library's current stream:
//   functions in C              torch's tensors
TensorView view_of(const char* name, py::handle value);
// A sequence of arguments, or Tensors.
std::vector<TensorView> views_of(const char* name, py::handle values);
// Memory to work in: a Buffer, an array of bytes with DLPack's functions in C, or a tuple of
// address, number of bytes and what keeps them. None is none.
Span span_of(const char* name, py::handle value);
TensorView view_of(const py::array& array);

// What DLPack calls its capsules.
inline constexpr const char* kVersionedCapsule = "dltensor_versioned";
inline constexpr const char* kLegacyCapsule = "dltensor";

void bind_exchange(py::module_& m);      // exchange.cpp
void bind_export(py::module_& m);        // export.cpp
void bind_placement(py::module_& m);     // placement.cpp
void bind_tensor_calls(py::module_& m);  // tensor_calls.cpp
void bind_jax_ffi(py::module_& m);       // jax_ffi.cpp

}  // namespace scanrnn
