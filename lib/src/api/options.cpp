// SPDX-License-Identifier: Apache-2.0
// The options that not every cell has, by name.
#include <cmath>

#include "api/check.h"

namespace scanrnn {
namespace {

using Kind = OwnOption::Kind;

struct Known {
  OwnOption option;
  bool (*has)(const CellInfo&);
  double (*get)(const LayerOptions&);
  void (*set)(LayerOptions&, double);
};

bool any(const CellInfo&) { return true; }
bool dense(const CellInfo& cell) { return cell.recurrence == dispatch::Recurrence::dense; }
bool reads_out(const CellInfo& cell) { return cell.readout; }
bool pair(const CellInfo& cell) { return cell.states == 2; }
bool gru(const CellInfo& cell) { return cell.name == "GRU"; }
bool lstm(const CellInfo& cell) { return cell.name == "LSTM" || cell.base == "LSTM"; }
bool normed(const CellInfo& cell) {
  return cell.name == "RNN" || lstm(cell) || gru(cell) || cell.name == "IndRNN";
}
bool sru(const CellInfo& cell) { return cell.name == "SRU" || cell.base == "SRU"; }

template <auto member>
Known known(const char* name, bool (*has)(const CellInfo&)) {
  using Value = std::decay_t<decltype(LayerOptions{}.*member)>;
  constexpr Kind kKind = std::is_same_v<Value, bool>     ? Kind::flag
                         : std::is_same_v<Value, double> ? Kind::number
                                                         : Kind::count;
  return {{name, kKind, static_cast<double>(LayerOptions{}.*member)},
          has,
          [](const LayerOptions& o) { return static_cast<double>(o.*member); },
          [](LayerOptions& o, double value) { o.*member = static_cast<Value>(value); }};
}

const std::vector<Known>& all() {
  static const std::vector<Known> known_ones = {
      known<&LayerOptions::input_dropout>("input_dropout", any),
      known<&LayerOptions::state_dropout>("state_dropout", reads_out),
      known<&LayerOptions::dropconnect>("dropconnect", dense),
      known<&LayerOptions::zoneout>("zoneout", any),
      known<&LayerOptions::zoneout_cell>("zoneout_cell", pair),
      known<&LayerOptions::num_heads>("num_heads", dense),
      known<&LayerOptions::reset_after>("reset_after", gru),
      known<&LayerOptions::layer_norm>("layer_norm", normed),
      known<&LayerOptions::proj_size>("proj_size", lstm),
      known<&LayerOptions::projection_size>("projection_size", sru),
      known<&LayerOptions::rescale>("rescale", sru),
      known<&LayerOptions::highway_bias>("highway_bias", sru),
  };
  return known_ones;
}

}  // namespace

std::vector<OwnOption> own_options(Cell cell) {
  std::vector<OwnOption> out;
  for (const Known& known : all()) {
    if (known.has(info(cell))) out.push_back(known.option);
  }
  return out;
}

void set_option(LayerOptions& options, const std::string& name, double value) {
  if (name == "draws") {  // which every cell has
    options.draws = value != 0;
    return;
  }
  for (const Known& known : all()) {
    if (known.option.name != name) continue;
    const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;
    require(known.option.kind == Kind::number || whole,
            [&] { return name + ": expected an integer, got " + std::to_string(value); });
    require(known.option.kind != Kind::flag || value == 0 || value == 1,
            [&] { return name + ": expected 0 or 1, got " + std::to_string(value); });
    return known.set(options, value);
  }
  throw value_error("option: there is no '" + name + "'");
}

void check_own_options(const LayerOptions& o, const CellInfo& cell) {
  for (const Known& known : all()) {
    const double value = known.get(o);
    require(known.has(cell) || value == known.option.value, [&] {
      const bool whole = known.option.kind != Kind::number;
      return known.option.name + ": " + cell.name + " has no such option, got " +
             (whole ? std::to_string(static_cast<std::int64_t>(value)) : std::to_string(value));
    });
  }
}

}  // namespace scanrnn
