// SPDX-License-Identifier: Apache-2.0
// How a persistent kernel cuts a dense layer: every tile that holds the weights, and the cheapest.
#include "scanrnn/dispatch/persistent.h"

#include <algorithm>

#include "scanrnn/dispatch/large.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

constexpr std::int64_t kThreads = 32 * kPersistentWarps;
constexpr std::int64_t kChunkWords = 16, kWordBytes = 4;

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
  const std::int64_t tokens = knows_lengths(p) ? p.steps : p.steps * p.batch;
  const std::int64_t projected = tokens * p.gates * p.hidden_size * p.storage_bytes;
  return std::max(kPersistentExchangeBytes, 2 * projected);
}

// A pass over a layer, or in one launch over so many of a chain.
struct Pass {
  bool backward = false;
  int layers = 1;

  bool chain() const { return layers > 1; }
  // Row blocks of R, and of a chain W, that a unit has: of its gates, or of all of its sums, of
  // which only one of the two may have a share.
  int blocks(const Problem& p) const { return chain() ? p.sums : p.gates; }
  // Rows of weights that a block multiplies by for each unit: backward it has the unit's column.
  int rows(const Problem& p) const { return backward ? 1 : blocks(p); }
};

// What a pass exchanges for each line of a head and step, h or the cotangents of the sums; and what
// a product reads, in a chain of the layer before, too.
std::int64_t sent_words(const Problem& p, const Pass& pass) {
  return (pass.backward ? pass.blocks(p) : 1) * block_words(p);
}
std::int64_t summed_words(const Problem& p, const Pass& pass) {
  return (pass.chain() ? 2 : 1) * sent_words(p, pass);
}
// Slots of an exchange of so many steps: one for what comes before them, and of a chain one for
// each layer that begins later. A step that resets h has two products.
std::int64_t slots_of(const Problem& p, const Pass& pass, std::int64_t steps) {
  return (p.resets ? 2 : 1) * steps + pass.layers;
}
// Words of the totals of a line's norms.
std::int64_t total_words(const Problem& p) {
  return by_lines(p) && p.normed ? kLineTotals * line_total_words(head_units(p)) : 0;
}
std::int64_t slot_bytes(const Problem& p, const PersistentShape& shape, const Pass& pass) {
  const std::int64_t chunks = ceiling(sent_words(p, pass), kChunkWords) * pass.layers;
  return (chunks * kChunkWords + total_words(p)) * kWordBytes * shape.heads *
         std::max<std::int64_t>(1, std::min(p.batch, shape.lines));
}

// One sum for each unit (backward), or those of its gates (forward); the padding spreads the
// columns of a fragment over the banks.
std::int64_t line_floats(bool backward, std::int64_t units) {
  return (backward ? ceiling(units, 16) * 16 : 4 * units) + 4;
}

// Heads that are walked at the same time where each takes at least so many blocks, as many in each
// launch but the last, none where one does not fit; and how often.
std::int64_t heads_at_once(const Problem& p, const DeviceLimits& device, std::int64_t blocks) {
  const std::int64_t most = device.units / blocks;
  return most < 1 ? 0 : in_equal_groups(p.heads, most);
}
double rounds_of(const Problem& p, const PersistentShape& shape) {
  return static_cast<double>(ceiling(p.heads, shape.heads));
}
// Groups of lines for what is left of the device.
int groups_of(const Problem& p, const DeviceLimits& device, std::int64_t blocks) {
  return static_cast<int>(
      std::clamp<std::int64_t>(device.units / blocks, 1, std::max<std::int64_t>(1, p.batch)));
}

