// SPDX-License-Identifier: Apache-2.0
// Layers with options whose steps are made by whole lines, for tests that need no oracle: those
// compare calls with one another.
#pragma once

#include "support/cases.h"

namespace scanrnn::test {

inline std::vector<LayerOptions> layers_by_lines() {
  std::vector<LayerOptions> out;
  for (const Cell cell : {Cell::RNN, Cell::LSTM, Cell::GRU, Cell::IndRNN}) {
    LayerOptions options;
    options.cell = cell;
    options.variant = cell == Cell::IndRNN ? 1 : 0;  // tanh, whose slope has no jump
    options.layer_norm = true;
    out.push_back(options);
  }
  LayerOptions reset;
  reset.cell = Cell::GRU;
  reset.reset_after = false;
  out.push_back(reset);
  return out;
}
// The same with heads, a projection and zoneout, whose states move by the mean.
inline std::vector<LayerOptions> layers_by_lines_and_more() {
  std::vector<LayerOptions> out = layers_by_lines();
  for (LayerOptions& options : out) {
    options.draws = false;
    const bool projects = info(options.cell).states == 2;
    if (projects) {
      options.proj_size = 3;
      options.zoneout_cell = 0.2;
    } else {
      options.zoneout = 0.3;
      if (is_dense(options)) options.num_heads = 3;
    }
  }
  LayerOptions headed;
  headed.cell = Cell::LSTM;
  headed.layer_norm = true;
  headed.num_heads = 3;
  headed.zoneout = headed.zoneout_cell = 0.25;
  headed.draws = false;
  out.push_back(headed);
  return out;
}

inline std::vector<LayerOptions> with_layers_by_lines(std::vector<LayerOptions> out) {
  for (const LayerOptions& options : layers_by_lines()) out.push_back(options);
  return out;
}
// The first two variants of every cell, and these.
inline std::vector<LayerOptions> few_layers() { return with_layers_by_lines(few_variants()); }

// What any of them can be forced to run by.
inline std::vector<Way> ways_of_layer(const LayerOptions& layer) {
  if (layer.layer_norm && !is_dense(layer)) return {dispatch::Strategy::fused_sequential};
  return ways(layer);
}

}  // namespace scanrnn::test
