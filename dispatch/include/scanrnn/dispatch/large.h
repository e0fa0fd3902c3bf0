// SPDX-License-Identifier: Apache-2.0
// The cuts of a persistent kernel of warp groups, which walks large batches forward in 16-bit types
// on a device of capability 9.0: the planner picks from them, the launchers instantiate them.
#pragma once

#include <cstdint>

namespace scanrnn::dispatch {

// A block has kLargeUnits units with all their gates, and so many lines at most. It is two warp
// groups, each of which multiplies by half of R's columns: of those `kept` pieces in its registers,
// of the rest in shared memory. A piece is kLargePiece columns.
struct LargeTile {
  int lines, kept;
};
inline constexpr int kLargeUnits = 16, kLargePiece = 16, kLargeGroups = 2, kLargeThreads = 256;
inline constexpr LargeTile kLargeTiles[] = {{64, 8}, {64, 16}, {64, 24}, {32, 16}, {32, 24}};

// Values of a unit that a step of any cell reads or leaves: the sums, and the tensors of the state.
inline constexpr int kLargeValues = 8;
// Elements of a line's row of them in shared memory; 8 more, so that lines meet other banks.
constexpr int large_row(int values) { return kLargeUnits * values + 8; }

// Whether a layer of so many units can be cut so: by whole pieces of each warp group.
constexpr bool large_fits(LargeTile tile, std::int64_t hidden) {
  const std::int64_t apart = kLargeGroups * kLargePiece;
  return hidden % apart == 0 && hidden >= apart * tile.kept;
}
// Shared memory of a block in bytes, of which the parts follow one another in this order.
struct LargeMemory {
  std::int64_t state, weights, parts, rows;
  constexpr std::int64_t all() const { return state + weights + parts + rows; }
};
constexpr LargeMemory large_memory(LargeTile tile, std::int64_t hidden) {
  constexpr std::int64_t kElement = 2, kRows = 4 * kLargeUnits;
  LargeMemory out{};
  out.state = hidden * tile.lines * kElement;
  out.weights = (hidden - kLargeGroups * kLargePiece * tile.kept) * kRows * kElement;
  // Half of a group's sums, twice.
  out.parts = std::int64_t{2} * kLargeGroups * tile.lines / 2 * kRows * 4;
  out.rows = std::int64_t{2} * tile.lines * large_row(kLargeValues) * kElement;
  return out;
}

}  // namespace scanrnn::dispatch