// Clocks of a step on an H200, fitted to 1800 measured shapes of 38 problems in 16 bits. For these
// and 34 measured since, the shape of the fewest takes 0.5 % longer than the best on average.
double clocks(const Problem& p, const PersistentTile& tile, const PersistentShape& shape,
              const Pass& pass) {
  const std::int64_t lines = ceiling(std::min(p.batch, shape.lines), shape.groups);
  const auto tiles = ceiling(tile.unit_blocks * pass.rows(p), 2), eights = ceiling(lines, 8);
  const auto products = [&](int chunks) { return static_cast<double>(eights * chunks * tiles); };
  // Three products, and taking operands apart; or multiply-adds of a few lines. In float32 the
  // numbers are those of 1275 cuts of 112 problems of a GRU.
  const bool adds = p.split_products && lines <= kPersistentFewLines;
  const bool splits = p.split_products && !adds;
  const std::int64_t waits = adds ? ceiling(lines, persistent_few_at_once(tiles)) : eights;
  const double plain = pass.backward ? 34 : 31, split = pass.backward ? 830 : 320;
  const double add = (pass.backward ? 120.0 : 40.0) * static_cast<double>(lines);
  const double each = adds ? add : splits ? split : plain;
  const std::int64_t items = shape.units * lines;
  const std::int64_t busy = std::min<std::int64_t>(kPersistentWarps, ceiling(items, 32));
  const std::int64_t later = ceiling(items, kThreads) - 1;  // items of a thread after its first
  double step = 0;
  if (pass.backward) {
    const std::int64_t rounds = eights * (tile.chunks / tile.fetched);
    const std::int64_t words = sent_words(p, pass) * lines * shape.warps_along_units;  // waited for
    step = static_cast<double>(1460 + 360 * rounds + 110 * busy + 365 * (tile.items - 1) +
                               1230 * later) +
           0.074 * static_cast<double>(words) + 40 * products(tile.shared_chunks);
  } else {
    // Registers of a thread that are kept for long; those of more than there are go to memory.
    const std::int64_t kept = tile.chunks - tile.shared_chunks;
    const std::int64_t registers = 8 * kept * tiles + 4 * tile.fetched + 36 * tile.items + 16;
    const std::int64_t spilled = std::max<std::int64_t>(0, registers - 230);
    // Operands that are taken apart need some more, and what is spilled is read at each product.
    const std::int64_t apart = splits ? std::max<std::int64_t>(0, registers - 213) : 0;
    // Warps that have something of the sum, each of which leaves a part of it.
    const auto parts = std::min(kPersistentWarps / std::int64_t{shape.warps_along_units},
                                ceiling(ceiling(summed_words(p, pass), kChunkWords), tile.chunks));
    step = static_cast<double>(1220 + 280 * waits + lines + 105 * busy + 10 * parts + 68 * spilled +
                               90 * eights * apart + 320 * (tile.items - 1) + 410 * later +
                               shape.units) +
           30 * products(tile.shared_chunks);
    if (tile.unit_blocks == 1) step += static_cast<double>(140 + 14 * lines);
    step += 5 * shape.slices + 3 * std::max(0, shape.slices - 64);  // that wait for the same words
  }
  const int turns = p.resets ? 2 : 1;  // of a step
  step *= turns;
  // A warp adds up a line at a time.
  if (by_lines(p) && p.normed) step += static_cast<double>(kLineTotals * (500 + 600 * eights));
  const double launches = static_cast<double>(ceiling(p.batch, shape.lines)) * rounds_of(p, shape);
  return launches * (step + each * turns * products(tile.chunks));
}

