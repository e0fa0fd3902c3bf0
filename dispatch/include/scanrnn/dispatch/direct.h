// SPDX-License-Identifier: Apache-2.0
// How the direct kernel of CUDA cuts a few tokens of a linear cell, for the kernel and the planner.
#pragma once

#include <cstdint>

namespace scanrnn::dispatch {

inline constexpr int kCudaDirectTokens = 4;  // of a warp, projected together

// Lines of a warp: of one step each those that are projected together, else a single one.
constexpr std::int64_t cuda_direct_lines(std::int64_t steps) {
  return steps == 1 ? kCudaDirectTokens : 1;
}
// Adjacent elements that a lane reads at once, of rows of so many.
constexpr int cuda_direct_piece(std::int64_t input, int storage_bytes) {
  const std::int64_t bytes = input * storage_bytes;
  return bytes % 16 == 0 ? 16 / storage_bytes : storage_bytes == 2 && bytes % 4 == 0 ? 2 : 1;
}

}  // namespace scanrnn::dispatch
