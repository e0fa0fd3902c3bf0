// SPDX-License-Identifier: Apache-2.0
// The recurrence of every linear and diagonal cell, once: what the engine reads and writes. Here is
// forward, and what backward (recurrence/linear_backward.h) has in common with it.
//
// Memory says how values of type V lie in memory of type T:
//   read(const T* line, Index row, Index hidden) -> V,  write(T* line, Index row, Index hidden, V)
// where a row is one V: one unit on a GPU, a vector of units on a CPU, cut off at `hidden`.
// Time runs backward where a step stride is negative and `data` points at the last step.
#pragma once

#include "recurrence/unit.h"

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

// A unit's vectors, by Memory.
template <class Cell, class Memory, class Own>
SCANRNN_HD void read_vectors(const typename Memory::T* vectors, Index row, Index hidden, Own& own) {
  if constexpr (Cell::kVectors > 0) {
    for (int k = 0; k < Cell::kVectors; ++k) {
      own.vector[k] = Memory::read(vectors + k * hidden, row, hidden);
      if constexpr (Cell::kReadsOwn && !Memory::kHasVectors) {
        own.vector[k] = Cell::vector(own.vector[k]);
      }
    }
  }
}

// Pre-activations of one line, [.., G*H]. Where Memory::kAddsBias they lack their bias, [G*H],
// which is zero where there is none. Vectors are the parameter, [kVectors*H], or what the cell
// makes of it where Memory::kHasVectors.
template <class Cell, class Memory>
struct GateReader {
  using V = typename Memory::V;
  using T = typename Memory::T;
  Strided<const T> preactivations;
  const T* bias;
  const T* vectors;
  Index hidden;
  Index block = hidden;  // from one gate's row block to the next

  SCANRNN_HD scan::Stream<T> stream(int gate, Index steps) const {
    return {preactivations.data + gate * block, preactivations.step, steps};
  }
  template <class Tiles>
  SCANRNN_HD GateReader staged(const Tiles& tiles, Index step, Index row) const {
    const Index next = Cell::kGates > 1 ? tiles[1] - tiles[0] : 0;
    return {{tiles[0], 0, step}, bias + row, vectors + row, hidden, next};
  }
  // Without x, and what is `drawn`.
  template <bool kMasked>
  SCANRNN_HD Unit<Cell, V, kMasked> load(Index row, Index t, const Drawn<V, kMasked>& drawn) const {
    const T* step = preactivations.at(t);
    Unit<Cell, V, kMasked> out{drawn,
                               Cell::template gather<V>([&](int gate) {
                                 const V value = Memory::read(step + gate * block, row, hidden);
                                 if constexpr (!Memory::kAddsBias) return value;
                                 return value + Memory::read(bias + gate * hidden, row, hidden);
                               }),
                               {V(0)}};
    read_vectors<Cell, Memory>(vectors, row, hidden, out.own);
    return out;
  }
};

template <class Cell>
inline constexpr bool kReadsX = Cell::kHighway || Cell::kReadsOwn;

// A kernel that copies a line's inputs ahead of their use asks a Source for its streams, and for
// the same Source over tiles of them: stream i at tiles[i], steps `step` apart, from (row, t) on;
// t is scan::kInside where a line's last step will not be loaded, and kLastDiffers says whether
// load() has to tell that step apart. It asks a Sink for a cursor: the same Sink counted from
// (row, t), that next() moves on by a step. Draws are in no stream: they are made for a tile.

// ---- forward: h_t = a_t h_{t-1} + b_t

template <class Cell, class Memory, bool kMasked = false>
struct ForwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Item = Unit<Cell, V, kMasked>;
  using Sized = ForwardSource<Cell, Memory>;  // draws change no tile
  using Draws = typename MasksIf<kMasked>::Steps;
  static constexpr int kStreams = Cell::kGates + kReadsX<Cell>;
  static constexpr bool kLifts = true, kLastDiffers = false, kComposes = !Cell::kDiagonal;
  GateReader<Cell, Memory> gates;
  Strided<const T> skip;  // x, or x' of a cell with a highway
  Index steps = 0;        // read by stream() alone
  MasksIf<kMasked> masks = {};

  SCANRNN_HD scan::Stream<T> stream(int i) const {
    if (i < Cell::kGates) return gates.stream(i, steps);
    return {skip.data, skip.step, steps};
  }
  SCANRNN_HD Sized undrawn() const { return {gates, skip, steps}; }
  template <int kSteps>
  SCANRNN_HD Draws draw(Index row, Index t, Index count) const {
    return masks.template steps<kSteps>(row, t, count);
  }
  SCANRNN_HD void hold(const Draws& drawn) { masks.made = drawn; }
  template <class Tiles>
  SCANRNN_HD ForwardSource staged(const Tiles& tiles, Index step, Index row, Index) const {
    return {gates.staged(tiles, step, row), {tiles[Cell::kGates], 0, step}, steps, masks};
  }

  SCANRNN_HD ForwardSource line(Index i) const {
    ForwardSource out = *this;
    out.gates.preactivations = gates.preactivations.at_line(i);
    out.skip = skip.at_line(i);
    out.masks = masks.at_line(i);
    return out;
  }
  // A sequence of `count` steps, on a line from `first` on.
  SCANRNN_HD ForwardSource part(Index i, Index sequence, Index first, Index count) const {
    ForwardSource out = line(i);
    out.masks = masks.part(i, sequence, first);
    out.gates.preactivations = out.gates.preactivations.from(0, first);
    out.skip = out.skip.from(0, first);
    out.steps = count;
    return out;
  }
  SCANRNN_HD Item load(Index row, Index t) const {
    Item item = gates.template load<kMasked>(row, t, drawn_at<Memory>(masks, row, t));
    if constexpr (kReadsX<Cell>) item.own.x = Memory::read(skip.at(t), row, gates.hidden);
    return item;
  }
  SCANRNN_HD auto step(const Item& item) const { return step_of(item); }
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
  SCANRNN_HD ForwardSink part(Index i, Index, Index first) const { return line(i).from(0, first); }
  SCANRNN_HD ForwardSink from(Index row, Index t) const {
    return {y.from(row, t), states.from(row, t), hidden};
  }
  SCANRNN_HD void next() {
    y.next();
    if (Cell::kReadout && states.data) states.next();
  }
  template <bool kMasked>
  SCANRNN_HD void store(Index row, Index t, const Unit<Cell, V, kMasked>& item,
                        const scan::Carried<V>& before, const scan::Carried<V>& state) const {
    if constexpr (Cell::kReadout) {
      const auto gates = item.seen(before.h);
      Memory::write(y.at(t), row, hidden, Cell::readout(gates, state.h, item.own.x, item.keep()));
      if (states.data) Memory::write(states.at(t), row, hidden, state.h);
    } else {
      Memory::write(y.at(t), row, hidden, state.h);
    }
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
  const T *bias = nullptr, *vectors = nullptr;
  Strided<const T> skip;
  Strided<T> y, states;
  Masks masks = {};
};

template <class T>
struct BackwardKernelArgs {
  Strided<const T> preactivations;
  const T *bias = nullptr, *vectors = nullptr;
  Strided<const T> skip, states, initial, dy;
  Strided<T> dpreactivations, dskip, dvectors;
  Masks masks = {};
};

}  // namespace scanrnn