// The shape of a tile whose warps lie `along` times along the units; no tile where it has no room.
PersistentShape cut(const Problem& p, const DeviceLimits& device, const PersistentTile& tile,
                    int along, const Pass& pass) {
  PersistentShape out;
  const std::int64_t warps_along_sum = kPersistentWarps / along;
  const bool has_room = warps_along_sum * tile.chunks * kChunkWords >= summed_words(p, pass);
  if (!tile.serves(p.storage_bytes) || !has_room) return out;
  if (pass.chain() && block_words(p) % kChunkWords != 0) return out;  // a chunk is one layer's
  const std::int64_t whole = block_words(p) * kWordBytes / p.storage_bytes;
  const std::int64_t units = std::int64_t{8} * tile.unit_blocks * along;
  const std::int64_t slices = ceiling(whole, units);
  const std::int64_t heads = heads_at_once(p, device, slices);
  if (heads < 1) return out;
  // As many lines as threads can step and as shared memory has partial sums for, twice.
  const auto line_bytes = 2 * warps_along_sum * line_floats(pass.backward, units) * kWordBytes;
  const std::int64_t room = device.shared_bytes - persistent_shared_bytes(tile, pass.rows(p));
  const std::int64_t most = std::min(tile.items * kThreads / units, room / line_bytes / 2 * 2);
  if (most < 1) return out;
  out.units = static_cast<int>(units);
  out.slices = static_cast<int>(slices);
  out.heads = static_cast<int>(heads);
  out.groups = groups_of(p, device, slices * heads);
  out.warps_along_units = along;
  out.block_words = static_cast<int>(block_words(p));
  out.line_floats = static_cast<int>(line_floats(pass.backward, units));
  out.shared_bytes = static_cast<int>(device.shared_bytes);
  out.lines = most * out.groups;
  // TF32 takes up to 31 % longer than exact multiply-adds where a group has one line (H200, LSTM
  // and GRU of 192 to 1024 units); with two it takes less. Chains and whole lines were not
  // measured.
  const bool alone = p.storage_bytes == 4 && std::min(p.batch, out.lines) <= out.groups;
  out.split_products = p.split_products || (alone && !pass.chain() && !by_lines(p));
  out.layers = pass.layers;
  const std::int64_t slots = most_exchange_bytes(p) / slot_bytes(p, out, pass);
  const std::int64_t before = slots_of(p, pass, 0), each = slots_of(p, pass, 1) - before;
  out.steps = std::max<std::int64_t>(1, (slots - before) / each);
  out.tile = 0;
  return out;
}

// The same by warp groups, fitted to measured problems of an LSTM and a GRU: forward to 12, with 3
// % of error on average, and backward to 36 cuts of 26, with 4 %. A cell of fewer gates has as many
// rows forward.
double clocks(const Problem& p, const LargeTile& tile, const PersistentShape& shape,
              const Pass& pass) {
  const double lines = tile.lines, hidden = static_cast<double>(p.hidden_size);
  double step = 0;
  if (pass.backward) {
    const auto pieces = static_cast<double>(large_back_pieces(p.hidden_size, p.gates));
    step = 470 + 3.9 * hidden + 11 * shape.slices * shape.groups + lines * (142 + 1.65 * pieces) +
           19 * (pieces - tile.kept);
  } else {
    step = 980 + lines * (6.3 + 11 * std::max(p.gates, 3) + 0.088 * hidden) +
           0.8 * (hidden - kLargeGroups * kLargePiece * tile.kept);
  }
  return static_cast<double>(ceiling(p.batch, shape.lines)) * step;
}

// Whether warp groups can walk a pass.
bool fits_warp_groups(const Problem& p, const DeviceLimits& device) {
  return device.warp_groups && p.storage_bytes == 2 && p.heads == 1 && !p.draws;
}

// What a cut is chosen by. Padded batches may be as long as they are wide, or have resets alone, so
// that theirs are those that walk a full batch fastest.
template <class Tile>
double cost(const Problem& p, const Tile& tile, const PersistentShape& shape, const Pass& pass) {
  const double each = clocks(p, tile, shape, pass);
  if (p.layout != Batch::packed || pass.chain()) return each;
  return std::min(each, kSharedClocks * clocks(with_shared_lines(p), tile, shape, pass));
}

