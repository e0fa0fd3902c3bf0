// SPDX-License-Identifier: Apache-2.0
// The options that not every cell has, by name.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "api/check.h"

namespace scanrnn {
namespace {

using Kind = OwnOption::Kind;

struct Known {
  OwnOption option;
  bool (*has)(const CellInfo&);
  double (*get)(const LayerOptions&);
  void (*set)(LayerOptions&, double);
  double most;  // of a count, up to which a double tells integers apart
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
          [](LayerOptions& o, double value) { o.*member = static_cast<Value>(value); },
          std::min(9e15, static_cast<double>(std::numeric_limits<Value>::max()))};
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

void set(const Known& known, LayerOptions& options, double value) {
  const auto named = [&](const std::string& wanted) {
    return known.option.name + ": expected " + wanted + ", got " + text(value);
  };
  const Kind kind = known.option.kind;
  require(kind == Kind::number || value == std::floor(value), [&] { return named("an integer"); });
  require(kind != Kind::count || std::fabs(value) <= known.most, [&] {
    return named("an integer up to " + std::to_string(static_cast<std::int64_t>(known.most)));
  });
  require(kind != Kind::flag || value == 0 || value == 1, [&] { return named("0 or 1"); });
  known.set(options, value);
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
  static const Known draws = known<&LayerOptions::draws>("draws", any);  // no cell's own
  if (name == draws.option.name) return set(draws, options, value);
  for (const Known& known : all()) {
    if (known.option.name == name) return set(known, options, value);
  }
  throw value_error("option: there is no '" + name + "'");
}

std::uint64_t number_of(const LayerOptions& o) {
  std::uint64_t out = 0xcbf29ce484222325;  // FNV-1a, by words
  const auto add = [&](auto value) {
    static_assert(sizeof value <= sizeof out);
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    out = (out ^ word) * 0x100000001b3;
    out ^= out >> 32;
  };
  add(o.cell), add(o.variant), add(o.domain), add(o.dtype);
  add(o.input_size), add(o.hidden_size), add(o.num_layers);
  add(o.bias), add(o.bidirectional), add(o.dropout), add(o.draws);
  for (const Known& known : all()) add(known.get(o));
  return out;
}

void check_own_options(const LayerOptions& o, const CellInfo& cell) {
  for (const Known& known : all()) {
    const double value = known.get(o);
    require(known.has(cell) || value == known.option.value, [&] {
      return known.option.name + ": " + cell.name + " has no such option, got " + text(value);
    });
  }
}

}  // namespace scanrnn
