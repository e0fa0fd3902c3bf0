// SPDX-License-Identifier: Apache-2.0
// What of a problem takes time on a GPU, counted from its sizes and from how the kernels cut them.
#include "scanrnn/dispatch/cost.h"

#include <algorithm>
#include <cmath>

#include "scanrnn/dispatch/direct.h"
#include "scanrnn/dispatch/persistent.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

constexpr double kLanes = 32;
// Tensors that a current GPU's second level cache keeps all of, and of which it keeps nothing.
constexpr double kCachedBytes = 30e6, kUncachedBytes = 55e6;
constexpr double kWalkWarps = 4;     // of a block that walks: a multiprocessor takes whole blocks
constexpr double kTileBytes = 4096;  // of the chunk of a worker, where time is split over blocks
constexpr double kDirectWarps = 4, kDirectBlocks = 12;  // of a block, and of a multiprocessor
// Sizes are seen from the middle of what is measured, as far as that reaches; a trend is a
// correction.
constexpr double kMiddleBatch = 4, kMiddleSteps = 6, kMiddleHidden = 7, kMiddleRows = 11;
constexpr double kTrendFrom = -1.5, kTrendTo = 1.75, kMostTrend = 0.4;
constexpr double kFusedUnits = 8, kFusedLines = 8;  // of a block that makes a dense step

double ceiling(double a, double b) { return std::ceil(a / b); }
double over(double load, double most) { return std::max(0.0, load - most); }
// What of so many bytes comes from memory. Call after call reads them in the same order: where they
// have no room together, the cache has lost each when its turn comes.
double uncached(double bytes) {
  return bytes * std::min(1.0, over(bytes, kCachedBytes) / (kUncachedBytes - kCachedBytes));
}

// Units of a row of a bare scan.
int row_units(const Problem& p, const DeviceLimits& device, bool across_blocks) {
  const bool pairs = p.gates == 0 && p.storage_bytes == 2 && p.hidden_size % 2 == 0;
  return pairs && cuda_pairs_pay(p.batch * p.hidden_size, device.units, across_blocks) ? 2 : 1;
}

// Tensors that a step of a pass reads and writes, and what the kernels keep of each step.
struct Pass {
  double reads, writes;
  double streams;     // that have room in shared memory
  double item_bytes;  // in registers
  // Steps that a thread has in registers at a time.
  double chunk() const { return item_bytes <= 12 ? 16 : item_bytes <= 28 ? 8 : 4; }
  double tensors() const { return reads + writes; }
};

class Counter {
 public:
  Counter(const Problem& problem, const DeviceLimits& device, bool across_blocks)
      : p_(problem), device_(device), row_(row_units(problem, device, across_blocks)) {}

  Counts counts(Strategy strategy, bool across_blocks) {
    add(Term::call, 1);
    if (p_.recurrence == Recurrence::dense) {
      dense(strategy == Strategy::persistent);
      return out_;
    }
    // What is projected directly is walked in the same kernel, and backward by the sequential one.
    each_pass([&](const Pass& pass) {
      if (strategy != Strategy::parallel_scan) return walk(pass);
      across_blocks ? over_blocks(pass) : in_block(pass);
    });
    if (p_.gates == 0) return out_;
    if (strategy == Strategy::direct) {
      direct();
    } else {
      product(Term::multiply_add, tokens(), width(), depth());
    }
    if (p_.training) gradients();
    return out_;
  }

 private:
  double batch() const { return static_cast<double>(p_.batch); }
  double steps() const { return static_cast<double>(p_.steps); }
  double hidden() const { return static_cast<double>(p_.hidden_size); }
  double depth() const { return static_cast<double>(p_.input_size); }
  double units() const { return static_cast<double>(device_.units); }
  double bytes() const { return p_.storage_bytes; }
  double tokens() const { return batch() * steps(); }
  // Pre-activations of a token; a highway whose x has another size is projected, too.
  double width() const {
    return hidden() * (p_.gates + (p_.highway && p_.input_size != p_.hidden_size ? 1 : 0));
  }
  double columns() const { return batch() * ceiling(hidden(), kLanes * row_); }

  void add(Term term, double count) { out_[static_cast<std::size_t>(term)] += count; }
  // `each` times what of a load is over each of these, for the terms from `first` on.
  void add_over(Term first, double each, double load, std::initializer_list<int> most) {
    int term = static_cast<int>(first);
    for (const int bound : most) add(static_cast<Term>(term++), each * over(load, bound));
  }

