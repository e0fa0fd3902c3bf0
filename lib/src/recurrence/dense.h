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

// The state of one unit of a cell, or its cotangent; its vectors, or theirs.
template <class Cell, class V>
using DenseState = cell::StepState<V, Cell::kStates>;
template <class Cell, class V>
using DenseVectors = cell::Vectors<V, Cell::kVectors>;

// [kVectors*H], of the layer or of a step.
template <class Cell, class Memory, class T>
SCANRNN_HD DenseVectors<Cell, typename Memory::V> read_vectors(const T* vectors, Index row,
                                                               Index hidden) {
  return DenseVectors<Cell, typename Memory::V>::of(
      [&](int i) { return Memory::read(vectors + i * hidden, row, hidden); });
}
template <class Cell, class Memory, class V = typename Memory::V>
SCANRNN_HD void write_vectors(const DenseVectors<Cell, V>& values, typename Memory::T* step,
                              Index row, Index hidden) {
  if constexpr (Cell::kVectors > 0) {
    for (int i = 0; i < Cell::kVectors; ++i) {
      Memory::write(step + i * hidden, row, hidden, values.value[i]);
    }
  }
}

// A state of value(i) for each tensor; of one that there is not.
template <class Cell, class V>
SCANRNN_HD DenseState<Cell, V> fresh_state() {
  return DenseState<Cell, V>::of([](int i) { return V(Cell::fresh(i)); });
}
// What backward reads of the state before a step, in so many row blocks: h where it is all, else
// the tensors behind it. block(i) is one of them; where there is no state, a fresh one.
template <class Cell>
inline constexpr int kBeforeBlocks = Cell::kStates > 1 ? Cell::kStates - 1 : 1;
template <class Cell, class V, class F>
SCANRNN_HD DenseState<Cell, V> state_before(bool exists, F&& block) {
  constexpr int kFirst = Cell::kStates - kBeforeBlocks<Cell>;
  return DenseState<Cell, V>::of([&](int i) {
    if (i < kFirst) return V(0);
    return exists ? block(i - kFirst) : V(Cell::fresh(i));
  });
}

// The draws of a step of one line: what of the new state a unit takes, the rest being the old one;
// of h, and of the c of a pair.
struct DenseDraws {
  const Masks& masks;
  Index token;
  Index step = 0;  // from one token to the next, where they are made ahead

  SCANRNN_HD explicit operator bool() const { return masks.state || masks.cell; }
  template <class Memory>
  SCANRNN_HD cell::StepState<typename Memory::V, 2> updates(Index row) const {
    using V = typename Memory::V;
    const auto of = [&](const Zoneout& zone) {
      return zone ? zone.updates<Memory>(token, row) : V(1);
    };
    return {of(masks.state), of(masks.cell)};
  }
};
// Those of one unit that were made before they are due, of so many steps at a time: to find where
// its numbers begin takes longer than some of them do.
struct MadeDraws {
  static constexpr int kSteps = 16;
  const Masks& masks;
  std::uint32_t stays;  // whether h stays as it was, bit 0, and c, bit kSteps

  // Those bits of the first of the steps; of the others they follow.
  SCANRNN_HD static std::uint32_t make(const DenseDraws& of, Index unit) {
    const auto stays = [&](const Zoneout& zone) {
      if (!zone.draws) return 0u;
      const UnitNumbers numbers = zone.numbers(unit).walked(of.token, of.step);
      return DrawnSteps::bits<kSteps>([&](int k) { return numbers.at(k) < zone.threshold; });
    };
    return stays(of.masks.state) | stays(of.masks.cell) << kSteps;
  }
  SCANRNN_HD explicit operator bool() const { return masks.state || masks.cell; }
  template <class Memory>
  SCANRNN_HD cell::StepState<float, 2> updates(Index) const {
    const auto of = [](const Zoneout& zone, std::uint32_t bit) {
      return zone.draws ? bit != 0 ? 0.0f : 1.0f : static_cast<float>(zone.mean);
    };
    return {of(masks.state, stays & 1), of(masks.cell, stays >> kSteps & 1)};
  }
};

