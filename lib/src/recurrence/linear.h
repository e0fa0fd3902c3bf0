// SPDX-License-Identifier: Apache-2.0
// The recurrence of every linear cell, once: what the engine reads and writes, forward and
// backward.
//
// Memory says how values of type V lie in memory of type T:
//   read(const T* line, Index row, Index hidden) -> V,  write(T* line, Index row, Index hidden, V)
// where a row is one V: one unit on a GPU, a vector of units on a CPU, cut off at `hidden`.
// Time runs backward where a step stride is negative and `data` points at the last step.
#pragma once

#include <limits>

#include "scanrnn/cells/linear_cell.h"

namespace scanrnn {

using scan::Index;

// A tensor walked by line (batch entry) and step; units are adjacent.
template <class T>
struct Strided {
  T* data = nullptr;
  Index line = 0, step = 0;

  SCANRNN_HD Strided at_line(Index i) const {
    return {data ? data + i * line : nullptr, line, step};
  }
  SCANRNN_HD T* at(Index t) const { return data + t * step; }
  // The same tensor counted from (row, t), and moved on by a step.
  SCANRNN_HD Strided from(Index row, Index t) const {
    return {data ? data + t * step + row : nullptr, line, step};
  }
  SCANRNN_HD void next() { data += step; }
};

// Pre-activations of one line, [.., G*H]. Where Memory::kAddsBias they lack their bias, [G*H],
// which is zero where there is none.
template <class Cell, class Memory>
struct GateReader {
  using V = typename Memory::V;
  using T = typename Memory::T;
  Strided<const T> preactivations;
  const T* bias;
  Index hidden;
  Index block = hidden;  // from one gate's row block to the next

  SCANRNN_HD scan::Stream<T> stream(int gate, Index steps) const {
    return {preactivations.data + gate * block, preactivations.step, steps};
  }
  template <class Tiles>
  SCANRNN_HD GateReader staged(const Tiles& tiles, Index step, Index row) const {
    return {{tiles[0], 0, step}, bias + row, hidden, tiles[1] - tiles[0]};
  }
  SCANRNN_HD typename Cell::template Gates<V> load(Index row, Index t) const {
    const T* step = preactivations.at(t);
    return Cell::template gather<V>([&](int gate) {
      const V value = Memory::read(step + gate * block, row, hidden);
      if constexpr (!Memory::kAddsBias) return value;
      return value + Memory::read(bias + gate * hidden, row, hidden);
    });
  }
};

// A kernel that copies a line's inputs ahead of their use asks a Source for its streams, and for
// the same Source over tiles of them: stream i at tiles[i], steps `step` apart, from (row, t) on;
// t is scan::kInside where a line's last step will not be loaded, and kLastDiffers says whether
// load() has to tell that step apart. It asks a Sink for a cursor: the same Sink counted from
// (row, t), that next() moves on by a step.

// ---- forward: h_t = a_t h_{t-1} + b_t

template <class Cell, class Memory>
struct ForwardItem {
  typename Cell::template Gates<typename Memory::V> gates;
  typename Memory::V skip;
};

template <class Cell, class Memory>
struct ForwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = Cell::kGates + Cell::kHighway;
  static constexpr bool kLifts = true, kLastDiffers = false;
  GateReader<Cell, Memory> gates;
  Strided<const T> skip;  // x' of a cell with a highway
  Index steps = 0;        // read by stream() alone

  SCANRNN_HD scan::Stream<T> stream(int i) const {
    if (i < Cell::kGates) return gates.stream(i, steps);
    return {skip.data, skip.step, steps};
  }
  template <class Tiles>
  SCANRNN_HD ForwardSource staged(const Tiles& tiles, Index step, Index row, Index) const {
    return {gates.staged(tiles, step, row), {tiles[Cell::kGates], 0, step}, steps};
  }

  SCANRNN_HD ForwardSource line(Index i) const {
    ForwardSource out = *this;
    out.gates.preactivations = gates.preactivations.at_line(i);
    out.skip = skip.at_line(i);
    return out;
  }
  // A sequence of `count` steps, on a line from `first` on.
  SCANRNN_HD ForwardSource part(Index i, Index /*sequence*/, Index first, Index count) const {
    ForwardSource out = line(i);
    out.gates.preactivations = out.gates.preactivations.from(0, first);
    out.skip = out.skip.from(0, first);
    out.steps = count;
    return out;
  }
  SCANRNN_HD ForwardItem<Cell, Memory> load(Index row, Index t) const {
    ForwardItem<Cell, Memory> item{gates.load(row, t), V(0)};
    if constexpr (Cell::kHighway) item.skip = Memory::read(skip.at(t), row, gates.hidden);
    return item;
  }
  SCANRNN_HD scan::Affine<V> step(const ForwardItem<Cell, Memory>& item) const {
    return Cell::lift(item.gates);
  }
};