  template <class Use>
  void each_pass(Use&& use) const {
    const double value = p_.compute_bytes;
    if (p_.gates == 0) return use(Pass{2, 1, p_.log_domain ? 3.0 : 2.0, 3 * value * row_});
    const double gates = p_.gates, readout = p_.readout, highway = p_.highway;
    const double kept = p_.training ? readout : 0;
    use(Pass{gates + highway, 1 + kept, gates + highway, value * (gates + 1)});
    if (!p_.training) return;
    const double reads = gates + 2 + readout + highway;
    use(Pass{reads, gates + highway, reads, value * (gates + 4)});
  }

  // While one block of a multiprocessor walks, memory waits for it; only what comes with more
  // columns adds to the time.
  void add_bytes(const Pass& pass, double share) {
    const double all = tokens() * hidden() * bytes() * pass.tensors();
    add(Term::byte, all * share);
    add(Term::uncached_byte, uncached(all) * share);
  }

  void walk(const Pass& pass) {
    const double blocks = ceiling(columns(), kWalkWarps), chunks = ceiling(steps(), pass.chunk());
    const double load = kWalkWarps * ceiling(blocks, units());
    // Registers allow so many blocks a multiprocessor, and shared memory with its four stages.
    const double registers = pass.streams <= 3 ? 6 : pass.streams <= 6 ? 4 : 3;
    const double stages = 4 * kWalkWarps * pass.streams * pass.chunk() * kLanes * row_ * bytes();
    const double room = std::floor(static_cast<double>(device_.shared_bytes) / stages);
    const double waves = ceiling(blocks, units() * std::max(1.0, std::min(registers, room)));
    add_bytes(pass, over(1, kWalkWarps * units() / columns()));
    add(Term::chunk, chunks * waves);
    add(Term::walk, steps() * waves);
    add(Term::walk_read, chunks * pass.chunk() * pass.reads * waves);
    add_over(Term::walk_load, steps() * pass.tensors(), load, {0, 4, 8, 16, 32});
    if (row_ > 1) add(Term::walk_pair, steps() * load);
  }

  void in_block(const Pass& pass) {
    const double load = ceiling(columns(), units());
    // Blocks that the registers of a multiprocessor hold: one to three.
    const double resident = std::clamp(std::floor(10 / pass.streams), 1.0, 3.0);
    const double waves = ceiling(load, resident);
    const double round = kCudaBlockWarps * pass.chunk(), rounds = ceiling(steps(), round);
    // The first warp has the longest chunk of the last round.
    const double walked =
        (rounds - 1) * pass.chunk() + std::min(pass.chunk(), steps() - (rounds - 1) * round);
    const double worked = ceiling(steps(), pass.chunk()) / kCudaBlockWarps * pass.chunk();
    add_bytes(pass, 1);
    add(Term::round, rounds * waves);
    add(Term::round_step, walked * waves);
    add(Term::round_read, rounds * pass.chunk() * pass.reads * waves);
    add_over(Term::round_load, worked * pass.tensors(), load, {0, 1, 2, 4, 8});
    if (row_ > 1) add(Term::round_pair, worked * load);
    add(Term::block_wave, waves);
    add_over(Term::block_load, 1, load, {0, 4});
  }

  void over_blocks(const Pass& pass) {
    double worker = 16;  // steps of a worker's chunk
    while (worker > 4 && pass.streams * worker * kLanes * row_ * bytes() > kTileBytes) worker /= 2;
    // Each part of a row has service warps of its own, which take the place of workers.
    const double workers = row_ > 1 ? kCudaDeviceWarps - 2 : kCudaDeviceWarps;
    const double tiles = ceiling(steps(), workers * worker), share = tiles * columns() / units();
    add_bytes(pass, 1);
    add(Term::tile, tiles);
    add(Term::tile_share, share);
    add_over(Term::tile_load, worker * pass.tensors(), std::ceil(share), {0, 1, 4});
    if (row_ > 1) add(Term::tile_pair, worker * share);
    add(Term::tile_wave, std::ceil(share));
    add(Term::column, columns() / units());
    add(Term::root_step, std::sqrt(steps()));
  }

