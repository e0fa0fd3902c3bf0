// SPDX-License-Identifier: Apache-2.0
// The cuts of the persistent kernels of warp groups, which walk large batches in 16-bit types on a
// device of capability 9.0: the planner picks from them, the launchers instantiate them.
#pragma once

#include <cstdint>

namespace scanrnn::dispatch {

// Forward a block has kLargeUnits units with all their gates, and so many lines at most. It is two
// warp groups, each of which multiplies by half of R's columns: of those `kept` pieces in its
// registers, of the rest in shared memory. A piece is kLargePiece columns.
struct LargeTile {
  int lines, kept;
};
inline constexpr int kLargeUnits = 16, kLargePiece = 16, kLargeGroups = 2, kLargeThreads = 256;
inline constexpr LargeTile kLargeTiles[] = {{64, 8}, {64, 16}, {64, 24}, {32, 16}, {32, 24}};

// Values of a unit that a step of any cell reads or leaves: the sums, and the tensors of the state.
inline constexpr int kLargeValues = 8;
// Elements of a line's row of so many units in shared memory; 8 more, so that lines meet other
// banks.
constexpr int large_row(int units, int values) { return units * values + 8; }

// Whether a layer of so many units can be cut so: by whole pieces of each warp group.
constexpr bool large_fits(LargeTile tile, std::int64_t hidden) {
  const std::int64_t apart = kLargeGroups * kLargePiece;
  return hidden % apart == 0 && hidden >= apart * tile.kept;
}
// Shared memory of a block in bytes, of which the parts follow one another in this order.
struct LargeMemory {
  std::int64_t state, weights, parts, rows, turns;
  constexpr std::int64_t all() const { return state + weights + parts + rows + turns; }
};
// A word for each line that says what a turn is to it, of two turns.
constexpr std::int64_t large_turns(int lines) { return std::int64_t{2} * lines * 4; }
constexpr LargeMemory large_memory(LargeTile tile, std::int64_t hidden) {
  constexpr std::int64_t kElement = 2, kRows = 4 * kLargeUnits;
  LargeMemory out{};
  out.state = hidden * tile.lines * kElement;
  out.weights = (hidden - kLargeGroups * kLargePiece * tile.kept) * kRows * kElement;
  // Half of a group's sums, twice.
  out.parts = std::int64_t{2} * kLargeGroups * tile.lines / 2 * kRows * 4;
  out.rows = std::int64_t{2} * tile.lines * large_row(kLargeUnits, kLargeValues) * kElement;
  out.turns = large_turns(tile.lines);
  return out;
}

// Backward. A cluster of two blocks has twice kLargeBackUnits units of a group of lines, each of
// its four warp groups multiplies a quarter of the sum by all of them, and what it has of units and
// lines that are not its own it sends to where they are.
inline constexpr int kLargeBackUnits = 32, kLargeCluster = 2;
inline constexpr LargeTile kLargeBackward[] = {{32, 8}, {32, 24}, {32, 34}, {16, 8}, {16, 32}};
// Pieces of the sum that a group receives before it multiplies them; it has room for two times as
// many.
constexpr int large_chunk(int lines) { return 512 / lines; }

// Pieces of a group's share of the sum.
constexpr std::int64_t large_back_pieces(std::int64_t hidden, int gates) {
  return gates * hidden / (kLargePiece * kLargeGroups * kLargeCluster);
}
constexpr bool large_back_fits(LargeTile tile, std::int64_t hidden, int gates) {
  return hidden % (kLargeBackUnits * kLargeCluster) == 0 &&
         large_back_pieces(hidden, gates) >= tile.kept;
}
// Shared memory of a block whose groups have so many pieces each.
constexpr LargeMemory large_back_memory_of(LargeTile tile, std::int64_t pieces) {
  constexpr std::int64_t kElement = 2, kRows = kLargeBackUnits * kLargeCluster;
  LargeMemory out{};
  out.state = std::int64_t{2} * kLargeGroups * large_chunk(tile.lines) * kLargePiece * tile.lines *
              kElement;
  out.weights = kLargeGroups * (pieces - tile.kept) * kLargePiece * kRows * kElement;
  // What the other three groups have of each thread's own sums, twice; two barriers.
  out.parts = std::int64_t{2} * 3 * kLargeThreads * tile.lines / 8 * 4 + 16;
  out.rows = std::int64_t{tile.lines} * large_row(kLargeBackUnits, kLargeValues) * kElement;
  out.turns = large_turns(tile.lines);
  return out;
}
constexpr LargeMemory large_back_memory(LargeTile tile, std::int64_t hidden, int gates) {
  return large_back_memory_of(tile, large_back_pieces(hidden, gates));
}
// Chunks of the largest layer that has room in a block of 9.0.
constexpr int large_back_most_chunks(LargeTile tile) {
  constexpr std::int64_t kMost = std::int64_t{227} << 10;
  int out = 1;
  while (large_back_memory_of(tile, std::int64_t{out} * large_chunk(tile.lines) + 1).all() <=
         kMost) {
    ++out;
  }
  return out;
}

}  // namespace scanrnn::dispatch
