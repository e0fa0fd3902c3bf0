// SPDX-License-Identifier: Apache-2.0
// How a persistent kernel cuts a dense layer: every tile that holds the weights, and the cheapest;
// and what is left of a device for each of several layer calls at the same time.
#include <algorithm>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

constexpr std::int64_t kThreads = 32 * kPersistentWarps;
constexpr std::int64_t kChunkWords = 16, kWordBytes = 4;

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Each head is a recurrence of its own, of so many units.
std::int64_t head_units(const Problem& p) { return p.hidden_size / p.heads; }

// Words of one value of all units of a head in a line: whole pieces of 16 bytes.
std::int64_t block_words(const Problem& p) {
  return ceiling(head_units(p) * p.storage_bytes, 16) * 4;
}

// Memory for the exchange of one launch. The host does not know when packed sequences end, and each
// launch that finds none left takes its time, so that there may be as much as the projection has.
std::int64_t most_exchange_bytes(const Problem& p) {
  if (p.layout != Batch::packed) return kPersistentExchangeBytes;
  const std::int64_t projected = p.steps * p.batch * p.gates * p.hidden_size * p.storage_bytes;
  return std::max(kPersistentExchangeBytes, 2 * projected);
}

// What a pass exchanges for each line of a head and step: h, or the cotangents of R h.
std::int64_t words_of(const Problem& p, bool backward) {
  return (backward ? p.gates : 1) * block_words(p);
}

// One sum for each unit (backward), or those of its gates (forward); the padding spreads the
// columns of a fragment over the banks.
std::int64_t line_floats(bool backward, std::int64_t units) {
  return (backward ? ceiling(units, 16) * 16 : 4 * units) + 4;
}

// Heads that are walked at the same time where each takes at least so many blocks; and how often.
// All launches have as many, but for the last. No heads where one alone does not fit.
std::int64_t heads_at_once(const Problem& p, const DeviceLimits& device, std::int64_t blocks) {
  const std::int64_t most = device.units / blocks;
  return most < 1 ? 0 : ceiling(p.heads, ceiling(p.heads, most));
}
double rounds_of(const Problem& p, const PersistentShape& shape) {
  return static_cast<double>(ceiling(p.heads, shape.heads));
}
// Groups of lines for what is left of the device.
int groups_of(const Problem& p, const DeviceLimits& device, std::int64_t blocks) {
  return static_cast<int>(
      std::clamp<std::int64_t>(device.units / blocks, 1, std::max<std::int64_t>(1, p.batch)));
}

// Clocks of a step on an H200, fitted to measured shapes within a fifth: a round trip through the
// second level cache and the words that a block receives, products that two warps issue in turn,
// and the sums and cells of its items.
double clocks(const Problem& p, const PersistentTile& tile, const PersistentShape& shape,
              bool backward) {
  const std::int64_t lines = ceiling(std::min(p.batch, shape.lines), shape.groups);
  const double received = static_cast<double>(lines * words_of(p, backward) * kWordBytes);
  const double rounds = static_cast<double>(ceiling(lines, 8) * (tile.chunks / tile.fetched));
  const double products = static_cast<double>(
      ceiling(lines, 8) * tile.chunks * ceiling(tile.unit_blocks * (backward ? 1 : p.gates), 2));
  const double items = static_cast<double>(ceiling(shape.units * lines, kThreads));
  const double launches = static_cast<double>(ceiling(p.batch, shape.lines)) * rounds_of(p, shape);
  const double each = p.split_products ? 4 : 1;  // three products, and taking operands apart
  return launches *
         (350 + 200 * rounds + 0.03 * received + 28 * each * products + 300 + 300 * items);
}

// The shape of a tile whose warps lie `along` times along the units; no tile where it has no room.
PersistentShape cut(const Problem& p, const DeviceLimits& device, const PersistentTile& tile,
                    int along, bool backward) {
  PersistentShape out;
  const std::int64_t warps_along_sum = kPersistentWarps / along;
  if (warps_along_sum * tile.chunks * kChunkWords < words_of(p, backward)) return out;
  const std::int64_t whole = block_words(p) * kWordBytes / p.storage_bytes;
  const std::int64_t units = std::int64_t{8} * tile.unit_blocks * along;
  const std::int64_t slices = ceiling(whole, units);
  const std::int64_t heads = heads_at_once(p, device, slices);
  if (heads < 1) return out;
  // As many lines as threads can step and as shared memory has partial sums for, twice.
  const std::int64_t line_bytes = 2 * warps_along_sum * line_floats(backward, units) * kWordBytes;
  const std::int64_t most =
      std::min(tile.items * kThreads / units, device.shared_bytes / line_bytes / 2 * 2);
  if (most < 1) return out;
  out.units = static_cast<int>(units);
  out.slices = static_cast<int>(slices);
  out.heads = static_cast<int>(heads);
  out.groups = groups_of(p, device, slices * heads);
  out.warps_along_units = along;
  out.split_products = p.split_products;
  out.block_words = static_cast<int>(block_words(p));
  out.line_floats = static_cast<int>(line_floats(backward, units));
  out.shared_bytes = static_cast<int>(device.shared_bytes);
  out.lines = most * out.groups;
  const std::int64_t step_bytes = ceiling(words_of(p, backward), kChunkWords) * kChunkWords *
                                  kWordBytes * heads *
                                  std::max<std::int64_t>(1, std::min(p.batch, out.lines));
  out.steps = std::max<std::int64_t>(1, most_exchange_bytes(p) / step_bytes - 1);
  out.tile = 0;
  return out;
}