  double tiles(double rows, double columns, double edge) const {
    return ceiling(rows, edge) * ceiling(columns, edge);
  }
  void product(Term first, double rows, double columns, double depth) {
    const auto term = [&](Term forward) {
      return static_cast<Term>(static_cast<int>(first) + static_cast<int>(forward) -
                               static_cast<int>(Term::multiply_add));
    };
    add(first, rows * columns * depth);
    add(term(Term::product_byte), bytes() * (rows * depth + depth * columns + rows * columns));
    add(term(Term::depth), depth);
    add_over(term(Term::product_64), depth, tiles(rows, columns, 64) / units(), {0, 1, 4});
    add_over(term(Term::product_128), depth, tiles(rows, columns, 128) / units(), {0, 1, 4});
    add(term(Term::product_wave), depth * ceiling(tiles(rows, columns, 128), units()));
  }
  void gradients() {
    product(Term::vjp_multiply_add, tokens(), depth(), width());
    product(Term::vjp_multiply_add, width(), depth(), tokens());
    add(Term::sum_byte, tokens() * width() * bytes());
    add(Term::root_token, std::sqrt(tokens()));
  }

  void direct() {
    const int piece = cuda_direct_piece(p_.input_size, p_.storage_bytes);
    const bool vectors = piece * p_.storage_bytes == 16;
    // Tensor cores read the weights once for all lines of a step.
    const bool once = vectors && cuda_direct_step(p_.steps, p_.batch, p_.storage_bytes);
    const double together = static_cast<double>(cuda_direct_lines(p_.steps));
    const double lines = once ? 1 : ceiling(batch(), together);
    const double fours = ceiling(steps(), kCudaDirectTokens),
                 load = lines * ceiling(hidden(), kDirectWarps) / units();
    const double reads = ceiling(depth(), kLanes * piece);
    add(Term::four, fours);
    add(Term::four_read, fours * reads);
    add(Term::four_wave, fours * reads * ceiling(load, kDirectBlocks));
    add(Term::four_share, fours * p_.gates * load);
    add_over(Term::direct_load, fours * depth() * p_.gates, load, {0, 1, 2, 4, 8, 16});
    add(Term::step_depth, steps() * depth());
  }

  void dense(bool whole) {
    const bool fused = fuses_steps(p_, device_);
    bool walks_back = p_.training;
    if (whole) {
      const double all = tokens() * hidden() * bytes() * (p_.gates + 1) * (p_.training ? 3 : 1);
      add(Term::byte, all);
      add(Term::uncached_byte, uncached(all));
      persistent(false, Term::launch);
      if (p_.training && persistent(true, Term::vjp_launch)) walks_back = false;
    } else if (fused) {
      fused_steps();
    } else {
      product_steps(Term::loop_step, width(), hidden());
    }
    if (walks_back) product_steps(Term::back_step, hidden(), width());
    const bool projects = fused && p_.steps == 1 && !whole;  // the step's kernel does
    if (!projects) product(Term::multiply_add, tokens(), width(), depth());
    if (!p_.training) return;
    gradients();
    if (p_.steps > 1) product(Term::vjp_multiply_add, width(), hidden(), tokens() - batch());
  }
  void fused_steps() {
    const double blocks = ceiling(hidden(), kFusedUnits) * ceiling(batch(), kFusedLines);
    add(Term::fused_step, steps());
    add(Term::fused_byte, steps() * hidden() * width() * bytes());
    add(Term::fused_product, tokens() * hidden() * width());
    add(Term::fused_depth, steps() * hidden());
    add(Term::fused_wave, steps() * hidden() * ceiling(blocks, units()));
  }
  // A product of the batch with R, and a kernel; the terms from `first` on.
  void product_steps(Term first, double columns, double depth) {
    const double small = tiles(batch(), columns, 64), large = tiles(batch(), columns, 128);
    const double values[] = {steps(),
                             steps() * hidden() * width() * bytes(),
                             tokens() * hidden() * width(),
                             steps() * depth,
                             steps() * depth * over(small / units(), 1),
                             steps() * depth * over(large / units(), 1),
                             steps() * depth * ceiling(small, units()),
                             tokens() * hidden()};
    int term = static_cast<int>(first);
    for (const double value : values) add(static_cast<Term>(term++), value);
  }

