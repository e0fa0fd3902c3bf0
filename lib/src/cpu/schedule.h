// SPDX-License-Identifier: Apache-2.0
// What a linear recurrence on the CPU is walked with: its memory and its schedule.
#pragma once

#include "cpu/team.h"
#include "stack/backend.h"

namespace scanrnn {

// Memory that a recurrence works in.
struct Scratch {
  void *carry, *totals = nullptr, *starts = nullptr;

  // Fields of a state and of an element, each an item for every unit.
  Scratch(Arena& arena, const dispatch::Plan& plan, Index lines, Index hidden, std::size_t item,
          std::size_t carry_fields = kCarryFields, std::size_t total_fields = kTotalFields) {
    const auto units = static_cast<std::size_t>(lines * padded(hidden)) * item;
    carry = arena.take(units * carry_fields);
    if (plan.chunk_steps == 0) return;
    const Index chunks = scan::chunk_count(plan.problem.steps, plan.chunk_steps);
    totals = arena.take(units * static_cast<std::size_t>(chunks) * total_fields);
    starts = arena.take(units * static_cast<std::size_t>(most_threads(plan)) * carry_fields);
  }
};

inline CpuSchedule schedule_of(const scan::Team& team, const dispatch::Plan& plan,
                               const Scratch& scratch) {
  CpuSchedule out;
  out.team = team;
  out.chunk = plan.chunk_steps;
  out.log_domain = plan.log_domain;
  out.carry = scratch.carry;
  out.totals = scratch.totals;
  out.starts = scratch.starts;
  return out;
}

}  // namespace scanrnn
