// SPDX-License-Identifier: Apache-2.0
// Which kernels run, and why: plan() is a pure function of plain data. No device query, no clock,
// no heap, no global.
#pragma once

#include <cstdint>
#include <string>

#include "scanrnn/dispatch/profile.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// linear: gates read x alone. diagonal: and the same unit's own state. dense: a matrix times it.
enum class Recurrence : std::uint8_t { linear, diagonal, dense };

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

enum class Processor : std::uint8_t { cpu, cuda };

// What is to be computed. Sizes as in tensor.h's legend.
struct Problem {
  Recurrence recurrence = Recurrence::linear;
  std::int64_t batch = 0, steps = 0, input_size = 0, hidden_size = 0;
  int gates = 0;
  int storage_bytes = 4;  // of an element of the tensors
  int compute_bytes = 4;  // of the type that is computed in
  bool training = false;  // a backward pass will follow
  bool log_domain = true;
  Strategy forced = Strategy::automatic;
};

// What it runs on.
struct DeviceLimits {
  Processor processor = Processor::cpu;
  std::int64_t units = 1;  // multiprocessors, or threads
};

// Why a strategy was chosen; explain() puts it in words.
enum class Reason : std::uint8_t {
  forced,
  empty,
  few_tokens,
  few_rows,
  enough_rows,
  short_sequence,
  every_step  // a dense recurrence can only be walked
};

struct Plan {
  Problem problem;
  DeviceLimits device;
  Strategy strategy = Strategy::fused_sequential;
  Strategy runner_up = Strategy::parallel_scan;
  Reason reason = Reason::enough_rows;
  Thresholds thresholds{};       // those that decided
  char profile[64] = {};         // and whose they are
  std::int64_t tile_steps = 0;   // CPU: steps of one projection tile
  std::int64_t chunk_steps = 0;  // CPU: steps of a parallel scan's chunk; 0 for other strategies
  bool across_blocks = false;    // CUDA: a parallel scan splits time over blocks, not inside one
};

// Why the forced strategy cannot run, in words; null where it can, or where none is forced.
const char* misfit(const Problem& problem, const DeviceLimits& device);

// The forced strategy must fit.
Plan plan(const Problem& problem, const DeviceLimits& device, const Profile& profile);

// One line: strategy, tile, profile, the reason in words, and what would have come second.
std::string explain(const Plan& plan);
const char* name(Strategy strategy);
// Strategy::automatic for "auto"; false when there is none of that name.
bool parse(const std::string& name, Strategy& strategy);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
