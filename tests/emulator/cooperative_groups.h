// SPDX-License-Identifier: Apache-2.0
// The barrier of a cooperative grid, in place of CUDA's header.
#pragma once

#include "emulator.h"

namespace cooperative_groups {

struct grid_group {
  struct arrival_token {
    unsigned number;
  };
  arrival_token barrier_arrive() const {
    ::emulated::sync_block();
    return {threadIdx.x == 0 ? ::emulated::arrive_at_grid() : 0};
  }
  void barrier_wait(arrival_token&& arrival) const {
    if (threadIdx.x == 0) {
      while (!::emulated::grid_has_come(arrival.number)) ::emulated::yield();
    }
    ::emulated::sync_block();
  }
};
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
