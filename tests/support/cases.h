// SPDX-License-Identifier: Apache-2.0
// The one generator of lengths, of options over the registry, and of adversarial gates.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/device.h"

namespace scanrnn::test {

// Around everything that a tile can get wrong.
inline std::vector<std::int64_t> lengths(std::int64_t tile, std::int64_t long_one) {
  std::vector<std::int64_t> out{0, 1, 2, tile - 1, tile, tile + 1, 61, long_one};
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  while (out.front() < 0) out.erase(out.begin());
  return out;
}

inline const std::vector<Dtype>& dtypes() {
  static const std::vector<Dtype> all{Dtype::float64, Dtype::float32, Dtype::bfloat16,
                                      Dtype::float16};
  return all;
}

// Every cell of the registry with each of its variants.
inline std::vector<LayerOptions> all_variants() {
  std::vector<LayerOptions> out;
  for (const CellInfo& cell : cells()) {
    for (std::size_t variant = 0; variant < cell.variants.size(); ++variant) {
      LayerOptions options;
      options.cell = cell.cell;
      options.variant = static_cast<int>(variant);
      out.push_back(options);
    }
  }
  return out;
}
// And the first two variants alone: one positive or plain, one signed or curved.
inline std::vector<LayerOptions> few_variants() {
  std::vector<LayerOptions> out = all_variants();
  out.erase(std::remove_if(out.begin(), out.end(), [](auto& o) { return o.variant > 1; }),
            out.end());
  return out;
}

inline bool is_dense(const LayerOptions& layer) {
  return info(layer.cell).recurrence == dispatch::Recurrence::dense;
}
inline bool is_linear(const LayerOptions& layer) {
  return info(layer.cell).recurrence == dispatch::Recurrence::linear;
}
// What a linear layer and the bare recurrence can be forced to run by; on CUDA a parallel scan is
// two kernels.
inline std::vector<Way> linear_ways() {
  std::vector<Way> out;
  for (dispatch::Strategy strategy : dispatch::kLinearStrategies) {
    if (on_cuda() && strategy == dispatch::Strategy::parallel_scan) {
      out.emplace_back(strategy, Way::Split::inside_blocks);
      out.emplace_back(strategy, Way::Split::across_blocks);
    } else {
      out.emplace_back(strategy);
    }
  }
  return out;
}
// And the bare recurrence alone; where rows are too many for lanes another kernel takes over.
inline std::vector<Way> scan_ways() {
  std::vector<Way> out = linear_ways();
  if (on_cuda()) {
    out.emplace_back(dispatch::Strategy::parallel_scan, Way::Split::lanes);
    out.emplace_back(dispatch::Strategy::parallel_scan, Way::Split::lanes_across_blocks);
  }
  return out;
}
// What any layer can.
inline std::vector<Way> ways(const LayerOptions& layer) {
  if (is_dense(layer)) return {dispatch::Strategy::step_loop};
  if (is_linear(layer)) return linear_ways();
  return {dispatch::Strategy::direct, dispatch::Strategy::fused_sequential};
}

// Two layers in two directions that draw all that training can.
Case drawing_case(const LayerOptions& options, const Way& way);

// The variants of dense cells alone, among the given ones.
inline std::vector<LayerOptions> dense_variants(std::vector<LayerOptions> of = all_variants()) {
  of.erase(std::remove_if(of.begin(), of.end(), [](auto& o) { return !is_dense(o); }), of.end());
  return of;
}
// What a test of a variant is called.
inline std::string variant_name(const testing::TestParamInfo<LayerOptions>& test) {
  return std::to_string(test.index) + "_" + info(test.param.cell).name;
}

// The variants of linear cells alone, for tests whose subject is the scan.
inline std::vector<LayerOptions> linear_variants() {
  std::vector<LayerOptions> out = all_variants();
  out.erase(std::remove_if(out.begin(), out.end(), [](auto& o) { return !is_linear(o); }),
            out.end());
  return out;
}
// And those whose pre-activations can be anything, x being theirs alone.
inline std::vector<LayerOptions> picking_variants() {
  std::vector<LayerOptions> out = linear_variants();
  out.erase(std::remove_if(out.begin(), out.end(), [](auto& o) { return info(o.cell).square; }),
            out.end());
  return out;
}

// Pre-activations, in row order, that make 1 - a = z and whose candidate is v.
Values gates_for(const LayerOptions& layer, double z, double v);

struct GatePattern {
  std::string name;
  std::function<Values(const LayerOptions&, Random&)>
      draw;  // pre-activations of one unit at one step
};

const std::vector<GatePattern>& gate_patterns();

// A layer whose weights pick, so that its pre-activations are its input, exactly: C = G H, no bias.
// Where SRU has a highway projection, it takes the first block once more.
Data picking_data(const Case& c, const GatePattern& pattern, Random& random);

}  // namespace scanrnn::test
