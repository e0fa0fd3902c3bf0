// SPDX-License-Identifier: Apache-2.0
// What the time of each way to run a problem on a GPU is predicted from. No kernel includes it.
#pragma once

#include "scanrnn/dispatch/plan.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// What takes time, by the unit that it is counted in. A column is what a warp walks: 32 rows of one
// batch entry, where a row is a unit or, of 16-bit tensors, a pair of them. Tensors are those that
// a step reads or writes. A load is that of the busiest multiprocessor, and "_n" is what of it is
// more than n. Where a layer trains, both passes are counted.
enum class Term : std::uint8_t {
  call,           // 1
  byte,           // of the recurrence's tensors, but for those that a walk's latency hides
  uncached_byte,  // of tensors that come from memory, as the cache has no room for all of them
  // A warp walks its columns through time; blocks wait for their turn in waves.
  chunk,      // chunks of steps that are copied together x waves
  walk,       // steps x waves
  walk_read,  // x tensors that a step reads
  walk_load,  // steps x tensors x columns
  walk_load_4,
  walk_load_8,
  walk_load_16,
  walk_load_32,
  walk_pair,  // steps x columns of pairs, which are computed one by one
  // The warps of a block take the chunks of a column in turn.
  round,       // of a block's warps through time x waves
  round_step,  // steps of the longest chunk of each x waves: the last round may be short
  round_read,  // x steps of a chunk x tensors that a step reads
  round_load,  // rounds x steps of a chunk x tensors x columns
  round_load_1,
  round_load_2,
  round_load_4,
  round_load_8,
  round_pair,  // rounds x steps of a chunk x columns of pairs
  block_wave,  // waves of blocks
  block_load,  // columns
  block_load_4,
  // Time is cut into tiles over all blocks.
  tile,        // of time
  tile_share,  // tiles x columns of a multiprocessor, on average
  tile_load,   // steps of a worker x tensors x tiles x columns
  tile_load_1,
  tile_load_4,
  tile_pair,  // steps of a worker x tiles x columns of pairs
  tile_wave,  // tiles x columns
  column,     // columns of a multiprocessor, on average
  root_step,  // square root of the steps
  // The product with the input, M x K by K x N, in tiles of 64 x 64 or 128 x 128.
  multiply_add,
  product_byte,  // of the three matrices
  depth,         // K
  product_64,    // K x tiles of a multiprocessor
  product_64_1,
  product_64_4,
  product_128,
  product_128_1,
  product_128_4,
  product_wave,  // K x whole waves of tiles of 128 x 128
  // The same of the products of a backward pass, and the sums for the biases.
  vjp_multiply_add,
  vjp_product_byte,
  vjp_depth,
  vjp_product_64,
  vjp_product_64_1,
  vjp_product_64_4,
  vjp_product_128,
  vjp_product_128_1,
  vjp_product_128_4,
  vjp_product_wave,
  sum_byte,    // of pre-activations
  root_token,  // square root of the tokens
  // One kernel projects fours of steps and walks them; a warp has a unit of one batch entry.
  four,         // of steps
  four_read,    // x pieces of a row of the weights that a lane reads one after the other
  four_wave,    // x whole waves of blocks
  four_share,   // x gates x blocks of a multiprocessor
  direct_load,  // fours x multiply-adds of a warp x blocks
  direct_load_1,
  direct_load_2,
  direct_load_4,
  direct_load_8,
  direct_load_16,
  step_depth,  // steps x depth
  // Steps of a dense cell, one after the other: forward where one kernel makes a step, forward
  // where a product and a kernel do, and backward.
  fused_step,
  fused_byte,     // steps x bytes of R
  fused_product,  // steps x multiply-adds
  fused_depth,    // steps x H
  fused_wave,     // x whole waves of blocks
  loop_step,
  loop_byte,
  loop_product,
  loop_depth,
  loop_64_1,  // steps x depth x tiles of the product beyond one a multiprocessor
  loop_128_1,
  loop_wave,  // steps x depth x whole waves of tiles
  loop_unit,  // B x T x H
  back_step,
  back_byte,
  back_product,
  back_depth,
  back_64_1,
  back_128_1,
  back_wave,
  back_unit,
  // One kernel keeps R on the chip for the whole sequence.
  launch,         // of the forward pass, and what follows for each
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
// Whether all ways that have the term are given the same time for it: where they run the same
// kernel, what is not known of it must not decide between them.
bool shared(Term term);
using Counts = std::array<double, kTerms>;

// Problems whose time is predicted alike.
enum class Kind : std::uint8_t { scan, linear, dense };
inline constexpr Kind kKinds[] = {Kind::scan, Kind::linear, Kind::dense};
const char* name(Kind kind);  // as in the files
struct ProblemClass {
  Kind kind = Kind::linear;
  int bytes = 4;       // of an element of the tensors; of a bare scan, of a row
  int alignment = 16;  // of a line in memory: 16 bytes, or less; of a bare scan's row 32
  bool training = false;
  bool log_form = false;  // of a bare scan, else false
  bool tf32 = false;      // float32 of a layer whose products may round their operands to TF32
};

// A smooth trend over problems corrects what the terms miss. Its logarithm is a sum of products: up
// to three of the logarithms of B, T and H, and what the cell is by 1 and by each of these three.
inline constexpr int kTrends = 36;
using Trends = std::array<double, kTrends>;

// The predicted time of one way is the sum of its terms' counts times the microseconds of one,
// times e to the power of its trend.
struct Cost {
  ProblemClass of;
  Strategy strategy = Strategy::fused_sequential;
  bool across_blocks = false;  // as in Rule
  std::array<float, kTerms> us{};
  std::array<float, kTrends> trend{};
};

// Launches of a persistent kernel that together beat a step loop where nothing was measured.
inline constexpr std::int64_t kMostLaunches = 2;

// What of a problem takes time if it is run so, and the class that it is of; CUDA only.
Counts counts(const Problem& problem, const DeviceLimits& device, Strategy strategy,
              bool across_blocks);
ProblemClass class_of(const Problem& problem, const DeviceLimits& device, bool across_blocks);

// The products of a problem that every way's trend is a sum of.
Trends trends(const Problem& problem);
// Microseconds of a way.
double predicted(const Cost& cost, const Counts& counts, const Trends& trends);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
