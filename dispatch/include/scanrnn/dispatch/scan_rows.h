// SPDX-License-Identifier: Apache-2.0
// How a bare recurrence is walked whose rows are few, or have few or adjacent steps: what no
// profile knows.
#pragma once

#include "scanrnn/dispatch/plan.h"

namespace scanrnn::dispatch {

// CUDA: whether threads walk rows beside one another where these lie, as they have so few steps.
bool is_short_scan(const Problem& problem, const DeviceLimits& device);

// CUDA: whether a lane walks a row of adjacent steps by itself, where time is not split over
// blocks.
bool lane_has_row(const Problem& problem, const DeviceLimits& device);
// Lays time along lanes where the steps of a row are adjacent, and where rows are few if that
// is predicted to be faster.
void consider_lanes(Plan& plan);

// A CPU: walks rows whose steps are adjacent one by one, whatever the profile says of the other
// layout. Splitting time reads a row twice, which pays where threads would have no row, and the row
// is long: two threads gain by it beyond the caches alone.
void consider_rows(Plan& plan);

}  // namespace scanrnn::dispatch
