// SPDX-License-Identifier: Apache-2.0
// Cases that take long to write down: what draws, and adversarial gates.
#include "support/cases.h"

#include <cmath>

namespace scanrnn::test {

Case drawing_case(const LayerOptions& options, const Way& way) {
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

Values gates_for(const LayerOptions& layer, double z, double v) {
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

const std::vector<GatePattern>& gate_patterns() {
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

Data picking_data(const Case& c, const GatePattern& pattern, Random& random) {
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