template <class Cell, class Memory>
struct ForwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr bool kReadsItem = Cell::kReadout;
  Strided<T> y;
  Strided<T> states;  // kept for backward by a cell whose output is not its state; may be absent
  Index hidden;

  SCANRNN_HD ForwardSink line(Index i) const { return {y.at_line(i), states.at_line(i), hidden}; }
  SCANRNN_HD ForwardSink from(Index row, Index t) const {
    return {y.from(row, t), states.from(row, t), hidden};
  }
  SCANRNN_HD void next() {
    y.next();
    if (Cell::kReadout && states.data) states.next();
  }
  SCANRNN_HD void store(Index row, Index t, const ForwardItem<Cell, Memory>& item,
                        const scan::Carried<V>&, const scan::Carried<V>& state) const {
    if constexpr (Cell::kReadout) {
      Memory::write(y.at(t), row, hidden, Cell::readout(item.gates, state.h, item.skip));
      if (states.data) Memory::write(states.at(t), row, hidden, state.h);
    } else {
      Memory::write(y.at(t), row, hidden, state.h);
    }
  }
};

// ---- backward, walked from the last step to the first
//
// With lambda_t = dh_t + a_{t+1} lambda_{t+1} the cotangents are da_t = lambda_t h_{t-1} and
// db_t = lambda_t. The state that is walked is mu_t = a_t lambda_t, so mu_t = a_t mu_{t+1} + a_t
// dh_t is the forward recurrence again; it starts at the cotangent of h_T and ends at that of h_0.

template <class Cell, class Memory>
struct BackwardItem {
  using V = typename Memory::V;
  typename Cell::template Gates<V> gates;
  V skip, state, previous, dy;

  // The direct cotangent of the state.
  SCANRNN_HD V dh() const {
    if constexpr (Cell::kReadout) {
      return Cell::readout_vjp(gates, state, skip, dy).state;
    } else {
      return dy;
    }
  }
};

template <class Cell, class Memory>
struct BackwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = Cell::kGates + 2 + Cell::kReadout + Cell::kHighway;
  static constexpr bool kLifts = true, kLastDiffers = true;
  GateReader<Cell, Memory> gates;
  Strided<const T> skip;
  Strided<const T> states;   // h_t; the step before it is one stride on
  Strided<const T> initial;  // h_0, or absent: zeros
  Strided<const T> dy;       // or absent: zeros
  Index last;                // the index of the first step in time
  Strided<const T> previous{states.data ? states.at(1) : nullptr, states.line, states.step};

  // After the gates: dy, the states a step before, for a readout the states, and the highway's.
  SCANRNN_HD scan::Stream<T> stream(int i) const {
    switch (i - Cell::kGates) {
      case 0:
        return {dy.data, dy.step, last + 1};
      case 1:
        return {previous.data, previous.step, last};
      case 2:
        return {states.data, states.step, last + 1};
      case 3:
        return {skip.data, skip.step, last + 1};
    }
    return gates.stream(i, last + 1);
  }
  template <class Tiles>
  SCANRNN_HD BackwardSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    const auto at = [&](int i, const T* present) -> Strided<const T> {
      return {present ? tiles[Cell::kGates + i] : nullptr, 0, step};
    };
    return {gates.staged(tiles, step, row),
            at(3, skip.data),
            at(2, states.data),
            {initial.data ? initial.data + row : nullptr, initial.line, initial.step},
            at(0, dy.data),
            t == scan::kInside ? std::numeric_limits<Index>::max() : last - t,
            at(1, states.data)};
  }

  SCANRNN_HD BackwardSource line(Index i) const {
    BackwardSource out = *this;
    out.gates.preactivations = gates.preactivations.at_line(i);
    out.skip = skip.at_line(i);
    out.states = states.at_line(i);
    out.previous = previous.at_line(i);
    out.initial = initial.at_line(i);
    out.dy = dy.at_line(i);
    return out;
  }
  // A sequence of `count` steps, on a line from `first` on, with an h_0 of its own.
  SCANRNN_HD BackwardSource part(Index i, Index sequence, Index first, Index count) const {
    BackwardSource out = line(i);
    out.initial = initial.at_line(sequence);
    out.gates.preactivations = out.gates.preactivations.from(0, first);
    for (Strided<const T>* tensor : {&out.skip, &out.states, &out.previous, &out.dy}) {
      *tensor = tensor->from(0, first);
    }
    out.last = count - 1;
    return out;
  }
  SCANRNN_HD BackwardItem<Cell, Memory> load(Index row, Index t) const {
    const Index hidden = gates.hidden;
    BackwardItem<Cell, Memory> item{gates.load(row, t), V(0), V(0), V(0), V(0)};
    if constexpr (Cell::kHighway) item.skip = Memory::read(skip.at(t), row, hidden);
    if constexpr (Cell::kReadout) item.state = Memory::read(states.at(t), row, hidden);
    if (t < last) {
      item.previous = Memory::read(previous.at(t), row, hidden);
    } else if (initial.data) {
      item.previous = Memory::read(initial.data, row, hidden);
    }
    if (dy.data) item.dy = Memory::read(dy.at(t), row, hidden);
    return item;
  }
  SCANRNN_HD scan::Affine<V> step(const BackwardItem<Cell, Memory>& item) const {
    const auto f = Cell::lift(item.gates);
    return {f.a, f.z, f.a * item.dh()};
  }
};

