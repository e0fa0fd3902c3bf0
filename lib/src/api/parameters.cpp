// SPDX-License-Identifier: Apache-2.0
// The parameters that a layer has by its options.
#include "api/parameters.h"

#include <algorithm>

#include "api/check.h"
#include "stack/layer_call.h"

namespace scanrnn {

const char* axes_of(const ParameterInfo& parameter, const LayerOptions& o) {
  const auto is = [&](const char* begin) { return parameter.name.rfind(begin, 0) == 0; };
  if (is("bias") || is("norm_ih") || is("norm_hh")) return "(gates * hidden_size)";
  if (is("norm_c")) return "(hidden_size)";
  if (parameter.sizes.size() == 1) return "(vectors * hidden_size)";
  if (is("weight_hr")) return "(proj_size, hidden_size)";
  if (is("weight_pr")) return "(projection_size, layer's input size)";
  if (is("weight_hh")) {
    return o.proj_size > 0   ? "(gates * hidden_size, proj_size)"
           : o.num_heads > 1 ? "(gates * hidden_size, hidden_size / num_heads)"
                             : "(gates * hidden_size, hidden_size)";
  }
  return o.projection_size > 0 ? "(gates * hidden_size, projection_size)"
                               : "(gates * hidden_size, layer's input size)";
}

std::vector<ParameterInfo> parameters_of(const LayerOptions& options, const CellInfo& cell) {
  const int directions = options.bidirectional ? 2 : 1;
  const std::int64_t output = options.proj_size > 0 ? options.proj_size : options.hidden_size;
  std::vector<ParameterInfo> out;
  const std::int64_t hidden = options.hidden_size;
  for (int layer = 0; layer < options.num_layers; ++layer) {
    const std::int64_t input = layer == 0 ? options.input_size : directions * output;
    const std::int64_t reads = options.projection_size > 0 ? options.projection_size : input;
    const std::int64_t fed_back =
        options.proj_size > 0 ? options.proj_size : hidden / options.num_heads;
    const std::int64_t rows = cell.gates + (cell.highway && input != hidden ? 1 : 0);
    const auto what = [&] {
      return "hidden_size: weights of " + std::to_string(hidden) + " units of " +
             std::to_string(input) + " inputs";
    };
    check_countable(what, {rows, hidden, std::max(input, hidden), 64});
    const auto projection = [&] {
      return "projection_size: weights of " + std::to_string(reads) + " projections of " +
             std::to_string(input) + " inputs, and of " + std::to_string(hidden) +
             " units of these";
    };
    check_countable(projection, {options.projection_size, std::max(input, rows * hidden), 64});
    for (int direction = 0; direction < directions; ++direction) {
      const std::string suffix = "_l" + std::to_string(layer) + (direction ? "_reverse" : "");
      const bool dense = cell.recurrence == dispatch::Recurrence::dense;
      out.push_back({"weight_ih" + suffix, {rows * hidden, reads}});
      if (dense) out.push_back({"weight_hh" + suffix, {rows * hidden, fed_back}});
      if (cell.vectors > 0) {
        out.push_back({cell.vectors_name + suffix, {cell.vectors * hidden}});
      }
      if (options.bias) {
        out.push_back({"bias_ih" + suffix, {cell.bias_gates * hidden}});
        if (dense) out.push_back({"bias_hh" + suffix, {cell.bias_gates * hidden}});
      }
      for (std::size_t i = 0; options.layer_norm && i < norm_count(cell); ++i) {
        const bool of_sums = i < 2;
        out.push_back({kNormNames[i] + suffix, {(of_sums ? rows : 1) * hidden}});
      }
      if (options.proj_size > 0) {
        out.push_back({"weight_hr" + suffix, {options.proj_size, hidden}});
      }
      if (options.projection_size > 0) {
        out.push_back({"weight_pr" + suffix, {options.projection_size, input}});
      }
    }
  }
  return out;
}

}  // namespace scanrnn
