// SPDX-License-Identifier: Apache-2.0
// The one generator of lengths, of options over the registry, and of adversarial gates.
#pragma once

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
inline Case drawing_case(const LayerOptions& options, const Way& way) {
  Case c;
  c.layer = options;
  c.layer.input_size = c.layer.hidden_size = 7;
  c.layer.num_layers = 2;
  c.layer.bidirectional = true;
  c.layer.dropout = c.layer.input_dropout = 0.25;
  c.layer.zoneout = 0.3;
  if (is_dense(options)) c.layer.dropconnect = 0.2;
  if (info(options.cell).states == 2) c.layer.zoneout_cell = 0.2;
  if (info(options.cell).readout) c.layer.state_dropout = 0.25;
  c.way = way;
  c.steps = 9;
  c.batch = 3;
  c.threads = 2;
  fit(c.layer);
  return c;
}

// The variants of dense cells alone, among the given ones.
inline std::vector<LayerOptions> dense_variants(std::vector<LayerOptions> of = all_variants()) {
  of.erase(std::remove_if(of.begin(), of.end(), [](auto& o) { return !is_dense(o); }), of.end());
  return of;
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
inline Values gates_for(const LayerOptions& layer, double z, double v) {
  const CellInfo& cell = info(layer.cell);
  const double logit = std::log(z) - std::log1p(-z);
  if (cell.name == "MinGRU") return {logit, v};
  if (cell.name == "MinLSTM") {
    // i / (f + i) with f = 1/2: e^-q = (1 + e^0) (1 - z) / z - 1, and p and q trade places past
    // 1/2.
    if (z > 0.5) {
      const Values other = gates_for(layer, 1 - z, v);
      return {other[1], other[0], v};
    }
    return {0, -std::log(2 * (1 - z) / z - 1), v};
  }
  if (cell.name == "SRU" || cell.name == "QRNN") return {v, -logit, 0.25};
  throw std::logic_error("no gates for " + cell.name);
}

struct GatePattern {
  std::string name;
  std::function<Values(const LayerOptions&, Random&)>
      draw;  // pre-activations of one unit at one step
};

inline const std::vector<GatePattern>& gate_patterns() {
  const auto signed_input = [](Random& random) { return random.uniform(-3, 3); };
  static const std::vector<GatePattern> all{
      {"logits_of_30",
       [](const LayerOptions& layer, Random& random) {
         Values out;
         for (int g = 0; g < info(layer.cell).gates; ++g)
           out.push_back(random.bits() & 1 ? 30 : -30);
         return out;
       }},
      {"logits_within_30",
       [](const LayerOptions& layer, Random& random) {
         return random.uniform(info(layer.cell).gates, -30, 30);
       }},
      {"all_forget",
       [=](const LayerOptions& layer, Random& random) {
         return gates_for(layer, 1 - 1e-13, signed_input(random));
       }},
      {"all_keep", [=](const LayerOptions& layer,
                       Random& random) { return gates_for(layer, 1e-13, signed_input(random)); }},
      {"nearly_kept", [=](const LayerOptions& layer,
                          Random& random) { return gates_for(layer, 1e-7, signed_input(random)); }},
      {"nearly_kept_constant",
       [](const LayerOptions& layer, Random&) { return gates_for(layer, 1e-7, 1.25); }},
      {"nearly_kept_random",
       [=](const LayerOptions& layer, Random& random) {
         return gates_for(layer, random.uniform(1e-12, 1e-7), signed_input(random));
       }},
      {"no_input",  // b = 0, or as near to it as the positive candidate gets
       [](const LayerOptions& layer, Random& random) {
         const auto& variants = info(layer.cell).variants;
         const double nothing = variants[static_cast<std::size_t>(layer.variant)] == "g" ? -30 : 0;
         return gates_for(layer, random.uniform(1e-4, 1e-2), nothing);
       }},
  };
  return all;
}

// A layer whose weights pick, so that its pre-activations are its input, exactly: C = G H, no bias.
// Where SRU has a highway projection, it takes the first block once more.
inline Data picking_data(const Case& c, const GatePattern& pattern, Random& random) {
  const CellInfo& cell = info(c.layer.cell);
  const std::int64_t hidden = c.layer.hidden_size, in = c.layer.input_size;
  Data data;
  Values weight(static_cast<std::size_t>(Layer(c.layer).parameters()[0].sizes[0] * in));
  for (std::int64_t row = 0; row * in < static_cast<std::int64_t>(weight.size()); ++row) {
    weight[static_cast<std::size_t>(row * in + row % in)] = 1;
  }
  data.params.push_back(weight);
  data.x.resize(static_cast<std::size_t>(c.inputs()));
  for (std::int64_t token = 0; token < c.steps * c.batch; ++token) {
    for (std::int64_t j = 0; j < hidden; ++j) {
      const Values gates = pattern.draw(c.layer, random);
      for (int g = 0; g < cell.gates; ++g) {
        data.x[static_cast<std::size_t>(token * in + g * hidden + j)] =
            rounded(gates[static_cast<std::size_t>(g)], c.layer.dtype);
      }
    }
  }
  const auto draw = [&](std::int64_t count) {
    Values out = random.uniform(count, -1, 1);
    for (double& value : out) value = rounded(value, c.layer.dtype);
    return out;
  };
  if (c.h0) data.h0 = draw(c.states());
  data.dy = draw(c.outputs());
  data.dhn = draw(c.states());
  return data;
}

}  // namespace scanrnn::test