PersistentShape cut(const Problem& p, const DeviceLimits& device, const LargeTile& tile,
                    const Pass& pass) {
  PersistentShape out;
  const bool back = pass.backward;
  const std::int64_t hidden = p.hidden_size;
  if (!(back ? large_back_fits(tile, hidden, p.gates) : large_fits(tile, hidden))) return out;
  const LargeMemory memory =
      back ? large_back_memory(tile, hidden, p.gates) : large_memory(tile, hidden);
  const std::int64_t units = back ? kLargeBackUnits : kLargeUnits;
  const std::int64_t slices = hidden / units;
  if (slices > device.units || memory.all() > device.shared_bytes) return out;
  out.large = true;
  out.units = static_cast<int>(units);
  out.slices = static_cast<int>(slices);
  out.groups = static_cast<int>(
      std::clamp<std::int64_t>(ceiling(p.batch, tile.lines), 1, device.units / slices));
  out.block_words = static_cast<int>(block_words(p));
  out.shared_bytes = static_cast<int>(device.shared_bytes);
  out.lines = std::int64_t{tile.lines} * out.groups;
  out.steps = std::max<std::int64_t>(1, most_exchange_bytes(p) / slot_bytes(p, out, pass) - 1);
  out.tile = 0;
  return out;
}

// The same where each block has all of R: no exchange, but all products on one multiprocessor. More
// than is measured, by as much as a grid of few blocks, beside which it stands.
constexpr double kBesideGrid = 470;
double clocks(const Problem& p, const PersistentBlock& block, const PersistentShape& shape) {
  return rounds_of(p, shape) * (640 + kBesideGrid + 150 * p.gates + 8 * block.chunks * block.tiles);
}

// Blocks that have all units of a head, and so many lines each.
PersistentShape in_block(const Problem& p, const DeviceLimits& device, std::int64_t units,
                         std::int64_t heads, std::int64_t lines) {
  PersistentShape out;
  out.in_block = true;
  out.units = static_cast<int>(units);
  out.slices = 1;
  out.heads = static_cast<int>(heads);
  out.groups = groups_of(p, device, heads);
  out.lines = lines * out.groups;
  out.steps = std::max<std::int64_t>(1, p.steps);
  out.tile = 0;
  return out;
}

PersistentShape cut(const Problem& p, const DeviceLimits& device, const PersistentBlock& block,
                    int unit_blocks) {
  PersistentShape out;
  const std::int64_t units = std::int64_t{8} * unit_blocks * kPersistentWarps;
  if (head_units(p) > units || block.shared_bytes > device.shared_bytes) return out;
  const std::int64_t groups = std::max<std::int64_t>(1, ceiling(p.batch, block.lines));
  const std::int64_t heads = heads_at_once(p, device, groups);
  if (heads < 1) return out;  // slices need no second launch of lines
  return in_block(p, device, units, heads, block.lines);
}

// By multiply-adds, a line each. The numbers are of an H200, with 16 lines, and with 192.
double clocks(const Problem& p, const DeviceLimits& device, const PersistentAlone& alone,
              const PersistentShape& shape, bool backward) {
  const double weights = alone.weights, gates = p.gates, more = std::max(0.0, weights - 64);
  const double step =
      backward ? 450 + 130 * gates + weights + 4 * more : 560 + 40 * gates + weights + 3.8 * more;
  const bool share = std::int64_t{shape.groups} * shape.heads > device.units;
  const double launches = static_cast<double>(ceiling(p.batch, shape.lines)) * rounds_of(p, shape);
  return launches * (step * (share ? 1.3 : 1) + (backward ? 0 : kBesideGrid));
}

PersistentShape cut(const Problem& p, const DeviceLimits& device, const PersistentAlone& alone) {
  PersistentShape out;
  if (head_units(p) > alone.units || alone.shared_bytes > device.shared_bytes) return out;
  DeviceLimits all = device;
  all.units *= alone.resident;
  const std::int64_t lines = std::clamp<std::int64_t>(p.batch, 1, all.units);
  out = in_block(p, all, alone.units, heads_at_once(p, all, lines), 1);
  out.alone = true;
  return out;
}

template <class F>
auto with_tiles(const Problem& p, const Pass& pass, F&& f) {
  if (by_lines(p)) return pass.backward ? f(line_tiles<true>()) : f(line_tiles<false>());
  if (pass.chain()) {
    return pass.backward ? f(persistent_tiles<true, true>()) : f(persistent_tiles<false, true>());
  }
  return pass.backward ? f(persistent_tiles<true, false>()) : f(persistent_tiles<false, false>());
}

template <class F>
auto with_large_tiles(bool backward, F&& f) {
  return backward ? f(kLargeBackward) : f(kLargeTiles);
}

