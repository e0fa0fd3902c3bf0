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

CellInfo describe(Cell cell, const char* name, dispatch::Recurrence recurrence, const char* option,
                  std::vector<std::string> variants, int bias_gates, bool highway,
                  std::vector<std::string> rows) {
  return {cell,           name,    recurrence, static_cast<int>(rows.size()),
          bias_gates,     highway, option,     std::move(variants),
          std::move(rows)};
}

}  // namespace

const std::vector<CellInfo>& cells() {
  static const std::vector<CellInfo> all = {
#define SCANRNN_CELL(name, recurrence, option, list, bias_gates, highway, ...)               \
  describe(Cell::name, #name, dispatch::Recurrence::recurrence, option, names(cell::list()), \
           bias_gates, highway, {__VA_ARGS__}),
#include "scanrnn/cells.def"
#undef SCANRNN_CELL
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