  // Whether R fits on the chip.
  bool persistent(bool backward, Term first) {
    DeviceLimits fitted = device_;
    fitted.warp_groups = false;
    const PersistentShape shape = persistent_shape(p_, fitted, backward);
    if (shape.tile < 0) return false;
    // What was fitted is of warps on their own. Warp groups take as much less of all of it as their
    // clocks are fewer.
    const PersistentShape best = persistent_shape(p_, device_, backward);
    const double share = clocks(p_, device_, best, backward) / clocks(p_, fitted, shape, backward);
    const auto lines_at_once = static_cast<double>(shape.lines);
    const auto heads = static_cast<double>(p_.heads);
    const double lines = ceiling(std::min(batch(), lines_at_once), std::max(1, shape.groups));
    const double rounds = ceiling(batch(), lines_at_once) * ceiling(heads, shape.heads);
    const double walked = steps() * rounds;
    const double launches = rounds * ceiling(steps(), static_cast<double>(shape.steps));
    const double between = shape.in_block ? 0 : walked, eights = ceiling(lines, 8);
    const double units = hidden() / heads, row = units * bytes();  // of a head
    const double values[] = {launches,
                             between,
                             between * eights,
                             shape.in_block ? walked : 0,
                             between * lines * row * (backward ? p_.gates : 1),
                             walked * eights * row * shape.units * p_.gates,
                             launches * row * units * shape.heads * p_.gates,
                             walked * ceiling(shape.units * lines, kLanes * kPersistentWarps)};
    int term = static_cast<int>(first);
    for (const double value : values) add(static_cast<Term>(term++), share * value);
    return true;
  }

  const Problem& p_;
  const DeviceLimits& device_;
  const double row_;  // units of a row
  Counts out_{};
};

}  // namespace

Counts counts(const Problem& problem, const DeviceLimits& device, Strategy strategy,
              bool across_blocks) {
  return Counter(problem, device, across_blocks).counts(strategy, across_blocks);
}

ProblemClass class_of(const Problem& p, const DeviceLimits& device, bool across_blocks) {
  ProblemClass out;
  const bool dense = p.recurrence == Recurrence::dense;
  out.kind = dense ? Kind::dense : p.gates == 0 ? Kind::scan : Kind::linear;
  out.bytes = p.storage_bytes * row_units(p, device, across_blocks);
  const std::int64_t line = p.hidden_size * p.storage_bytes;
  // Copies of less than 16 bytes take a row each, and wait where that is less than a word; products
  // tell apart what begins at a word. Bare scans copy any row by vectors; where one begins inside a
  // sector of memory, two columns share that.
  const int word = line % 4 == 0 ? 4 : 2;
  if (out.kind == Kind::scan) {
    out.alignment = line % 32 == 0 ? 32 : line % 16 == 0 ? 16 : p.storage_bytes;
  } else {
    out.alignment = line % 16 == 0 ? 16 : word;
  }
  out.training = p.training;
  out.log_form = out.kind == Kind::scan && p.log_domain;
  out.tf32 = out.kind != Kind::scan && p.storage_bytes == 4 && !p.split_products;
  return out;
}

Trends trends(const Problem& p) {
  const auto at = [](std::int64_t size, double middle) {
    return std::clamp((std::log2(size) - middle) / 4, kTrendFrom, kTrendTo);
  };
  const bool scan = p.gates == 0;
  // With 1 among them, products of three are products of up to three.
  const std::array<double, 4> sizes = {
      1, scan ? 0 : at(p.batch, kMiddleBatch), at(p.steps, kMiddleSteps),
      scan ? at(p.batch * p.hidden_size, kMiddleRows) : at(p.hidden_size, kMiddleHidden)};
  const std::array<double, 4> cell = {scan ? p.log_domain : p.gates - 3.0, scan ? 0.0 : p.readout,
                                      scan ? 0.0 : p.highway,
                                      p.recurrence == Recurrence::diagonal ? 1.0 : 0.0};
  Trends out{};
  std::size_t next = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = i; j < sizes.size(); ++j) {
      for (std::size_t k = j; k < sizes.size(); ++k) out[next++] = sizes[i] * sizes[j] * sizes[k];
    }
  }
  for (const double trait : cell) {
    for (const double size : sizes) out[next++] = trait * size;
  }
  return out;
}

double predicted(const Cost& cost, const Counts& counts, const Trends& trends) {
  double us = 0, trend = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) us += counts[i] * static_cast<double>(cost.us[i]);
  for (std::size_t i = 0; i < trends.size(); ++i) {
    trend += trends[i] * static_cast<double>(cost.trend[i]);
  }
  return us * std::exp(std::clamp(trend, -kMostTrend, kMostTrend));
}

}  // namespace scanrnn::dispatch
