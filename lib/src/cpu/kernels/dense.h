// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of dense cells: R h for a few batch entries and one vector of units at a time,
// and the cell's step on what comes out. Included by cpu/kernels/table.cpp for each instruction
// set.
#pragma once

#include <algorithm>

#include "cpu/kernels/dense_products.h"
#include "recurrence/dense.h"

namespace scanrnn::HWY_NAMESPACE {

template <class Cell, class T>
void dense_forward(const DenseSchedule<T>& s, const DenseForwardArgs<T>& a) {
  using V = Vec<T>;
  using Memory = Lanes<T>;
  constexpr int kGates = Cell::kGates;
  const DenseShare mine = share_of<T>(s.team, s.hidden, s.lines);
  const Index carry = padded(s.hidden);
  constexpr Index kPanel = kGates * V::kLanes;
  T inputs[kMostRows * kPanel], products[kMostRows * kPanel];
  const auto step = [&](Index line, Index vector, Index t, const T* before, const T* input,
                        const T* recurrent) {
    T* sums = a.sums.data ? a.sums.at_line(line).at(t) : nullptr;
    auto sum = DenseSums<Cell, V>::template read<Memory>(a.bias, vector, s.hidden);
    sum.add_input([&](int i) {
      return a.input_weight ? V::load(input + i * V::kLanes)
                            : Memory::read(sums + i * s.hidden, vector, s.hidden);
    });
    sum.add_recurrent([&](int i) {
      return a.weight ? V::load(recurrent + i * V::kLanes)
                      : Memory::read(recurrent + i * s.hidden, vector, s.hidden);
    });
    cell::StepState<V> state{before ? Memory::read(before, vector, s.hidden) : V(0), V(0)};
    T* c = Cell::kPair ? s.c + line * carry + vector * V::kLanes : nullptr;
    if constexpr (Cell::kPair) state.c = V::load(c);
    state = Cell::step(sum.gates(), state);
    if constexpr (Cell::kPair) state.c.store(c);
    const DenseSink<Cell, Memory> sink{a.y.at_line(line).at(t), a.keep ? sums : nullptr,
                                       a.cells.data ? a.cells.at_line(line).at(t) : nullptr,
                                       s.hidden};
    sink.store(vector, sum, state);
  };
  if (s.team.rank >= mine.members()) return;
  for (Index t = 0; t < s.steps; ++t) {
    const Strided<const T> before =
        t > 0 ? Strided<const T>{a.y.at(t - 1), a.y.line, 0} : a.initial;
    for (Index vector = mine.vectors.begin; vector < mine.vectors.end; ++vector) {
      for_groups(mine.lines, [&](Index first, int count) {
        const T* rows[kMostRows];
        const Product<T> run = product_of<T>(kGates, count);
        if (a.input_weight) {
          for (int m = 0; m < count; ++m) rows[m] = a.x.at_line(first + m).at(t);
          run(a.input_weight + vector * a.input * kPanel, rows, a.input, false, inputs);
        }
        for (int m = 0; m < count; ++m) rows[m] = before.at_line(first + m).data;
        if (a.weight && before.data) {
          run(a.weight + vector * s.hidden * kPanel, rows, s.hidden, false, products);
        } else if (a.weight) {
          std::fill_n(products, count * kPanel, T(0));
        }
        for (int m = 0; m < count; ++m) {
          step(first + m, vector, t, rows[m], inputs + m * kPanel,
               a.weight ? products + m * kPanel : a.products + (first + m) * kGates * s.hidden);
        }
      });
    }
    if (mine.columns.size > 1) s.barrier->wait(mine.members());
  }
}

template <class Cell, class T>
void dense_backward(const DenseSchedule<T>& s, const DenseBackwardArgs<T>& a) {
  using V = Vec<T>;
  using Memory = Lanes<T>;
  constexpr int kGates = Cell::kGates, kSums = Cell::kPreactivations;
  const int groups = backward_groups<T>(s.team, {nullptr, 0, s.hidden, s.hidden, kGates}, s.lines);
  const DenseShare mine = share_of<T>(s.team, s.hidden, s.lines, groups);
  const Index carry = padded(s.hidden);
  // Rows of R that add to the sums in order, and those that add to sums of their own behind them.
  const Index own = (kSums - kGates) * s.hidden, in_order = kGates * s.hidden - own;
  T products[kMostRows * kMostWidth * V::kLanes];
  const auto step = [&](Index line, Index vector, Index t, const T* product) {
    T* h = s.h + line * carry + vector * V::kLanes;
    T* c = Cell::kPair ? s.c + line * carry + vector * V::kLanes : nullptr;
    cell::StepState<V> d{V::load(h) + V::load(product), V(0)};
    if (t == s.steps) return d.h.store(h);
    if constexpr (Cell::kPair) d.c = V::load(c);
    if (a.dy.data) d.h = d.h + Memory::read(a.dy.at_line(line).at(t), vector, s.hidden);
    const Strided<const T>& states = Cell::kPair ? a.cells : a.y;
    const Strided<const T>& initial = Cell::kPair ? a.initial_cell : a.initial;
    const T* at = t + 1 < s.steps ? states.at_line(line).at(t + 1) : initial.at_line(line).data;
    const auto sums =
        DenseSums<Cell, V>::template read<Memory>(a.sums.at_line(line).at(t), vector, s.hidden);
    const auto back =
        dense_step_vjp<Cell, V>(sums, at ? Memory::read(at, vector, s.hidden) : V(0), d);
    back.sums.template write<Memory>(a.dsums.at_line(line).at(t), vector, s.hidden);
    back.before.h.store(h);
    if constexpr (Cell::kPair) back.before.c.store(c);
  };
  if (s.team.rank >= mine.members()) return;
  for (Index t = 0; t <= s.steps; ++t) {
    for_panels(mine.vectors, [&](Index vector, int width) {
      const T* panel = a.weight + vector * kGates * s.hidden * V::kLanes;
      for_groups(mine.lines, [&](Index first, int count) {
        if (t == 0) {
          std::fill_n(products, count * width * V::kLanes, T(0));
        } else {
          const T* rows[kMostRows];
          const Product<T> run = product_of<T>(width, count);
          for (int m = 0; m < count; ++m) rows[m] = a.dsums.at_line(first + m).at(t - 1);
          run(panel, rows, in_order, false, products);
          for (int m = 0; m < count; ++m) rows[m] += kGates * s.hidden;
          if (own > 0) run(panel + in_order * width * V::kLanes, rows, own, true, products);
        }
        for (int m = 0; m < count; ++m) {
          for (int n = 0; n < width; ++n) {
            step(first + m, vector + n, t, products + (m * width + n) * V::kLanes);
          }
        }
      });
    });
    if (mine.columns.size > 1 && t < s.steps) s.barrier->wait(mine.members());
  }
}

}  // namespace scanrnn::HWY_NAMESPACE
