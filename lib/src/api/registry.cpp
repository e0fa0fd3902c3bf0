// SPDX-License-Identifier: Apache-2.0
// The registry: cells.def as data, and what the headers of the cells say, which the build includes
// before this file.
#include "scanrnn/registry.h"

#include "scanrnn/cells/activation.h"
#include "scanrnn/error.h"

namespace scanrnn {
namespace {

// What lines of both kinds begin with.
template <class... Options>
CellInfo named(Cell cell, const char* name, const char* option, cell::Variants<Options...>,
               std::vector<std::string> rows) {
  CellInfo out{};
  out.cell = cell;
  out.name = name;
  out.variant_option = option;
  out.variants = {Options::name...};
  out.gates = out.bias_gates = out.preactivations = static_cast<int>(rows.size());
  out.row_order = std::move(rows);
  out.states = 1;
  out.fresh = {0};
  return out;
}

template <template <class> class CellOf, class First, class... Options>
CellInfo linear(Cell cell, const char* name, const char* option,
                cell::Variants<First, Options...> variants, int bias_gates, const char* vectors,
                std::vector<std::string> rows) {
  using C = CellOf<First>;
  CellInfo out = named(cell, name, option, variants, std::move(rows));
  out.recurrence = C::kDiagonal ? dispatch::Recurrence::diagonal : dispatch::Recurrence::linear;
  out.bias_gates = bias_gates;
  out.readout = C::kReadout;
  out.highway = C::kHighway || C::kReadsOwn;
  out.square = C::kReadsOwn;
  out.vectors = C::kVectors;
  out.vectors_name = vectors;
  return out;
}

template <template <class> class CellOf, class First, class... Options>
CellInfo dense(Cell cell, const char* name, const char* option,
               cell::Variants<First, Options...> variants, int states, int preactivations,
               const char* vectors, std::vector<std::string> rows) {
  using C = CellOf<First>;
  CellInfo out = named(cell, name, option, variants, std::move(rows));
  out.recurrence = dispatch::Recurrence::dense;
  out.states = states;
  out.fresh.clear();
  for (int i = 0; i < states; ++i) out.fresh.push_back(C::fresh(i));
  out.vectors = C::kVectors;
  out.vectors_name = vectors;
  out.preactivations = preactivations;
  return out;
}

}  // namespace

const std::vector<CellInfo>& cells() {
  static const std::vector<CellInfo> all = [] {
    std::vector<CellInfo> out = {
#define SCANRNN_LINEAR_CELL(name, option, list, bias_gates, vectors, ...) \
  linear<cell::name>(Cell::name, #name, option, cell::list(), bias_gates, vectors, {__VA_ARGS__}),
#define SCANRNN_DENSE_CELL(name, option, list, states, preactivations, vectors, ...)          \
  dense<cell::name>(Cell::name, #name, option, cell::list(), states, preactivations, vectors, \
                    {__VA_ARGS__}),
#include "scanrnn/cells.def"
    };
#define SCANRNN_CELL_OPTION(name, of, flag)             \
  out[static_cast<std::size_t>(Cell::name)].base = #of; \
  out[static_cast<std::size_t>(Cell::name)].option = flag;
#include "scanrnn/cells.def"
    return out;
  }();
  return all;
}

const CellInfo& info(Cell cell) {
  const auto number = static_cast<std::size_t>(cell);
  if (number < cells().size()) return cells()[number];
  throw value_error("cell: expected an index below " + std::to_string(kCellCount) + ", got " +
                    std::to_string(number));
}

const CellInfo& find_cell(const std::string& name) {
  for (const CellInfo& cell : cells()) {
    if (cell.name == name) return cell;
  }
  std::string known;
  for (const CellInfo& cell : cells()) known += (known.empty() ? "" : ", ") + cell.name;
  throw value_error("cell: expected one of " + known + ", got '" + name + "'");
}

}  // namespace scanrnn
