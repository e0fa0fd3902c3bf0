// SPDX-License-Identifier: Apache-2.0
// The one list of tile shapes: the planner picks from it, the launchers instantiate it.
#pragma once

#include <cstdint>

namespace scanrnn::dispatch {

// CPU. A projection's tile is as many tokens as keep its pre-activations in the shared cache and
// still pack the weights few times; a chunk of the parallel scan is a multiple of its local steps.
inline constexpr std::int64_t kCpuTileTokens = 2048;
inline constexpr std::int64_t kCpuMinChunk = 16;
inline constexpr std::int64_t kCpuMaxChunk = 256;
inline constexpr std::int64_t kCpuChunksPerThread = 4;

// CUDA. Warps of a block that hold one tile of time, each a few steps of 32 rows.
inline constexpr int kCudaBlockWarps = 8;
inline constexpr int kCudaDeviceWarps = 12;

}  // namespace scanrnn::dispatch
