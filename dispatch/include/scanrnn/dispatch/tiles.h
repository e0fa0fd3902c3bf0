// SPDX-License-Identifier: Apache-2.0
// The one list of tile shapes: the planner picks from it, the launchers instantiate it.
#pragma once

#include <cstdint>

namespace scanrnn::dispatch {

// CPU. A projection's tile is as many tokens as keep its pre-activations in the shared cache and
// still pack the weights few times; a chunk of the parallel scan is a multiple of its local steps.
inline constexpr std::int64_t kCpuTileTokens = 2048;
// Of a step loop, whose weights are packed: as many tokens as share a panel of them in the nearer
// cache, or each step by itself, where its own lines are enough for that.
inline constexpr std::int64_t kCpuStepTileTokens = 256;
inline constexpr std::int64_t kCpuStepLines = 8;
inline constexpr std::int64_t kCpuMinChunk = 16;
inline constexpr std::int64_t kCpuMaxChunk = 256;
inline constexpr std::int64_t kCpuChunksPerThread = 4;

// CUDA. Warps of a block that hold one tile of time, each a few steps of 32 rows.
inline constexpr int kCudaBlockWarps = 8;
inline constexpr int kCudaDeviceWarps = 12;

// CUDA, dense cells: what one warp of a persistent kernel keeps of R, and how it works on it.
struct PersistentTile {
  int unit_blocks;  // times 8 units: forward with all their gates, backward their columns
  int chunks;       // of the sum, of 64 bytes each
  int fetched;      // chunks received at a time; divides `chunks`
  int items;        // units times lines that one thread steps
};
inline constexpr int kPersistentWarps = 8;  // of a block
inline constexpr PersistentTile kPersistentForward[] = {
    {2, 4, 4, 1}, {2, 4, 4, 2}, {3, 3, 3, 1}, {2, 3, 3, 1}, {4, 2, 2, 1}, {2, 2, 2, 1},
    {2, 2, 2, 2}, {4, 1, 1, 1}, {2, 1, 1, 1}, {2, 1, 1, 2}, {1, 6, 6, 1}, {1, 8, 8, 2}};
inline constexpr PersistentTile kPersistentBackward[] = {
    {2, 24, 4, 1}, {2, 16, 8, 1}, {2, 16, 8, 2}, {2, 12, 12, 1}, {4, 8, 8, 1},
    {2, 8, 8, 1},  {2, 8, 8, 2},  {4, 4, 4, 1},  {2, 4, 4, 1},   {2, 4, 4, 2}};
template <bool kBackward>
constexpr const auto& persistent_tiles() {
  if constexpr (kBackward) {
    return kPersistentBackward;
  } else {
    return kPersistentForward;
  }
}

inline constexpr int kPersistentMaxHidden = 1 << 20;  // 32-bit offsets inside a row of R
// Registers of a multiprocessor that can hold weights.
inline constexpr std::int64_t kPersistentWeightBytes = 32 * kPersistentWarps * 192 * 4;
// Memory for the exchange of one launch; a longer sequence takes several, and loads R again.
inline constexpr std::int64_t kPersistentExchangeBytes = std::int64_t{64} << 20;
// Steps from which one launch that loads R first beats two launches a step.
inline constexpr std::int64_t kPersistentMinSteps = 8;

}  // namespace scanrnn::dispatch
