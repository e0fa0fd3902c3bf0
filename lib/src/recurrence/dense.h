// SPDX-License-Identifier: Apache-2.0
// The step of every dense cell, once: how sums are put together, and what a step and its adjoint
// leave in memory, on any processor. Memory is as in recurrence/linear.h.
#pragma once

#include "recurrence/linear.h"
#include "scanrnn/cells/step_cell.h"

namespace scanrnn {

// The sums of one unit of one line at one step: biases, W x and R h.
template <class Cell, class V>
struct DenseSums {
  static constexpr int kCount = Cell::kPreactivations;
  V value[kCount];

  // value(i) for every sum.
  template <class F>
  SCANRNN_HD static DenseSums of(F&& value) {
    DenseSums out;
    for (int i = 0; i < kCount; ++i) out.value[i] = value(i);
    return out;
  }
  SCANRNN_HD static DenseSums zeros() {
    return of([](int) { return V(0); });
  }
  // b_ih and b_hh, [G*H] each; a null pointer means zeros.
  template <class Memory, class T>
  SCANRNN_HD static DenseSums of_biases(const T* bias, const T* recurrent_bias, Index row,
                                        Index hidden) {
    // Without a branch around the loads, so that nothing waits for one before the next.
    DenseSums out = zeros();
    out.add_input(
        [&](int i) { return bias ? Memory::read(bias + i * hidden, row, hidden) : V(0); });
    out.add_recurrent([&](int i) {
      return recurrent_bias ? Memory::read(recurrent_bias + i * hidden, row, hidden) : V(0);
    });
    return out;
  }
  // Adds row block i of W x, of R h.
  template <class F>
  SCANRNN_HD void add_input(F&& block) {
    for (int i = 0; i < Cell::kGates; ++i) value[i] = value[i] + block(i);
  }
  template <class F>
  SCANRNN_HD void add_recurrent(F&& block) {
    for (int i = 0; i < Cell::kGates; ++i) {
      V& sum = value[cell::recurrent_sum<Cell>(i)];
      sum = sum + block(i);
    }
  }
  // Row block i of R h, or of its cotangent.
  SCANRNN_HD const V& recurrent(int i) const { return value[cell::recurrent_sum<Cell>(i)]; }

  SCANRNN_HD typename Cell::template Gates<V> gates() const {
    return Cell::template gather<V>([&](int i) { return value[i]; });
  }
  // [P*H] of a step.
  template <class Memory, class T>
  SCANRNN_HD static DenseSums read(const T* step, Index row, Index hidden) {
    return of([&](int i) { return Memory::read(step + i * hidden, row, hidden); });
  }
  template <class Memory, class T>
  SCANRNN_HD void write(T* step, Index row, Index hidden) const {
    for (int i = 0; i < kCount; ++i) Memory::write(step + i * hidden, row, hidden, value[i]);
  }
};

// The draws of a step of one line: what of the new state a unit takes, the rest being the old one.
struct DenseDraws {
  const Masks& masks;
  Index token;

  SCANRNN_HD explicit operator bool() const { return masks.state || masks.cell; }
  template <class Memory>
  SCANRNN_HD cell::StepState<typename Memory::V> updates(Index row) const {
    using V = typename Memory::V;
    const auto of = [&](const Zoneout& zone) {
      return zone ? zone.updates<Memory>(masks.place(token), row) : V(1);
    };
    return {of(masks.state), of(masks.cell)};
  }
};

// The state after a step.
template <class Cell, class Memory, class V = typename Memory::V>
SCANRNN_HD cell::StepState<V> dense_step(const DenseSums<Cell, V>& sums,
                                         const cell::StepState<V>& before, const DenseDraws& draws,
                                         Index row) {
  auto after = Cell::template step<V>(sums.gates(), before);
  if (draws) {
    const auto m = draws.updates<Memory>(row);
    after.h = fma(m.h, after.h, (V(1) - m.h) * before.h);
    if constexpr (Cell::kPair) after.c = fma(m.c, after.c, (V(1) - m.c) * before.c);
  }
  return after;
}

// What a forward step leaves: y, and in training the sums and the c of a pair. Each points at a
// step of a line; sums and cells are null where nothing is kept.
template <class Cell, class Memory>
struct DenseSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  T *y, *sums, *cells;
  Index hidden;

  SCANRNN_HD void store(Index row, const DenseSums<Cell, V>& of,
                        const cell::StepState<V>& after) const {
    Memory::write(y, row, hidden, after.h);
    if (!sums) return;
    if constexpr (Cell::kPair) Memory::write(cells, row, hidden, after.c);
    of.template write<Memory>(sums, row, hidden);
  }
};

// The adjoint of a step: d is the cotangent of the state after it; `before` is the c before it of a
// pair, the h before it of any other cell. What comes back through R is not in the result.
template <class Cell, class V>
struct DenseCotangent {
  DenseSums<Cell, V> sums;
  cell::StepState<V> before;
};
template <class Cell, class Memory, class V = typename Memory::V>
SCANRNN_HD DenseCotangent<Cell, V> dense_step_vjp(const DenseSums<Cell, V>& sums, const V& before,
                                                  cell::StepState<V> d, const DenseDraws& draws,
                                                  Index row) {
  const cell::StepState<V> state{Cell::kPair ? V(0) : before, Cell::kPair ? before : V(0)};
  cell::StepState<V> kept{V(0), V(0)};  // what goes past the step
  if (draws) {
    const auto m = draws.updates<Memory>(row);
    kept = {(V(1) - m.h) * d.h, (V(1) - m.c) * d.c};
    d = {m.h * d.h, m.c * d.c};
  }
  const auto back = Cell::template step_vjp<V>(sums.gates(), state, d);
  DenseCotangent<Cell, V> out{{}, back.before};
  if (draws) {
    out.before.h = out.before.h + kept.h;
    if constexpr (Cell::kPair) out.before.c = out.before.c + kept.c;
  }
  Cell::template scatter<V>(back.gates, [&](int i, const V& value) { out.sums.value[i] = value; });
  return out;
}

}  // namespace scanrnn
