// SPDX-License-Identifier: Apache-2.0
// The words for a case, and its numbers.
#include "support/case.h"

#include <sstream>

namespace scanrnn::test {

std::string text(const Case& c) {
  const CellInfo& cell = info(c.layer.cell);
  std::ostringstream out;
  const std::string& variant = cell.variants.at(static_cast<std::size_t>(c.layer.variant));
  out << cell.name << (variant.empty() ? "" : "_" + variant) << '_' << name(c.layer.dtype) << '_'
      << name(c.way) << (c.layer.domain == Domain::log ? "_log" : "_linear") << "_T" << c.steps
      << "_B" << c.batch << "_C" << c.layer.input_size << "_H" << c.layer.hidden_size << "_L"
      << c.layer.num_layers << (c.layer.bidirectional ? "_bidirectional" : "")
      << (c.layer.layer_norm ? "_normed" : "") << (c.layer.reset_after ? "" : "_reset_before")
      << (c.layer.num_heads > 1 ? "_heads" + std::to_string(c.layer.num_heads) : "")
      << (c.layer.proj_size > 0 ? "_P" + std::to_string(c.layer.proj_size) : "")
      << (c.layer.zoneout > 0 || c.layer.zoneout_cell > 0 ? "_zoneout" : "")
      << (c.layer.bias ? "" : "_nobias") << (c.h0 ? "" : "_noh0")
      << (c.packed()            ? "_packed"
          : c.layer.batch_first ? "_BTH"
                                : "_TBH")
      << "_threads" << c.threads;
  return out.str();
}

Data free_data(const Case& c, Random& random) {
  const auto draw = [&](std::int64_t count, double bound) {
    Values out = random.uniform(count, -bound, bound);
    for (double& value : out) value = rounded(value, c.layer.dtype);
    return out;
  };
  Data data;
  const double bound = 1 / std::sqrt(static_cast<double>(c.layer.hidden_size));
  const Layer layer(c.layer);
  for (const ParameterInfo& parameter : layer.parameters()) {
    std::int64_t count = 1;
    for (std::int64_t size : parameter.sizes) count *= size;
    data.params.push_back(draw(count, bound));
  }
  data.x = draw(c.inputs(), 1.5);
  if (c.h0) data.h0 = draw(c.states(), 1);
  data.dy = draw(c.outputs(), 1);
  data.dhn = draw(c.states(), 1);
  for (std::size_t i = 0; i < c.more_states(); ++i) {
    if (c.h0) data.more0[i] = draw(c.states(i + 1), 1);
    data.dmoren[i] = draw(c.states(i + 1), 1);
  }
  if (c.is_scaled()) {  // n is a sum of weights
    for (double& value : data.more0[1]) value = rounded(1 + std::fabs(value), c.layer.dtype);
  }
  return data;
}

namespace {

// Keeps away from jumps, so that no rounding takes the other side. What a slope with a jump is
// taken of, a candidate's pre-activation or SRU's state, becomes a sum of terms of one sign, which
// is its unit's own: all that a layer reads is positive, and so are, up to that sign, the
// candidate's rows of the weight, its bias, and h_0 of SRU. A highway projection is positive, as
// the outputs are. Nothing is near zero. Each of these rows has a weight or two that count, so that
// each unit of the layer below has one, and the others add up to half of one: sums of many terms
// would hardly change from step to step, and a gate's gradient, which is a difference of states,
// would be all rounding.
void keep_from_jumps(const Case& c, Data& data) {
  const CellInfo& cell = info(c.layer.cell);
  const std::int64_t hidden = c.layer.hidden_size;
  const bool of_state = cell.highway;
  const std::int64_t candidate = of_state ? 0 : cell.gates - 1;  // row block
  // From a quarter of the bound to all of it; the value was drawn up to `drawn`.
  const auto set = [&](double& value, double drawn, double bound) {
    value = rounded(bound * (0.25 + 0.75 * std::fabs(value) / drawn), c.layer.dtype);
  };
  const auto sign_of = [](std::int64_t unit) { return unit % 2 ? -1 : 1; };
  const double drawn = 1 / std::sqrt(static_cast<double>(hidden));
  const Layer layer(c.layer);
  for (std::size_t i = 0; i < data.params.size(); ++i) {
    const std::vector<std::int64_t>& sizes = layer.parameters()[i].sizes;
    const bool bias = sizes.size() == 1;
    if (bias && of_state) continue;  // this candidate has none
    // What a recurrent weight gives back must not grow from step to step.
    const bool recurrent = layer.parameters()[i].name.find("weight_hh") == 0;
    const double largest = recurrent ? 0.3 : 1;
    const std::int64_t columns = bias ? 1 : sizes[1];
    for (std::int64_t row = 0; row < sizes[0]; ++row) {
      const bool highway = row / hidden == cell.gates;
      if (row / hidden != candidate && !highway) continue;
      for (std::int64_t k = 0; k < columns; ++k) {
        double& value = data.params[i][static_cast<std::size_t>(row * columns + k)];
        const double rest = largest / 2 / static_cast<double>(columns);
        const bool counts = k == row % columns || (k < 2 * hidden && k % hidden == row % hidden);
        set(value, drawn, bias ? drawn : counts ? largest : rest);
        if (!highway) value *= sign_of(row % hidden);
      }
    }
  }
  for (double& value : data.x) set(value, 1.5, 1.5);
  for (std::size_t i = 0; i < data.h0.size(); ++i) {
    set(data.h0[i], 1, 1);
    if (of_state) data.h0[i] *= sign_of(static_cast<std::int64_t>(i) % hidden);
  }
}

}  // namespace

Data random_data(const Case& c, Random& random) {
  Data data = free_data(c, random);
  if (has_jump(c.layer)) keep_from_jumps(c, data);
  return data;
}

}  // namespace scanrnn::test
