// SPDX-License-Identifier: Apache-2.0
// How a bare recurrence is walked whose rows are few, or have few or adjacent steps: what no
// profile knows.
#pragma once

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {

// CUDA: whether threads walk rows beside one another where these lie, as they have so few steps.
bool is_short_scan(const Problem& problem, const DeviceLimits& device);

// CUDA: adjacent steps of a row up to which a thread walks it, and of two results half of them.
inline constexpr std::int64_t kCudaAdjacentSteps = 6;

// CUDA, where time is not split over blocks and steps are adjacent: whether each lane takes a few
// steps of a row, if rows lie right behind one another; and whether it walks a row by itself, else.
bool packs_rows(const Problem& problem, const DeviceLimits& device);
bool lane_has_row(const Problem& problem, const DeviceLimits& device);

// CUDA, rows of adjacent steps that lie right behind one another: whether each lane takes a few
// steps of whichever row they are of. On an H200 longer rows are up to a tenth faster by a warp or
// more for each, and so few rows are too few for all warps. What rounding takes is not kept: in 32
// bits no more rows than those that a lane would walk.
constexpr bool cuda_packs_lines(std::int64_t steps, std::int64_t lines, int storage_bytes,
                                bool backward, std::int64_t units) {
  if (storage_bytes > 2) return cuda_lane_has_line(steps, lines, storage_bytes, units);
  return steps <= 256 || (steps <= (backward ? 4096 : 1024) && lines >= 4 * units);
}

// Lays time along lanes where the steps of a row are adjacent, and where rows are few if that
// is predicted to be faster.
void consider_lanes(Plan& plan);

// A CPU: walks rows whose steps are adjacent one by one, whatever the profile says of the other
// layout. Splitting time reads a row twice, which pays where threads would have no row, and the row
// is long: two threads gain by it beyond the caches alone.
void consider_rows(Plan& plan);

}  // namespace scanrnn::dispatch
