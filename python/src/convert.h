// SPDX-License-Identifier: Apache-2.0
// Between Python's values and the library's: names and descriptions. Nothing here computes.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "names.h"
#include "scanrnn/scanrnn.h"

namespace scanrnn {

namespace py = pybind11;

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
    case dispatch::Reason::adjacent_steps:
      return "adjacent_steps";
    case dispatch::Reason::no_rule:
      return "no_rule";
    case dispatch::Reason::every_step:
      return "every_step";
    case dispatch::Reason::whole_lines:
      return "whole_lines";
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

// The options that the cell has and not every other, with their defaults.
inline py::tuple describe_options(Cell cell) {
  py::list out;
  for (const OwnOption& option : own_options(cell)) {
    py::object value = py::float_(option.value);
    if (option.kind == OwnOption::Kind::flag) value = py::bool_(option.value != 0);
    if (option.kind == OwnOption::Kind::count) value = py::int_(static_cast<long>(option.value));
    out.append(py::make_tuple(option.name, value));
  }
  return py::tuple(out);
}

inline py::tuple describe(const CellInfo& info) {
  return py::make_tuple(info.name, name_of(info.recurrence), info.gates, info.bias_gates,
                        info.states, py::tuple(py::cast(info.fresh)), info.readout, info.highway,
                        info.square, info.vectors, info.vectors_name, info.variant_option,
                        py::tuple(py::cast(info.variants)), py::tuple(py::cast(info.row_order)),
                        info.base, info.option, describe_options(info.cell));
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
