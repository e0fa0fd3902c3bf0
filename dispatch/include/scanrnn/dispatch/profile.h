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

// What of a problem takes time on a GPU. A column is what a warp walks: 32 units of one batch
// entry, or 32 pairs of them; a share of columns or tiles is that of one multiprocessor. "over n"
// is what is more than n, or nothing.
enum class Term : std::uint8_t {
  call,           // 1
  step,           // T
  byte,           // of tensors that the recurrence reads and writes
  uncached_byte,  // those that the second level cache has no room for
  column,         // all of them
  walk,           // T x share of columns
  walk_over_4,
  walk_over_8,
  walk_over_16,
  walk_over_32,
  round,        // of a block's warps through time
  round_share,  // rounds x share of columns
  round_over_1,
  round_over_2,
  round_over_4,
  round_over_8,
  round_over_16,
  tile,        // of time, where it is split over blocks
  tile_share,  // tiles x share of columns
  tile_over_1,
  tile_over_4,
  tile_wave,     // the same in whole waves of blocks
  root_step,     // square root of T
  multiply_add,  // of the product with the input, whose depth is C
  weight_byte,
  depth,        // C
  gate_byte,    // of pre-activations
  product_128,  // C x share of the product's tiles of 128 x 128
  product_128_over_1,
  product_128_over_4,
  product_64,  // the same in tiles of 64 x 64
  product_64_over_1,
  product_64_over_4,
  product_wave,  // C x whole waves of tiles of 128 x 128
  direct,        // T in fours, which the direct kernel projects together
  direct_depth,  // x C
  direct_share,  // x C x gates x share of blocks
  direct_over_1,
  direct_over_2,
  direct_over_4,
  direct_over_8,
  direct_wave,    // x C x whole waves of blocks
  step_depth,     // T x C
  fused_step,     // T, where a step of a loop is one kernel
  fused_byte,     // x bytes of R
  fused_product,  // x multiply-adds of a step
  loop_step,      // the same where it is a product and a kernel
  loop_byte,
  loop_product,
  step_width,     // T x H
  step_tile,      // x share of the step's tiles of 64 x 64, at least 1
  step_wave,      // x whole waves of those
  unit_step,      // B x T x H
  launch,         // of a persistent kernel's forward pass, and what follows for each
  exchange_step,  // steps with an exchange between blocks
  exchange_line,  // x eights of lines
  block_step,     // steps of a kernel whose blocks have all of R
  exchange_byte,
  slice_product,  // multiply-adds of a block
  slice_byte,     // of R that a launch loads
  item,           // units that a thread steps
  vjp_launch,     // the same of the backward pass
  vjp_exchange_step,
  vjp_exchange_line,
  vjp_block_step,
  vjp_exchange_byte,
  vjp_slice_product,
  vjp_slice_byte,
  vjp_item
};
inline constexpr int kTerms = static_cast<int>(Term::vjp_item) + 1;
const char* name(Term term);  // as in the files
using Counts = std::array<double, kTerms>;

// Problems whose time is predicted alike.
enum class Kind : std::uint8_t { scan, linear, dense };
inline constexpr Kind kKinds[] = {Kind::scan, Kind::linear, Kind::dense};
const char* name(Kind kind);  // as in the files
struct ProblemClass {
  Kind kind = Kind::linear;
  int gates = 0;       // of a dense cell, else 0
  int bytes = 4;       // of an element of the tensors
  int alignment = 16;  // of a row in memory: 16 bytes, 4, or 2
  bool training = false;
  bool log_form = false;  // of a bare scan, else false
};

// The predicted time of one way is the sum of its terms' counts times the microseconds of one.
struct Cost {
  ProblemClass of;
  Strategy strategy = Strategy::fused_sequential;
  bool across_blocks = false;  // as in Rule
  std::array<float, kTerms> us{};
};

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
