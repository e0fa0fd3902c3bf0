// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of dense cells: R h for a few batch entries and one vector of units at a time,
// and the cell's step on what comes out. Included by cpu/kernels/table.cpp for each instruction
// set.
#pragma once

#include <algorithm>

#include "cpu/kernels/dense_products.h"
#include "recurrence/dense.h"

namespace scanrnn::HWY_NAMESPACE {

// A thread's lines of a batch as it walks them, forward or, where kBackward, against time. Those
// that have ended are the last ones and drop out.
template <bool kBackward>
class WalkedLines {
 public:
  WalkedLines(const DenseLines& ragged, const DenseShare& share, Index lines, Index steps)
      : of_(ragged), steps_(steps), first_(share.lines.begin) {
    left_ = share.lines.end - share.lines.begin;
    if (!of_.sequences) return;
    apart_ = share.groups.size;
    first_ = share.groups.rank;
    left_ = (lines - first_ + apart_ - 1) / apart_;
  }

  // How many of them are at step t. Backward a line has one more, for the state before the first.
  Index at_step(Index t) {
    while (of_.sequences && left_ > 0 && steps((*this)[left_ - 1]) + kBackward <= t) --left_;
    return left_;
  }
  // The index of the i-th in the batch.
  Index operator[](Index i) const { return first_ + i * apart_; }
  Index steps(Index line) const { return of_.sequences ? of_.sequences[line].count : steps_; }
  // Its states are in this row.
  Index row(Index line) const { return of_.sequences ? of_.sequences[line].row : line; }

  // A tensor at step t of a line.
  template <class U>
  U* at(const Strided<U>& tensor, Index line, Index t) const {
    return tensor.at_line(place(line)).at(first(line) + t);
  }
  DenseDraws draws(const Masks& masks, Index line, Index t) const {
    return {masks, masks.token + place(line) * masks.line + (first(line) + t) * masks.step};
  }
  // Whether the state before step t, counted forward, is zero.
  bool resets(Index line, Index t) const {
    if (!of_.sequences) return false;
    return of_.resets(of_.sequences[line], of_.sequences[line].first + t);
  }

 private:
  // Where a line's tokens are.
  Index place(Index line) const { return of_.sequences ? of_.sequences[line].line : line; }
  Index first(Index line) const {
    if (!of_.sequences) return 0;
    const Sequence& s = of_.sequences[line];
    return kBackward ? of_.steps - s.first - s.count : s.first;
  }

