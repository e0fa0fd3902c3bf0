// SPDX-License-Identifier: Apache-2.0
// What the time of each way to run a problem on a GPU is predicted from. No kernel includes it.
#pragma once

#include "scanrnn/dispatch/plan.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

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

// What of a problem takes time, CUDA only, and the class that it is of.
Counts counts(const Problem& problem, const DeviceLimits& device);
ProblemClass class_of(const Problem& problem);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
