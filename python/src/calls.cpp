// SPDX-License-Identifier: Apache-2.0
// Contexts, descriptions of layers and plans, without any Python. Safe from every thread.
#include "calls.h"

#include <map>
#include <mutex>
#include <utility>

#include "names.h"
#include "precision.h"

namespace scanrnn {
namespace {

struct Profiles {
  std::mutex mutex;
  std::map<Device::Kind, dispatch::Profile> chosen;
};
Profiles& profiles() {
  static Profiles all;
  return all;
}

using Contexts = std::map<std::pair<Device::Kind, int>, Context>;
Contexts& contexts() {
  thread_local Contexts own;
  return own;
}

bool forked = false;  // written by a process that has one thread

}  // namespace

void after_fork() {
  forked = true;
  contexts().erase({Device::Kind::cpu, 0});  // a CUDA device's cannot even be given back
}

Context& context(Device device, void* stream) {
  const auto key = std::make_pair(device.kind, device.index);
  auto found = contexts().find(key);
  if (found == contexts().end()) {
    ContextOptions options;
    options.device = device;
    if (forked && device.kind == Device::Kind::cpu) options.threads = 1;
    found = contexts().emplace(key, Context(options)).first;
  }
  found->second.set_stream(stream);
  found->second.set_matmul_precision(matmul_precision());
  const std::lock_guard<std::mutex> lock(profiles().mutex);
  const auto chosen = profiles().chosen.find(device.kind);
  if (chosen != profiles().chosen.end()) found->second.set_profile(chosen->second);
  return found->second;
}

void choose_profile(Device::Kind kind, const dispatch::Profile& profile) {
  const std::lock_guard<std::mutex> lock(profiles().mutex);
  profiles().chosen[kind] = profile;
}

Layer make_layer(LayerOptions options, const std::string& cell, const std::string& variant,
                 const std::string& domain, const std::string& dtype) {
  const CellInfo& info = find_cell(cell);
  options.cell = info.cell;
  options.variant = 0;
  if (!variant.empty()) {
    const auto found = find_named(info.variant_option.c_str(), variant, info.variants,
                                  [](const std::string& v) { return v; });
    while (info.variants[options.variant] != found) ++options.variant;
  }
  options.domain = parse_domain(domain);
  options.dtype = parse_dtype(dtype);
  return Layer(options);
}

PlannedCall plan_layer(const Layer& layer, Device device, std::int64_t steps, std::int64_t batch,
                       bool training, const std::optional<std::string>& strategy) {
  PlannedCall out;
  out.device = device;
  out.plan = layer.plan(context(device), steps, batch, training ? Mode::training : Mode::inference,
                        parse_strategy(strategy));
  out.sizes = layer.sizes(out.plan);
  return out;
}

PlannedCall plan_scan(Device device, std::int64_t steps, std::int64_t rows,
                      const std::string& dtype, bool log_form,
                      const std::optional<std::string>& strategy) {
  PlannedCall out;
  out.device = device;
  out.plan = linear_scan_plan(context(device), steps, rows, parse_dtype(dtype), log_form,
                              parse_strategy(strategy));
  out.sizes.workspace = linear_scan_workspace(out.plan);
  return out;
}

}  // namespace scanrnn
