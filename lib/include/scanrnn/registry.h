// SPDX-License-Identifier: Apache-2.0
// What cells there are, as data: the tests, the bench and the Python classes are driven by it.
#pragma once

#include <string>
#include <vector>

#include "scanrnn/dispatch/plan.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

enum class Cell : std::uint8_t {
#define SCANRNN_CELL(name, ...) name,
#include "scanrnn/cells.def"
};

inline constexpr int kCellCount = 0
#define SCANRNN_CELL(...) +1
#include "scanrnn/cells.def"
    ;

struct CellInfo {
  Cell cell;
  std::string name;
  dispatch::Recurrence recurrence;
  int gates;                  // row blocks of H in weight_ih; dense: and in weight_hh
  int bias_gates;             // row blocks of H in bias_ih; dense: and in bias_hh
  int preactivations;         // row blocks of H that training keeps for each token
  int states;                 // tensors of the state: 1, h, 2, (h, c), or 4, (h, c, n, m)
  std::vector<double> fresh;  // each of them where there is no state before
  bool readout;               // the output differs from the state
  // Each step reads x of its own unit: where the layer's input size is not H one more row block
  // of it, a projection, or, if `square`, there is no such layer.
  bool highway, square;
  int vectors;                         // of one value a unit, in the parameter
  std::string vectors_name;            // "weight_hh"; empty where there are none
  std::string variant_option;          // "candidate", "activation"; empty where there is none
  std::vector<std::string> variants;   // the first one is the default, the only one has no name
  std::vector<std::string> row_order;  // names of the row blocks
  std::string base, option;  // in Python: what option=True makes of another cell, or empty
};

const std::vector<CellInfo>& cells();  // in the order of Cell
// Both throw value_error when there is none.
const CellInfo& info(Cell cell);
const CellInfo& find_cell(const std::string& name);

}  // namespace scanrnn
#pragma GCC visibility pop
