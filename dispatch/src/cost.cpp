// SPDX-License-Identifier: Apache-2.0
// What of a problem takes time on a GPU, counted from its sizes and from how the kernels cut them.
#include "scanrnn/dispatch/cost.h"

#include <algorithm>
#include <cmath>

#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

constexpr std::int64_t kLanes = 32;
constexpr double kCacheBytes = 50e6;       // second level cache of a current GPU
constexpr std::int64_t kRoundSteps = 128;  // of a block's warps together
constexpr std::int64_t kTileSteps = 256;
constexpr std::int64_t kDirectUnits = 8;  // of a block of the direct kernel

double ceiling(double a, double b) { return std::ceil(a / b); }
double over(double share, double most) { return std::max(0.0, share - most); }

class Counter {
 public:
  Counter(const Problem& problem, const DeviceLimits& device) : p_(problem), device_(device) {}

  Counts counts() {
    const bool bare = p_.gates == 0, dense = p_.recurrence == Recurrence::dense;
    set(Term::call, 1);
    set(Term::step, steps());
    const double bytes =
        batch() * steps() * hidden() * p_.storage_bytes * (bare ? 3.0 : p_.gates + 1.0);
    set(Term::byte, bytes);
    set(Term::uncached_byte, over(bytes, kCacheBytes));
    set(Term::column, columns(1));
    if (!dense) scans(bare);
    if (!bare) products();
    if (!dense && !bare) direct();
    if (dense) {
      step_loop();
      persistent(false, Term::launch);
      if (p_.training) persistent(true, Term::vjp_launch);
    }
    return out_;
  }

 private:
  double batch() const { return static_cast<double>(p_.batch); }
  double steps() const { return static_cast<double>(p_.steps); }
  double hidden() const { return static_cast<double>(p_.hidden_size); }
  double depth() const { return static_cast<double>(p_.input_size); }
  double units() const { return static_cast<double>(device_.units); }
  double columns(int units_of_a_lane) const {
    return batch() * ceiling(hidden(), static_cast<double>(kLanes * units_of_a_lane));
  }
  double tiles(double rows, double width, double edge) const {
    return ceiling(rows, edge) * ceiling(width, edge);
  }

  void set(Term term, double count) { out_[static_cast<std::size_t>(term)] = count; }
  // `each` times what of a share is over each of these, for the terms from `first` on.
  void set_over(Term first, double each, double share, std::initializer_list<int> most) {
    int term = static_cast<int>(first);
    for (const int bound : most) set(static_cast<Term>(term++), each * over(share, bound));
  }

  void scans(bool bare) {
    const bool pairs = bare && p_.storage_bytes == 2 && p_.hidden_size % 2 == 0;
    const auto lanes = [&](bool across_blocks) {
      const bool pay = cuda_pairs_pay(p_.batch * p_.hidden_size, device_.units, across_blocks);
      return columns(pairs && pay ? 2 : 1);
    };
    const double share = lanes(false) / units();
    set_over(Term::walk, steps(), share, {0, 4, 8, 16, 32});
    const double rounds = ceiling(steps(), kRoundSteps);
    set(Term::round, rounds);
    set_over(Term::round_share, rounds, share, {0, 1, 2, 4, 8, 16});
    const double all_tiles = ceiling(steps(), kTileSteps) * lanes(true);
    set(Term::tile, ceiling(steps(), kTileSteps));
    set_over(Term::tile_share, 1, all_tiles / units(), {0, 1, 4});
    set(Term::tile_wave, ceiling(all_tiles, units()));
    set(Term::root_step, std::sqrt(steps()));
  }

  void products() {
    const double tokens = batch() * steps(), width = hidden() * p_.gates;
    set(Term::multiply_add, tokens * width * depth());
    set(Term::weight_byte, width * depth() * p_.storage_bytes);
    set(Term::depth, depth());
    set(Term::gate_byte, tokens * width * p_.storage_bytes);
    set_over(Term::product_128, depth(), tiles(tokens, width, 128) / units(), {0, 1, 4});
    set_over(Term::product_64, depth(), tiles(tokens, width, 64) / units(), {0, 1, 4});
    set(Term::product_wave, depth() * ceiling(tiles(tokens, width, 128), units()));
  }

  void direct() {
    const double fours = ceiling(steps(), 4);
    const double blocks = batch() * ceiling(hidden(), kDirectUnits);
    set(Term::direct, fours);
    set(Term::direct_depth, fours * depth());
    set_over(Term::direct_share, fours * depth() * p_.gates, blocks / units(), {0, 1, 2, 4, 8});
    set(Term::direct_wave, fours * depth() * ceiling(blocks, 8 * units()));
    set(Term::step_depth, steps() * depth());
  }

