// SPDX-License-Identifier: Apache-2.0
// Contexts, descriptions of layers and plans, without any Python. Safe from every thread.
#include "calls.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "names.h"

namespace scanrnn {
namespace {

// What the process has chosen. `version` grows after each change, so that a context that has
// followed it knows without a lock that nothing is new.
struct Choices {
  std::mutex mutex;
  std::map<Device::Kind, std::shared_ptr<const dispatch::Profile>> profiles;
  std::atomic<MatmulPrecision> precision{MatmulPrecision::highest};
  std::atomic<std::uint64_t> version{1};
};
Choices& choices() {
  static Choices all;
  return all;
}

struct Own {
  Context context;
  MatmulPrecision precision = MatmulPrecision::highest;  // that of the context
  std::uint64_t version = 0;                             // of the choices that it follows
};
using Contexts = std::map<std::pair<Device::Kind, int>, Own>;
Contexts& contexts() {
  thread_local Contexts own;
  return own;
}

// What this thread's calls have in place of the process's choice.
std::optional<MatmulPrecision>& used_precision() {
  thread_local std::optional<MatmulPrecision> own;
  return own;
}

bool forked = false;  // written by a process that has one thread

Own& find(Device device) {
  const auto key = std::make_pair(device.kind, device.index);
  auto found = contexts().find(key);
  if (found == contexts().end()) {
    ContextOptions options;
    options.device = device;
    if (forked && device.kind == Device::Kind::cpu) options.threads = 1;
    found = contexts().emplace(key, Own{Context(options)}).first;
  }
  return found->second;
}

constexpr std::pair<const char*, MatmulPrecision> kMatmulPrecisions[] = {
    {"highest", MatmulPrecision::highest},
    {"high", MatmulPrecision::high},
    {"medium", MatmulPrecision::medium}};

MatmulPrecision parse_precision(const std::string& text) {
  return find_named("precision", text, kMatmulPrecisions, [](const auto& p) { return p.first; })
      .second;
}

}  // namespace

Context& context(Device device) { return find(device).context; }

void configure(Device device, void* stream) {
  Own& own = find(device);
  own.context.set_stream(stream);
  const MatmulPrecision precision = matmul_precision();
  if (own.precision != precision) {
    own.context.set_matmul_precision(precision);
    own.precision = precision;
  }
  const std::uint64_t version = choices().version;
  if (own.version == version) return;
  const std::lock_guard<std::mutex> lock(choices().mutex);
  const auto chosen = choices().profiles.find(device.kind);
  if (chosen != choices().profiles.end()) own.context.set_profile(chosen->second);
  own.version = version;
}

void after_fork() {
  forked = true;
  ++choices().version;
  contexts().erase({Device::Kind::cpu, 0});  // a CUDA device's cannot even be given back
}

void choose_profile(Device::Kind kind, std::shared_ptr<const dispatch::Profile> profile) {
  const std::lock_guard<std::mutex> lock(choices().mutex);
  choices().profiles[kind] = std::move(profile);
  ++choices().version;
}

void choose_precision(const std::string& text) {
  choices().precision = parse_precision(text);
  ++choices().version;
}

std::string chosen_precision() {
  const MatmulPrecision chosen = choices().precision;
  for (const auto& [text, precision] : kMatmulPrecisions) {
    if (precision == chosen) return text;
  }
  return "";
}

void use_precision(const std::string& text) {
  used_precision().reset();
  if (!text.empty()) used_precision() = parse_precision(text);
}

MatmulPrecision matmul_precision() {
  const auto& used = used_precision();
  return used ? *used : choices().precision.load();
}

std::uint64_t settings(Device device) {
  constexpr std::int64_t kMostUnits = 0xffff;
  const auto units = std::min(context(device).limits().units, kMostUnits);
  const auto precision = static_cast<std::uint64_t>(matmul_precision());  // of 2 bits
  return choices().version << 18 | precision << 16 | static_cast<std::uint64_t>(units);
}

Layer make_layer(LayerOptions options, const std::string& cell, const std::string& variant,
                 const std::string& domain, const std::string& own, const std::string& dtype) {
  const CellInfo& info = find_cell(cell);
  options.cell = info.cell;
  options.variant = 0;
  if (!variant.empty()) {
    const auto found = find_named(info.variant_option.c_str(), variant, info.variants,
                                  [](const std::string& v) { return v; });
    while (info.variants[options.variant] != found) ++options.variant;
  }
  options.domain = parse_domain(domain);
  for (std::size_t begin = 0; begin < own.size();) {
    const std::size_t end = std::min(own.find(' ', begin), own.size()), at = own.find('=', begin);
    if (at >= end) throw value_error("options: expected name=number words, got '" + own + "'");
    double value = 0;  // whatever the process's locale has for a decimal point
    const auto read = std::from_chars(own.data() + at + 1, own.data() + end, value);
    if (read.ec != std::errc() || read.ptr != own.data() + end) {
      throw value_error("options: expected name=number words, got '" + own + "'");
    }
    set_option(options, own.substr(begin, at - begin), value);
    begin = end + 1;
  }
  options.dtype = parse_dtype(dtype);
  return Layer(options);
}

PlannedCall plan_layer(const Layer& layer, Device device, const BatchShape& shape, bool training,
                       const std::optional<std::string>& strategy) {
  configure(device);
  PlannedCall out;
  out.device = device;
  out.plan = layer.plan(context(device), shape, training ? Mode::training : Mode::inference,
                        parse_strategy(strategy));
  out.sizes = layer.sizes(out.plan);
  return out;
}

PlannedCall plan_scan(Device device, const ScanShape& shape,
                      const std::optional<std::string>& strategy) {
  configure(device);
  PlannedCall out;
  out.device = device;
  out.plan = linear_scan_plan(context(device), shape, parse_strategy(strategy));
  out.sizes.workspace = linear_scan_workspace(out.plan);
  return out;
}

}  // namespace scanrnn