  const DenseLines& of_;
  Index steps_, first_, apart_ = 1, left_;
};

template <class Cell, class T>
void dense_forward(const DenseSchedule<T>& s, const DenseForwardArgs<T>& a) {
  using V = Vec<T>;
  using Memory = Lanes<T>;
  constexpr int kGates = Cell::kGates;
  const DenseShare mine = share_of<T>(s.team, s.hidden, s.lines);
  const Index carry = padded(s.hidden);
  constexpr Index kPanel = kGates * V::kLanes;
  T inputs[kMostRows * kPanel], products[kMostRows * kPanel];
  if (s.team.rank >= mine.members()) return;
  WalkedLines<false> lines(a.ragged, mine, s.lines, s.steps);
  // The h before a step; null: zeros.
  const auto before_step = [&](Index line, Index t) -> const T* {
    if (lines.resets(line, t)) return nullptr;
    return t > 0 ? lines.at(a.y, line, t - 1) : a.initial.at_line(lines.row(line)).data;
  };
  const auto step = [&](Index line, Index vector, Index t, const T* before, const T* input,
                        const T* recurrent) {
    T* sums = a.sums.data ? lines.at(a.sums, line, t) : nullptr;
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
    if (Cell::kPair && !lines.resets(line, t)) state.c = V::load(c);
    state = dense_step<Cell, Memory>(sum, state, lines.draws(a.masks, line, t), vector);
    if constexpr (Cell::kPair) state.c.store(c);
    const DenseSink<Cell, Memory> sink{lines.at(a.y, line, t), a.keep ? sums : nullptr,
                                       a.cells.data ? lines.at(a.cells, line, t) : nullptr,
                                       s.hidden};
    sink.store(vector, sum, state);
  };
  for (Index t = 0; t < s.steps; ++t) {
    const Index count = lines.at_step(t);
    for (Index vector = mine.vectors.begin; vector < mine.vectors.end; ++vector) {
      for_groups({0, count}, [&](Index first, int members) {
        const T *rows[kMostRows], *before[kMostRows];
        const Product<T> run = product_of<T>(kGates, members);
        if (a.input_weight) {
          for (int m = 0; m < members; ++m) rows[m] = lines.at(a.x, lines[first + m], t);
          run(a.input_weight + vector * a.input * kPanel, rows, a.input, false, inputs);
        }
        bool zeros = true;
        for (int m = 0; m < members; ++m) {
          before[m] = before_step(lines[first + m], t);
          rows[m] = before[m] ? before[m] : a.zeros;
          zeros = zeros && !before[m];
        }
        if (a.weight && !zeros) {
          run(a.weight + vector * s.hidden * kPanel, rows, s.hidden, false, products);
        } else if (a.weight) {
          std::fill_n(products, members * kPanel, T(0));
        }
        for (int m = 0; m < members; ++m) {
          const Index line = lines[first + m];
          step(line, vector, t, before[m], inputs + m * kPanel,
               a.weight ? products + m * kPanel : a.products + line * kGates * s.hidden);
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
  if (s.team.rank >= mine.members()) return;
  WalkedLines<true> lines(a.ragged, mine, s.lines, s.steps);
  const auto step = [&](Index line, Index vector, Index t, const T* product) {
    T* h = s.h + line * carry + vector * V::kLanes;
    T* c = Cell::kPair ? s.c + line * carry + vector * V::kLanes : nullptr;
    const Index left = lines.steps(line) - t;  // steps before this one, and itself
    cell::StepState<V> d{V::load(h) + V::load(product), V(0)};
    if constexpr (Cell::kPair) d.c = V::load(c);
    if (t > 0 && lines.resets(line, left)) d = {V(0), V(0)};  // nothing comes back over a reset
    if (left == 0) {
      d.h.store(h);
      if constexpr (Cell::kPair) d.c.store(c);
      return;
    }
    if (a.dy.data) d.h = d.h + Memory::read(lines.at(a.dy, line, t), vector, s.hidden);
    const Strided<const T>& states = Cell::kPair ? a.cells : a.y;
    const Strided<const T>& initial = Cell::kPair ? a.initial_cell : a.initial;
    const T* at = left > 1 ? lines.at(states, line, t + 1) : initial.at_line(lines.row(line)).data;
    if (lines.resets(line, left - 1)) at = nullptr;
    const auto sums =
        DenseSums<Cell, V>::template read<Memory>(lines.at(a.sums, line, t), vector, s.hidden);
    const auto back =
        dense_step_vjp<Cell, Memory>(sums, at ? Memory::read(at, vector, s.hidden) : V(0), d,
                                     lines.draws(a.masks, line, t), vector);
    back.sums.template write<Memory>(lines.at(a.dsums, line, t), vector, s.hidden);
    back.before.h.store(h);
    if constexpr (Cell::kPair) back.before.c.store(c);
  };
  for (Index t = 0; t <= s.steps; ++t) {
    const Index number = lines.at_step(t);
    for_panels(mine.vectors, [&](Index vector, int width) {
      const T* panel = a.weight + vector * kGates * s.hidden * V::kLanes;
      for_groups({0, number}, [&](Index first, int count) {
        if (t == 0) {
          std::fill_n(products, count * width * V::kLanes, T(0));
        } else {
          const T* rows[kMostRows];
          const Product<T> run = product_of<T>(width, count);
          for (int m = 0; m < count; ++m) rows[m] = lines.at(a.dsums, lines[first + m], t - 1);
          run(panel, rows, in_order, false, products);
          for (int m = 0; m < count; ++m) rows[m] += kGates * s.hidden;
          if (own > 0) run(panel + in_order * width * V::kLanes, rows, own, true, products);
        }
        for (int m = 0; m < count; ++m) {
          for (int n = 0; n < width; ++n) {
            step(lines[first + m], vector + n, t, products + (m * width + n) * V::kLanes);
          }
        }
      });
    });
    if (mine.columns.size > 1 && t < s.steps) s.barrier->wait(mine.members());
  }
}

}  // namespace scanrnn::HWY_NAMESPACE