template <class Cell, class Memory>
struct BackwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr bool kReadsItem = true;
  Strided<T> dpreactivations;  // [.., G*H]
  Strided<T> dskip;
  Index hidden;

  SCANRNN_HD BackwardSink line(Index i) const {
    return {dpreactivations.at_line(i), dskip.at_line(i), hidden};
  }
  SCANRNN_HD BackwardSink from(Index row, Index t) const {
    return {dpreactivations.from(row, t), dskip.from(row, t), hidden};
  }
  SCANRNN_HD void next() {
    dpreactivations.next();
    if (Cell::kHighway) dskip.next();
  }
  SCANRNN_HD void store(Index row, Index t, const BackwardItem<Cell, Memory>& item,
                        const scan::Carried<V>& before, const scan::Carried<V>&) const {
    const V lambda = item.dh() + before.h;
    const auto d = Cell::lift_vjp(item.gates, {lambda * item.previous, lambda});
    T* step = dpreactivations.at(t);
    if constexpr (Cell::kReadout) {
      const auto r = Cell::readout_vjp(item.gates, item.state, item.skip, item.dy);
      if constexpr (Cell::kHighway) Memory::write(dskip.at(t), row, hidden, r.skip);
      V readout[Cell::kGates];
      Cell::template scatter<V>(r.gates, [&](int gate, V value) { readout[gate] = value; });
      Cell::template scatter<V>(d, [&](int gate, V value) {
        Memory::write(step + gate * hidden, row, hidden, value + readout[gate]);
      });
    } else {
      Cell::template scatter<V>(
          d, [&](int gate, V value) { Memory::write(step + gate * hidden, row, hidden, value); });
    }
  }
  // A step that there is not.
  SCANRNN_HD void store_zeros(Index row, Index t) const {
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      Memory::write(dpreactivations.at(t) + gate * hidden, row, hidden, V(0));
    }
    if constexpr (Cell::kHighway) Memory::write(dskip.at(t), row, hidden, V(0));
  }
};

// ---- both: the states at the ends of time

// h_0, zeros where it is absent, and h_T, for who wants it.
template <class Memory>
struct StateEnds {
  using V = typename Memory::V;
  using T = typename Memory::T;
  Strided<const T> initial;
  Strided<T> final;
  Index hidden;

  SCANRNN_HD scan::Carried<V> first(Index line, Index row) const {
    if (!initial.data) return scan::carried(V(0));
    return scan::carried(Memory::read(initial.at_line(line).data, row, hidden));
  }
  SCANRNN_HD void last(Index line, Index row, const scan::Carried<V>& state) const {
    if (final.data) Memory::write(final.at_line(line).data, row, hidden, state.h);
  }
};

// ---- what a kernel of one layer is called with, on any processor

template <class T>
struct ForwardKernelArgs {
  Strided<const T> preactivations;
  const T* bias = nullptr;
  Strided<const T> skip;
  Strided<T> y, states;
};

template <class T>
struct BackwardKernelArgs {
  Strided<const T> preactivations;
  const T* bias = nullptr;
  Strided<const T> skip, states, initial, dy;
  Strided<T> dpreactivations, dskip;
};

}  // namespace scanrnn