// The same where each block has all of R: no exchange, but all products on one multiprocessor.
double clocks(const Problem& p, const PersistentBlock& block, const PersistentShape& shape) {
  const double products = static_cast<double>(block.chunks * block.tiles);
  return rounds_of(p, shape) * (500 + (p.split_products ? 98 : 28) * products);
}

PersistentShape cut(const Problem& p, const DeviceLimits& device, const PersistentBlock& block,
                    int unit_blocks) {
  PersistentShape out;
  const std::int64_t units = std::int64_t{8} * unit_blocks * kPersistentWarps;
  // With products in three the larger block has so many of them that slices are faster.
  const bool slow = p.split_products && unit_blocks > 1;
  if (head_units(p) > units || slow || block.shared_bytes > device.shared_bytes) return out;
  const std::int64_t groups = std::max<std::int64_t>(1, ceiling(p.batch, block.lines));
  const std::int64_t heads = heads_at_once(p, device, groups);
  if (heads < 1) return out;  // slices need no second launch of lines
  out.in_block = true;
  out.units = static_cast<int>(units);
  out.slices = 1;
  out.heads = static_cast<int>(heads);
  out.groups = groups_of(p, device, heads);
  out.split_products = p.split_products;
  out.lines = std::int64_t{block.lines} * out.groups;
  out.steps = std::max<std::int64_t>(1, p.steps);
  out.tile = 0;
  return out;
}

}  // namespace

PersistentShape persistent_shape(const Problem& p, const DeviceLimits& device, bool backward) {
  PersistentShape best;
  if (p.storage_bytes > 4 || p.hidden_size > kPersistentMaxHidden) return best;
  double least = 0;
  const auto consider = [&](PersistentShape shape, int index, double cost) {
    if (best.tile >= 0 && cost >= least) return;
    shape.tile = index;
    best = shape;
    least = cost;
  };
  const auto slices = [&](const PersistentTile& tile, int index) {
    for (int along = 1; along <= kPersistentWarps; along *= 2) {
      const PersistentShape shape = cut(p, device, tile, along, backward);
      if (shape.tile >= 0) consider(shape, index, clocks(p, tile, shape, backward));
    }
  };
  int index = 0;
  if (backward) {
    for (const PersistentTile& tile : kPersistentBackward) slices(tile, index++);
    return best;
  }
  for (const PersistentTile& tile : kPersistentForward) slices(tile, index++);
  index = 0;
  for (const int unit_blocks : kPersistentBlockUnits) {
    const PersistentBlock block = persistent_block(unit_blocks, p.gates, p.storage_bytes);
    const PersistentShape shape = cut(p, device, block, unit_blocks);
    if (shape.tile >= 0) consider(shape, index, clocks(p, block, shape));
    ++index;
  }
  return best;
}

bool run_at_once(Plan& plan, int most, std::int64_t part_steps) {
  const Problem& p = plan.problem;
  if (p.at_once < 2 || most < 2 || (p.chained && p.layout != Batch::rectangular)) return false;
  const std::int64_t groups = ceiling(p.at_once, most);  // one after the other, of equal size
  const int count = static_cast<int>(ceiling(p.at_once, groups));
  const std::int64_t steps = std::max<std::int64_t>(1, p.steps);
  const std::int64_t part = p.chained ? std::clamp<std::int64_t>(part_steps, 1, steps) : 0;
  if (plan.device.processor == Processor::cuda) {
    if (plan.strategy != Strategy::persistent) return false;
    DeviceLimits share = plan.device;
    share.units /= count;
    PersistentShape shapes[2];
    for (const bool backward : {false, true}) {
      if (backward && plan.persistent_vjp.tile < 0) continue;
      PersistentShape& shape = shapes[backward];
      shape = persistent_shape(p, share, backward);
      if (shape.tile < 0 || shape.lines < p.batch) return false;
      if (part > 0) shape.steps = std::min(shape.steps, part);
    }
    plan.persistent = shapes[0];
    if (plan.persistent_vjp.tile >= 0) plan.persistent_vjp = shapes[1];
  }
  plan.at_once = count;
  plan.part_steps = part;
  return true;
}

std::int64_t exchange_bytes(const Problem& p, const PersistentShape& shape, bool backward) {
  if (shape.in_block) return 0;
  const std::int64_t chunks = ceiling(words_of(p, backward), kChunkWords);
  return (std::min(p.steps, shape.steps) + 1) * chunks * shape.heads *
         std::min(p.batch, shape.lines) * kChunkWords * kWordBytes;
}

}  // namespace scanrnn::dispatch
