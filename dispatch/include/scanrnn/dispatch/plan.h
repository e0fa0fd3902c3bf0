// SPDX-License-Identifier: Apache-2.0
// Which kernels run, and why: plan() is a pure function of plain data. No device query, no clock,
// no heap, no global.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scanrnn/dispatch/profile.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// linear: gates read x alone. diagonal: and the same unit's own state. dense: a matrix times it.
enum class Recurrence : std::uint8_t { linear, diagonal, dense };

enum class Processor : std::uint8_t { cpu, cuda };

// How sequences lie: all of T steps; of at most T, or with states that are reset on the way; or one
// behind the other, T tokens in all of `batch` sequences.
enum class Batch : std::uint8_t { rectangular, ragged, packed };

// What is to be computed. Sizes as in tensor.h's legend.
struct Problem {
  std::uint64_t layer = 0;  // whose it is: a number of its options; 0: of no layer
  Recurrence recurrence = Recurrence::linear;
  std::int64_t batch = 0, steps = 0, input_size = 0, hidden_size = 0;
  Batch layout = Batch::rectangular;
  std::int64_t longest = 0;  // packed: no sequence has more steps; 0: not known
  int gates = 0;             // none: a bare scan, which projects nothing
  int sums = 0;              // dense: pre-activations of a unit, to which W x and R h add
  bool readout = false;      // the output differs from the state
  bool highway = false;      // beside them each step reads x, or a projection of it
  bool normed = false;       // a norm stands between the projection and the recurrence; dense: and
                             // between R h and a step
  bool resets = false;       // dense: a step has a product with R that reads what the others give
  bool draws = false;        // a step may keep a unit's state, or drop what it gives, by lot
  std::int64_t heads = 1;    // dense: R is block-diagonal, of so many blocks
  int storage_bytes = 4;     // of an element of the tensors
  int compute_bytes = 4;  // of the type that is computed in: half of a complex one that is stored
  // A bare scan: its states are kept by logarithms; its steps are adjacent, its rows are not.
  bool log_states = false, time_contiguous = false;
  bool training = false;  // a backward pass will follow
  bool log_domain = true;
  // CUDA, float32: a product by tensor cores is three, of operands in two parts each.
  bool split_products = false;
  // Layer calls of a stack that need not wait for one another's end: its two directions; or, where
  // they are `chained`, its layers, each of which needs what the one before has made so far, and
  // where they are `linked`, as that has left it, with nothing dropped in between.
  int at_once = 1;
  bool chained = false, linked = false;
  Strategy forced = Strategy::automatic;
};

// What it runs on.
struct DeviceLimits {
  Processor processor = Processor::cpu;
  std::int64_t units = 1;         // multiprocessors, or threads
  std::int64_t shared_bytes = 0;  // CUDA: of shared memory that a block can have
  bool warp_groups = false;       // CUDA: multiply together; the library has code for that
};

// Why a strategy was chosen; explain() puts it in words.
enum class Reason : std::uint8_t {
  forced,
  empty,
  measured,        // a rule of the profile
  predicted,       // by costs of the profile
  adjacent_steps,  // of a row: time lies along lanes, or on a CPU rows are walked
  no_rule,
  every_step,   // a dense recurrence can only be walked
  whole_lines,  // and each step needs all sums of a line before it goes on
  on_chip,      // and its weights stay there
  not_on_chip,
  many_lines,
  few_steps  // to load weights for, or of a bare scan to set up tiles for
};

// How a persistent kernel cuts a layer: blocks of `slices` of a head's units times `groups` of the
// lines times `heads`.
struct PersistentShape {
  int tile = -1;          // index into the tiles of the pass; -1: the weights do not fit
  bool in_block = false;  // a block has all units (tile: which of kPersistentBlockUnits)
  bool alone = false;     // and one line, by multiply-adds in place of tensor cores
  bool large = false;     // products are those of warp groups (tile: of the pass's in large.h)
  int units = 0;          // of a slice
  int slices = 0, groups = 0;
  int heads = 1;   // of a launch: those of the layer come one launch after the other
  int layers = 1;  // of a chain, in one launch: each has blocks of its own
  int warps_along_units = 1;
  bool split_products = false;
  int block_words = 0;     // of the exchange for one value of all units of a head in a line
  int line_floats = 0;     // of shared memory for one line of a warp's partial sums
  int shared_bytes = 0;    // that a block can have on the device
  std::int64_t lines = 0;  // of the batch, in one launch
  std::int64_t steps = 0;  // in one launch
};

