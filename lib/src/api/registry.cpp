// SPDX-License-Identifier: Apache-2.0
// The registry: cells.def as data.
#include "scanrnn/registry.h"

#include "scanrnn/cells/activation.h"
#include "scanrnn/error.h"

namespace scanrnn {
namespace {

template <class... Options>
std::vector<std::string> names(cell::Variants<Options...>) {
  return {Options::name...};
}

CellInfo linear(Cell cell, const char* name, const char* option, std::vector<std::string> variants,
                int bias_gates, bool readout, bool highway, std::vector<std::string> rows) {
  const int gates = static_cast<int>(rows.size());
  return {
      cell,    name,   dispatch::Recurrence::linear, gates,          bias_gates, gates, 1, readout,
      highway, option, std::move(variants),          std::move(rows)};
}

CellInfo dense(Cell cell, const char* name, const char* option, std::vector<std::string> variants,
               int states, int preactivations, std::vector<std::string> rows) {
  const int gates = static_cast<int>(rows.size());
  return {cell,
          name,
          dispatch::Recurrence::dense,
          gates,
          gates,
          preactivations,
          states,
          false,
          false,
          option,
          std::move(variants),
          std::move(rows)};
}

}  // namespace

const std::vector<CellInfo>& cells() {
  static const std::vector<CellInfo> all = {
#define SCANRNN_LINEAR_CELL(name, option, list, bias_gates, readout, highway, ...)     \
  linear(Cell::name, #name, option, names(cell::list()), bias_gates, readout, highway, \
         {__VA_ARGS__}),
#define SCANRNN_DENSE_CELL(name, option, list, states, preactivations, ...) \
  dense(Cell::name, #name, option, names(cell::list()), states, preactivations, {__VA_ARGS__}),
#include "scanrnn/cells.def"
  };
  return all;
}

const CellInfo& info(Cell cell) { return cells().at(static_cast<std::size_t>(cell)); }

const CellInfo& find_cell(const std::string& name) {
  std::string known;
  for (const CellInfo& cell : cells()) {
    if (cell.name == name) return cell;
    known += (known.empty() ? "" : ", ") + cell.name;
  }
  throw value_error("cell: expected one of " + known + ", got '" + name + "'");
}

}  // namespace scanrnn
