// SPDX-License-Identifier: Apache-2.0
// Teams of threads, and what every layer on the CPU runs on them.
#pragma once

#include <omp.h>

#include <algorithm>

#include "cpu/kernels/table.h"
#include "platform.h"
#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"
#include "stack/backend.h"

namespace scanrnn {

template <class F>
void run_team(Index threads, F&& work) {
  // For one thread OpenMP takes a microsecond.
  if (threads <= 1 || in_child_of_teams()) return work(scan::Team{});
  cpu_kernels();  // an instruction set that is not there is an error here, and not on a thread
#pragma omp parallel num_threads(static_cast<int>(threads))
  work(scan::Team{omp_get_thread_num(), omp_get_num_threads()});
}

// More have nothing to do: a parallel scan gives whole chunks to each.
inline Index most_threads(const dispatch::Plan& plan) {
  if (plan.chunk_steps == 0) return plan.device.units;
  const Index chunks = scan::chunk_count(plan.problem.steps, plan.chunk_steps);
  return std::clamp<Index>(chunks, 1, plan.device.units);
}

// Threads worth waking for this many multiply-adds.
inline Index team_size(const dispatch::Plan& plan, Index multiplications) {
  return std::clamp<Index>(multiplications / dispatch::kCpuThreadWork, 1, most_threads(plan));
}

template <class T>
const CpuTypeKernels<T>& kernels_of() {
  if constexpr (sizeof(T) == 4) {
    return cpu_kernels().float32;
  } else {
    return cpu_kernels().float64;
  }
}

// Tokens that one product adds up for a weight gradient. Rounding grows with the root of the terms
// of a sum: of this many sums of this many, each level costs the same at the longest sequence
// (2^20).
inline constexpr Index kSummedTokens = 1024;

}  // namespace scanrnn