struct Plan {
  Problem problem;
  DeviceLimits device;
  Strategy strategy = Strategy::fused_sequential;
  Strategy runner_up = Strategy::parallel_scan;
  Reason reason = Reason::no_rule;
  Rule rule{};             // that decided, if one did
  double expected_us = 0;  // predicted for the strategy, and for the runner-up; 0: not known
  double runner_up_us = 0;
  char profile[64] = {};  // and whose it is
  char origin[96] = {};
  std::int64_t tile_steps = 0;   // CPU: steps of one projection tile
  bool in_turn = false;          // CPU, fused-sequential: threads take tiles in turn, unless apart
  std::int64_t chunk_steps = 0;  // CPU: steps of a parallel scan's chunk; 0 for other strategies
  bool across_blocks = false;    // CUDA: a parallel scan splits time over blocks, not inside one
  bool along_lanes = false;      // CUDA: and along the lanes of a warp, not rows
  bool log_domain = true;        // linear: parts of time compose by logarithms; false: by values
  PersistentShape persistent, persistent_vjp;  // CUDA, dense: of the two passes
  bool fused_steps = false;  // CUDA, step loop: a forward step is one kernel, products and all
  // Layer calls of a pass that run at the same time, each on its share of the device; chained ones
  // go on by parts of so many steps, or 0: all are one launch.
  int at_once = 1, at_once_vjp = 1;
  std::int64_t part_steps = 0, part_steps_vjp = 0;
};

// Those of the forward or of the backward pass.
struct Together {
  int calls;
  std::int64_t part_steps;
};
inline Together together(const Plan& plan, bool backward) {
  return backward ? Together{plan.at_once_vjp, plan.part_steps_vjp}
                  : Together{plan.at_once, plan.part_steps};
}

// Whether a step of a dense layer is one of whole lines, between its products with R.
inline bool by_lines(const Problem& problem) {
  return problem.recurrence == Recurrence::dense && (problem.normed || problem.resets);
}

// CUDA: whether a parallel scan of the problem can split time inside a block. No kernel that does
// draws, or knows the sequences of a layer's ragged batch.
inline bool splits_inside_blocks(const Problem& problem) {
  return problem.gates == 0 || (problem.layout == Batch::rectangular && !problem.draws);
}

// Whether a pass of a layer call is a persistent kernel's.
inline bool is_persistent(const Plan& plan, bool backward) {
  return plan.strategy == Strategy::persistent && (!backward || plan.persistent_vjp.tile >= 0);
}

// Why the forced strategy cannot run, in words; empty where it can, or where none is forced.
std::string misfit(const Problem& problem, const DeviceLimits& device);

// The best cut of a dense layer for a persistent kernel; no tile where R does not fit on the chip.
PersistentShape persistent_shape(const Problem& problem, const DeviceLimits& device, bool backward);
// All cuts of a layer, of which that is the cheapest.
std::vector<PersistentShape> persistent_shapes(const Problem& problem, const DeviceLimits& device,
                                               bool backward);
// CUDA, step loop: whether one kernel makes a forward step, products and all.
bool fuses_steps(const Problem& problem, const DeviceLimits& device);
// Lets as many layer calls of both passes run at the same time as the problem has, at most `most`
// of them (1: one by one); chained ones by parts of `part_steps`. False, and the plan as it was,
// where it has none, or no steps, or where a share of the device has no room for one.
bool run_at_once(Plan& plan, int most, std::int64_t part_steps);
// The same as one launch of a persistent kernel, whose layers hand one another each step.
bool run_as_one(Plan& plan, int most);
// The same for each pass in which a persistent kernel's calls are predicted to be faster so, as one
// launch or by the best of parts.
void consider_at_once(Plan& plan);
// Bytes of its exchange in one launch.
std::int64_t exchange_bytes(const Problem& problem, const PersistentShape& shape, bool backward);

// The forced strategy must fit.
Plan plan(const Problem& problem, const DeviceLimits& device, const Profile& profile);

// One line: strategy, tile, the reason in words, what would have come second and by how much, and
// whose measurement says so.
std::string explain(const Plan& plan);
const char* name(Strategy strategy);
// Strategy::automatic for "auto"; false when there is none of that name.
bool parse(const std::string& name, Strategy& strategy);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