// consider(shape, clocks) for every cut of a share of the device.
template <class F>
void each_shape(const Problem& p, const DeviceLimits& device, const Pass& pass, F&& consider) {
  if (p.storage_bytes > 4 || p.hidden_size > kPersistentMaxHidden) return;
  if (by_lines(p) && p.heads > 1) return;  // whose norms are of all heads
  // What a tile or block is cut to, where it has room, by its number.
  const auto number = [&](PersistentShape shape, int index, auto&& clocks_of) {
    if (shape.tile < 0) return;
    shape.tile = index;
    consider(shape, clocks_of(shape));
  };
  with_tiles(p, pass, [&](const auto& tiles) {
    int index = 0;
    for (const PersistentTile& tile : tiles) {
      for (int along = 1; along <= kPersistentWarps; along *= 2) {
        number(cut(p, device, tile, along, pass), index,
               [&](const PersistentShape& shape) { return cost(p, tile, shape, pass); });
      }
      ++index;
    }
  });
  if (pass.chain() || by_lines(p)) return;
  int index = 0;
  if (fits_warp_groups(p, device)) {
    with_large_tiles(pass.backward, [&](const auto& tiles) {
      for (const LargeTile& tile : tiles) {
        number(cut(p, device, tile, pass), index++,
               [&](const PersistentShape& shape) { return cost(p, tile, shape, pass); });
      }
    });
  }
  index = 0;
  for (const int unit_blocks : kPersistentBlockUnits) {
    const PersistentAlone alone = persistent_alone(unit_blocks, p.gates, pass.backward);
    number(cut(p, device, alone), index, [&](const PersistentShape& shape) {
      return clocks(p, device, alone, shape, pass.backward);
    });
    if (!pass.backward && p.storage_bytes == 2) {
      const PersistentBlock block = persistent_block(unit_blocks, p.gates, p.storage_bytes);
      number(cut(p, device, block, unit_blocks), index,
             [&](const PersistentShape& shape) { return clocks(p, block, shape); });
    }
    ++index;
  }
}

}  // namespace

double clocks(const Problem& p, const DeviceLimits& device, const PersistentShape& shape,
              bool backward) {
  if (shape.large) {
    return with_large_tiles(backward, [&](const auto& tiles) {
      return cost(p, tiles[shape.tile], shape, Pass{backward});
    });
  }
  if (shape.in_block) {
    const int units = kPersistentBlockUnits[shape.tile];
    if (!shape.alone) return clocks(p, persistent_block(units, p.gates, p.storage_bytes), shape);
    return clocks(p, device, persistent_alone(units, p.gates, backward), shape, backward);
  }
  const Pass pass{backward, shape.layers};
  return with_tiles(p, pass,
                    [&](const auto& tiles) { return cost(p, tiles[shape.tile], shape, pass); });
}

PersistentShape best_shape(const Problem& p, const DeviceLimits& device, bool backward,
                           int layers) {
  PersistentShape best;
  double least = 0;
  each_shape(p, device, {backward, layers}, [&](const PersistentShape& shape, double cost) {
    if (best.tile >= 0 && cost >= least) return;
    best = shape;
    least = cost;
  });
  return best;
}

PersistentShape persistent_shape(const Problem& p, const DeviceLimits& device, bool backward) {
  return best_shape(p, device, backward, 1);
}

std::vector<PersistentShape> persistent_shapes(const Problem& p, const DeviceLimits& device,
                                               bool backward) {
  std::vector<PersistentShape> out;
  each_shape(p, device, {backward, 1},
             [&](const PersistentShape& shape, double) { out.push_back(shape); });
  return out;
}

std::int64_t exchange_bytes(const Problem& p, const PersistentShape& shape, bool backward) {
  if (shape.in_block) return 0;
  const Pass pass{backward, shape.layers};
  return slots_of(p, pass, std::min(p.steps, shape.steps)) * slot_bytes(p, shape, pass);
}

}  // namespace scanrnn::dispatch
