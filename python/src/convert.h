// SPDX-License-Identifier: Apache-2.0
// Between Python's values and the library's: names, arrays, descriptions. Nothing here computes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "names.h"
#include "scanrnn/memory.h"
#include "scanrnn/scanrnn.h"

namespace scanrnn {

namespace py = pybind11;
using MaybeArray = std::optional<py::array>;
using States = std::vector<MaybeArray>;  // h, and c of a pair; empty: there is none

// ---- memory

inline Dtype dtype_of(const py::dtype& dtype) {
  switch (dtype.num()) {  // the numbers of NumPy's own types are part of its ABI
    case py::detail::npy_api::NPY_FLOAT_:
      return Dtype::float32;
    case py::detail::npy_api::NPY_DOUBLE_:
      return Dtype::float64;
    default:
      return parse_dtype(py::str(py::object(dtype.attr("name"))));
  }
}

inline TensorView view(const py::array& array) {
  if (array.ndim() > kMaxRank) {
    throw value_error("an array: expected at most " + std::to_string(kMaxRank) + " axes, got " +
                      std::to_string(array.ndim()));
  }
  TensorView out;
  out.data = const_cast<void*>(array.data());
  out.dtype = dtype_of(array.dtype());
  out.rank = static_cast<int>(array.ndim());
  for (int i = 0; i < out.rank; ++i) {
    out.sizes[i] = array.shape(i);
    out.strides[i] = array.strides(i) / array.itemsize();
  }
  return out;
}

// The tensors of one call: the arrays' own memory on the CPU, copies in a GPU's memory elsewhere.
// Memory belongs to the default stream, which outlives every context.
class Tensors {
 public:
  explicit Tensors(Context& context)
      : context_(context), on_host_(context.options().device.kind == Device::Kind::cpu) {}

  TensorView in(const MaybeArray& array) {
    if (!array) return {};
    if (on_host_) return view(*array);
    const py::array packed = py::array::ensure(*array, py::array::c_style);
    const TensorView host = view(packed);
    const py::gil_scoped_release unlocked;
    const TensorView out = place(host, packed.nbytes());
    buffers_.back().upload(host.data, buffers_.back().bytes());
    return out;
  }
  // A contiguous array, filled by finish().
  TensorView out(py::array& array) {
    const TensorView host = view(array);
    if (on_host_) return host;
    results_.emplace_back(buffers_.size(), host.data);
    return place(host, array.nbytes());
  }
  // Waits for the results; the interpreter's lock need not be held.
  void finish() const {
    for (const auto& [index, host] : results_)
      buffers_[index].download(host, buffers_[index].bytes());
  }
  State in(const States& states) {
    return {states.size() > 0 ? in(states[0]) : TensorView{},
            states.size() > 1 ? in(states[1]) : TensorView{}};
  }
  State out(States& states) {
    return {out(states.at(0).value()), states.size() > 1 ? out(states[1].value()) : TensorView{}};
  }
  // The copies, to outlive the call.
  std::vector<Buffer> take() { return std::move(buffers_); }

 private:
  TensorView place(TensorView host, std::size_t bytes) {
    buffers_.emplace_back(context_, bytes);
    host.data = buffers_.back().data();
    host.device = context_.options().device;
    return host;
  }

  Context& context_;
  bool on_host_;
  std::vector<Buffer> buffers_;
  std::vector<std::pair<std::size_t, void*>> results_;
};

// ---- plans and registry

inline const char* name_of(dispatch::Recurrence kind) {
  switch (kind) {
    case dispatch::Recurrence::linear:
      return "linear";
    case dispatch::Recurrence::diagonal:
      return "diagonal";
    case dispatch::Recurrence::dense:
      return "dense";
  }
  return "";
}

inline const char* name_of(dispatch::Reason reason) {
  switch (reason) {
    case dispatch::Reason::forced:
      return "forced";
    case dispatch::Reason::empty:
      return "empty";
    case dispatch::Reason::measured:
      return "measured";
    case dispatch::Reason::predicted:
      return "predicted";
    case dispatch::Reason::no_rule:
      return "no_rule";
    case dispatch::Reason::every_step:
      return "every_step";
    case dispatch::Reason::on_chip:
      return "on_chip";
    case dispatch::Reason::not_on_chip:
      return "not_on_chip";
    case dispatch::Reason::many_lines:
      return "many_lines";
    case dispatch::Reason::few_steps:
      return "few_steps";
  }
  return "";
}

inline py::tuple describe(const CellInfo& info) {
  return py::make_tuple(info.name, name_of(info.recurrence), info.gates, info.bias_gates,
                        info.states, info.highway, info.variant_option,
                        py::tuple(py::cast(info.variants)), py::tuple(py::cast(info.row_order)));
}

inline py::tuple describe(const DeviceInfo& info) {
  return py::make_tuple(name(info.device), info.name, info.units, info.memory, info.architecture);
}

template <class Items>
py::list describe_all(const Items& items) {
  py::list out;
  for (const auto& item : items) out.append(describe(item));
  return out;
}

}  // namespace scanrnn