// What a step's draws leave of the state that it makes.
template <class Cell, class Memory, class V = typename Memory::V, class Draws>
SCANRNN_HD void draw_update(const Draws& draws, Index row, const DenseState<Cell, V>& before,
                            DenseState<Cell, V>& after) {
  if (!draws) return;
  const auto m = draws.template updates<Memory>(row);
  after.h = fma(m.h, after.h, (V(1) - m.h) * before.h);
  if constexpr (Cell::kStates == 2) after.c = fma(m.c, after.c, (V(1) - m.c) * before.c);
}
// Its adjoint: d becomes the cotangent of what the step makes, and what goes past it is given.
template <class Cell, class Memory, class V = typename Memory::V, class Draws>
SCANRNN_HD cell::StepState<V, 2> draw_update_vjp(const Draws& draws, Index row,
                                                 DenseState<Cell, V>& d) {
  cell::StepState<V, 2> past{V(0), V(0)};
  if (!draws) return past;
  const auto m = draws.template updates<Memory>(row);
  past.h = (V(1) - m.h) * d.h;
  d.h = m.h * d.h;
  if constexpr (Cell::kStates == 2) {
    past.c = (V(1) - m.c) * d.c;
    d.c = m.c * d.c;
  }
  return past;
}

// The state after a step.
template <class Cell, class Memory, class V = typename Memory::V, class Draws>
SCANRNN_HD DenseState<Cell, V> dense_step(const DenseSums<Cell, V>& sums,
                                          const DenseVectors<Cell, V>& vectors,
                                          const DenseState<Cell, V>& before, const Draws& draws,
                                          Index row) {
  DenseState<Cell, V> after;
  if constexpr (Cell::kVectors > 0) {
    after = Cell::template step<V>(sums.gates(), vectors, before);
  } else {
    after = Cell::template step<V>(sums.gates(), before);
  }
  draw_update<Cell, Memory>(draws, row, before, after);
  return after;
}

// What a forward step leaves: y, and in training the sums and the tensors of the state behind h, in
// row blocks of H. Each points at a step of a line; sums and cells are null where nothing is kept.
template <class Cell, class Memory>
struct DenseSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  T *y, *sums, *cells;
  Index hidden;

  SCANRNN_HD void store(Index row, const DenseSums<Cell, V>& of,
                        const DenseState<Cell, V>& after) const {
    Memory::write(y, row, hidden, after.h);
    if (!sums) return;
    for (int i = 1; i < Cell::kStates; ++i) {
      Memory::write(cells + (i - 1) * hidden, row, hidden, after.at(i));
    }
    of.template write<Memory>(sums, row, hidden);
  }
};

// The adjoint of a step: d is the cotangent of the state after it, `before` of state_before(). What
// comes back through R is not in the result.
template <class Cell, class V>
struct DenseCotangent {
  DenseSums<Cell, V> sums;
  DenseState<Cell, V> before;
  DenseVectors<Cell, V> vectors;
};
template <class Cell, class Memory, class V = typename Memory::V, class Draws>
SCANRNN_HD DenseCotangent<Cell, V> dense_step_vjp(const DenseSums<Cell, V>& sums,
                                                  const DenseVectors<Cell, V>& vectors,
                                                  const DenseState<Cell, V>& before,
                                                  DenseState<Cell, V> d, const Draws& draws,
                                                  Index row) {
  const auto past = draw_update_vjp<Cell, Memory>(draws, row, d);
  const auto back = [&] {
    if constexpr (Cell::kVectors > 0) {
      return Cell::template step_vjp<V>(sums.gates(), vectors, before, d);
    } else {
      return Cell::template step_vjp<V>(sums.gates(), before, d);
    }
  }();
  DenseCotangent<Cell, V> out{{}, back.before, back.vectors};
  if (draws) {
    out.before.h = out.before.h + past.h;
    if constexpr (Cell::kStates == 2) out.before.c = out.before.c + past.c;
  }
  Cell::template scatter<V>(back.gates, [&](int i, const V& value) { out.sums.value[i] = value; });
  return out;
}

}  // namespace scanrnn
