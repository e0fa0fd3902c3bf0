// SPDX-License-Identifier: Apache-2.0
// What was measured on one device: rules that say what is fastest where, or costs from which the
// time of each way is predicted. Plain data: files of them are read elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

enum class Strategy : std::uint8_t {
  automatic,
  direct,
  fused_sequential,
  parallel_scan,
  step_loop,
  persistent
};
inline constexpr Strategy kStrategies[] = {Strategy::direct, Strategy::fused_sequential,
                                           Strategy::parallel_scan, Strategy::step_loop,
                                           Strategy::persistent};
inline constexpr Strategy kLinearStrategies[] = {Strategy::direct, Strategy::fused_sequential,
                                                 Strategy::parallel_scan};

// What a rule may ask of a problem. A unit is a multiprocessor, or a thread of a CPU.
enum class Feature : std::uint8_t {
  steps,          // T
  tokens,         // B*T
  elements,       // B*T*H
  rows_per_unit,  // B*H over the device's units
  hidden,         // H
  gates,          // row blocks of the input's weights; none: a bare scan
  bytes,          // of an element of the tensors
  training,       // 1 when a backward pass will follow, else 0
  log_domain      // 1 or 0
};
inline constexpr int kFeatures = 9;
const char* name(Feature feature);  // as in the files

// A box in the space of problems, `above < feature <= at_most` for each feature, and what is
// fastest in it.
struct Rule {
  Strategy strategy, runner_up;
  bool across_blocks;  // CUDA: how a parallel scan, chosen or forced, splits time in this box
  double margin;       // median time of the runner-up over that of the strategy; 0: not measured
  std::array<double, kFeatures> above, at_most;
};
inline constexpr int kMaxRules = 96;

// A rule that every problem meets, to be narrowed: `rule.at_most[index_of(Feature::steps)] = 99`.
constexpr std::size_t index_of(Feature feature) { return static_cast<std::size_t>(feature); }
constexpr Rule everywhere(Strategy strategy, Strategy runner_up, bool across_blocks = false) {
  Rule out{strategy, runner_up, across_blocks, 0, {}, {}};
  for (double& bound : out.above) bound = -1;
  for (double& bound : out.at_most) bound = std::numeric_limits<double>::infinity();
  return out;
}

struct Cost;  // cost.h

// The first rule that a problem meets decides. Where there is none, what is predicted to take the
// least time; the class of costs that is nearest to the problem's own counts.
struct Profile {
  char name[64];    // "cpu-generic", "sm_90"
  char origin[96];  // "built in", or the file that it was read from
  int count;        // of rules
  std::array<Rule, kMaxRules> rules;
  std::shared_ptr<const std::vector<Cost>> costs;  // may be null
};

// The profiles that an unknown device falls back to, and those measured on a device, by the name of
// its architecture ("sm_90"), null when there is none. Defined by the build from profiles/*.json.
const Profile& generic_cpu_profile();
const Profile& generic_cuda_profile();
const Profile* find_profile(const std::string& name);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