  void step_loop() {
    const bool fused = p_.batch <= cuda_fused_lines(p_.storage_bytes, p_.split_products);
    const double matrix = hidden() * hidden() * p_.gates;
    const double tile = tiles(batch(), hidden() * p_.gates, 64);
    set(fused ? Term::fused_step : Term::loop_step, steps());
    set(fused ? Term::fused_byte : Term::loop_byte, steps() * matrix * p_.storage_bytes);
    set(fused ? Term::fused_product : Term::loop_product, steps() * batch() * matrix);
    set(Term::step_width, steps() * hidden());
    set(Term::step_tile, steps() * hidden() * std::max(1.0, tile / units()));
    set(Term::step_wave, steps() * hidden() * ceiling(tile, units()));
    set(Term::unit_step, batch() * steps() * hidden());
  }

  void persistent(bool backward, Term first) {
    const PersistentShape shape = persistent_shape(p_, device_, backward);
    if (shape.tile < 0) return;
    const auto lines_at_once = static_cast<double>(shape.lines);
    const double lines = ceiling(std::min(batch(), lines_at_once), std::max(1, shape.groups));
    const double rounds = ceiling(batch(), lines_at_once), walked = steps() * rounds;
    const double launches = rounds * ceiling(steps(), static_cast<double>(shape.steps));
    const double between = shape.in_block ? 0 : walked, eights = ceiling(lines, 8);
    const double row = hidden() * p_.storage_bytes;
    const double values[] = {launches,
                             between,
                             between * eights,
                             shape.in_block ? walked : 0,
                             between * lines * row * (backward ? p_.gates : 1),
                             walked * eights * row * shape.units * p_.gates,
                             launches * row * hidden() * p_.gates,
                             walked * ceiling(shape.units * lines, kLanes * kPersistentWarps)};
    int term = static_cast<int>(first);
    for (const double value : values) set(static_cast<Term>(term++), value);
  }

  const Problem& p_;
  const DeviceLimits& device_;
  Counts out_{};
};

}  // namespace

Counts counts(const Problem& problem, const DeviceLimits& device) {
  return Counter(problem, device).counts();
}

ProblemClass class_of(const Problem& p) {
  ProblemClass out;
  const bool dense = p.recurrence == Recurrence::dense;
  out.kind = dense ? Kind::dense : p.gates == 0 ? Kind::scan : Kind::linear;
  out.gates = dense ? p.gates : 0;
  out.bytes = p.storage_bytes;
  const std::int64_t row = p.hidden_size * p.storage_bytes;
  out.alignment = row % 16 == 0 ? 16 : row % 4 == 0 ? 4 : 2;
  out.training = p.training;
  out.log_form = out.kind == Kind::scan && p.log_domain;
  return out;
}

const char* name(Kind kind) {
  constexpr const char* kNames[] = {"scan", "linear", "dense"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* name(Term term) {
  constexpr const char* kNames[kTerms] = {"call",
                                          "step",
                                          "byte",
                                          "uncached_byte",
                                          "column",
                                          "walk",
                                          "walk_over_4",
                                          "walk_over_8",
                                          "walk_over_16",
                                          "walk_over_32",
                                          "round",
                                          "round_share",
                                          "round_over_1",
                                          "round_over_2",
                                          "round_over_4",
                                          "round_over_8",
                                          "round_over_16",
                                          "tile",
                                          "tile_share",
                                          "tile_over_1",
                                          "tile_over_4",
                                          "tile_wave",
                                          "root_step",
                                          "multiply_add",
                                          "weight_byte",
                                          "depth",
                                          "gate_byte",
                                          "product_128",
                                          "product_128_over_1",
                                          "product_128_over_4",
                                          "product_64",
                                          "product_64_over_1",
                                          "product_64_over_4",
                                          "product_wave",
                                          "direct",
                                          "direct_depth",
                                          "direct_share",
                                          "direct_over_1",
                                          "direct_over_2",
                                          "direct_over_4",
                                          "direct_over_8",
                                          "direct_wave",
                                          "step_depth",
                                          "fused_step",
                                          "fused_byte",
                                          "fused_product",
                                          "loop_step",
                                          "loop_byte",
                                          "loop_product",
                                          "step_width",
                                          "step_tile",
                                          "step_wave",
                                          "unit_step",
                                          "launch",
                                          "exchange_step",
                                          "exchange_line",
                                          "block_step",
                                          "exchange_byte",
                                          "slice_product",
                                          "slice_byte",
                                          "item",
                                          "vjp_launch",
                                          "vjp_exchange_step",
                                          "vjp_exchange_line",
                                          "vjp_block_step",
                                          "vjp_exchange_byte",
                                          "vjp_slice_product",
                                          "vjp_slice_byte",
                                          "vjp_item"};
  return kNames[static_cast<std::size_t>(term)];
}

}  // namespace scanrnn::dispatch
