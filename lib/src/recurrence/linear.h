// SPDX-License-Identifier: Apache-2.0
// The recurrence of every linear and diagonal cell, once: what the engine reads and writes, forward
// and backward.
//
// Memory says how values of type V lie in memory of type T:
//   read(const T* line, Index row, Index hidden) -> V,  write(T* line, Index row, Index hidden, V)
// where a row is one V: one unit on a GPU, a vector of units on a CPU, cut off at `hidden`.
// Time runs backward where a step stride is negative and `data` points at the last step.
#pragma once

#include <limits>

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

// ---- backward, walked from the last step to the first
//
// With lambda_t = dh_t + a_{t+1} lambda_{t+1} the cotangents are da_t = lambda_t h_{t-1} and
// db_t = lambda_t. The state that is walked is mu_t = a_t lambda_t, so mu_t = a_t mu_{t+1} + a_t
// dh_t is the forward recurrence again; it starts at the cotangent of h_T and ends at that of h_0.
// To the mu_t of a diagonal cell its gates add what they have of h_{t-1}.

template <class Cell, class Memory, bool kMasked>
struct BackwardItem {
  using V = typename Memory::V;
  using Gates = typename Cell::template Gates<V>;
  Unit<Cell, V, kMasked> unit;
  V state, previous, dy;

  SCANRNN_HD Gates gates() const { return unit.seen(previous); }
  // What the output gives back, to the state directly.
  SCANRNN_HD cell::ReadoutCotangent<V, Gates> readout() const {
    if constexpr (Cell::kReadout) {
      return Cell::readout_vjp(gates(), state, unit.own.x, unit.keep(), dy);
    } else {
      return {{}, dy, V(0)};
    }
  }
  SCANRNN_HD scan::Affine<V> step() const {
    const auto seen = gates();
    const auto f = unit.lift(seen);
    const auto out = readout();
    if constexpr (Cell::kDiagonal) {
      const auto d = unit.lift_vjp(seen, {previous, V(1)});
      const V peeked = unit.peeked(d.gates);
      const V a = unit.decay(Cell::kForgets ? peeked : f.a + peeked);
      const V b = a * out.state;
      return {a, V(1) - a, Cell::kReadout ? b + unit.peeked(out.gates) : b};
    } else {
      const auto drawn = unit.step(f);
      return {drawn.a, drawn.z, drawn.a * out.state};
    }
  }
};

template <class Cell, class Memory, bool kMasked = false>
struct BackwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Item = BackwardItem<Cell, Memory, kMasked>;
  using Sized = BackwardSource<Cell, Memory>;
  using Draws = typename MasksIf<kMasked>::Steps;
  static constexpr int kStreams = Cell::kGates + 2 + Cell::kReadout + kReadsX<Cell>;
  static constexpr bool kLifts = true, kLastDiffers = true, kComposes = !Cell::kDiagonal;
  static constexpr int kStates = 2, kSkip = 2 + Cell::kReadout;  // where they are after the gates
  GateReader<Cell, Memory> gates;
  Strided<const T> skip;
  Strided<const T> states;   // h_t; the step before it is one stride on
  Strided<const T> initial;  // h_0, or absent: zeros
  Strided<const T> dy;       // or absent: zeros
  Index last;                // the index of the first step in time
  MasksIf<kMasked> masks = {};
  Strided<const T> previous{states.data ? states.at(1) : nullptr, states.line, states.step};

  // After the gates: dy, the states a step before, for a readout the states, and x.
  SCANRNN_HD scan::Stream<T> stream(int i) const {
    const int at = i - Cell::kGates;
    if (at == 0) return {dy.data, dy.step, last + 1};
    if (at == 1) return {previous.data, previous.step, last};
    if (at == kSkip) return {skip.data, skip.step, last + 1};
    if (at == kStates) return {states.data, states.step, last + 1};
    return gates.stream(i, last + 1);
  }
  SCANRNN_HD Sized undrawn() const { return {gates, skip, states, initial, dy, last}; }
  template <int kSteps>
  SCANRNN_HD Draws draw(Index row, Index t, Index count) const {
    return masks.template steps<kSteps>(row, t, count);
  }
  SCANRNN_HD void hold(const Draws& drawn) { masks.made = drawn; }
  template <class Tiles>
  SCANRNN_HD BackwardSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    const auto at = [&](int i, const T* present) -> Strided<const T> {
      return {present ? tiles[Cell::kGates + i] : nullptr, 0, step};
    };
    return {gates.staged(tiles, step, row),
            at(kSkip, skip.data),
            at(kStates, states.data),
            {initial.data ? initial.data + row : nullptr, initial.line, initial.step},
            at(0, dy.data),
            t == scan::kInside ? std::numeric_limits<Index>::max() : last - t,
            masks,
            at(1, previous.data)};
  }

  SCANRNN_HD BackwardSource line(Index i) const {
    BackwardSource out = *this;
    out.gates.preactivations = gates.preactivations.at_line(i);
    out.skip = skip.at_line(i);
    out.states = states.at_line(i);
    out.previous = previous.at_line(i);
    out.initial = initial.at_line(i);
    out.dy = dy.at_line(i);
    out.masks = masks.at_line(i);
    return out;
  }
  // A sequence of `count` steps, on a line from `first` on, with an h_0 of its own.
  SCANRNN_HD BackwardSource part(Index i, Index sequence, Index first, Index count) const {
    BackwardSource out = line(i);
    out.initial = initial.at_line(sequence);
    out.masks = masks.part(i, sequence, first);
    out.gates.preactivations = out.gates.preactivations.from(0, first);
    for (Strided<const T>* tensor : {&out.skip, &out.states, &out.previous, &out.dy}) {
      *tensor = tensor->from(0, first);
    }
    out.last = count - 1;
    return out;
  }
  SCANRNN_HD Item load(Index row, Index t) const {
    const Index hidden = gates.hidden;
    Item item{gates.template load<kMasked>(row, t, drawn_at<Memory>(masks, row, t)), V(0), V(0),
              V(0)};
    if constexpr (kReadsX<Cell>) item.unit.own.x = Memory::read(skip.at(t), row, hidden);
    if constexpr (Cell::kReadout) item.state = Memory::read(states.at(t), row, hidden);
    if (t < last) {
      item.previous = Memory::read(previous.at(t), row, hidden);
    } else if (initial.data) {
      item.previous = Memory::read(initial.data, row, hidden);
    }
    if (dy.data) item.dy = Memory::read(dy.at(t), row, hidden);
    return item;
  }
  SCANRNN_HD scan::Affine<V> step(const Item& item) const { return item.step(); }
};

template <class Cell, class Memory>
struct BackwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr bool kReadsItem = true;
  Strided<T> dpreactivations;  // [.., G*H]
  Strided<T> dskip;
  Strided<T> dvectors;  // [.., kVectors*H], what each step has of their cotangents
  Index hidden;

  SCANRNN_HD BackwardSink line(Index i) const {
    return {dpreactivations.at_line(i), dskip.at_line(i), dvectors.at_line(i), hidden};
  }
  SCANRNN_HD BackwardSink from(Index row, Index t) const {
    return {dpreactivations.from(row, t), dskip.from(row, t), dvectors.from(row, t), hidden};
  }
  SCANRNN_HD void next() {
    dpreactivations.next();
    if (kReadsX<Cell>) dskip.next();
    if (Cell::kVectors > 0) dvectors.next();
  }
  template <bool kMasked>
  SCANRNN_HD void store(Index row, Index t, const BackwardItem<Cell, Memory, kMasked>& item,
                        const scan::Carried<V>& before, const scan::Carried<V>&) const {
    const auto r = item.readout();
    const V lambda = item.unit.updated(r.state + before.h);
    const auto d = item.unit.lift_vjp(item.gates(), {lambda * item.previous, lambda});
    V of[Cell::kGates];
    Cell::template scatter<V>(d.gates, [&](int gate, V value) { of[gate] = value; });
    if constexpr (Cell::kReadout) {
      Cell::template scatter<V>(r.gates, [&](int gate, V value) { of[gate] = of[gate] + value; });
    }
    T* step = dpreactivations.at(t);
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      Memory::write(step + gate * hidden, row, hidden, of[gate]);
    }
    if constexpr (Cell::kHighway) Memory::write(dskip.at(t), row, hidden, r.skip);
    if constexpr (Cell::kReadsOwn) Memory::write(dskip.at(t), row, hidden, d.own.x);
    if constexpr (Cell::kVectors > 0) {
      for (int k = 0; k < Cell::kVectors; ++k) {
        V cotangent;
        if constexpr (Cell::kDiagonal) {
          cotangent = of[Cell::peek(k)] * item.previous;
        } else {
          cotangent = d.own.vector[k];
        }
        Memory::write(dvectors.at(t) + k * hidden, row, hidden, cotangent);
      }
    }
  }
  // A step that there is not.
  SCANRNN_HD void store_zeros(Index row, Index t) const {
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      Memory::write(dpreactivations.at(t) + gate * hidden, row, hidden, V(0));
    }
    if constexpr (kReadsX<Cell>) Memory::write(dskip.at(t), row, hidden, V(0));
    for (int k = 0; k < Cell::kVectors; ++k) {
      Memory::write(dvectors.at(t) + k * hidden, row, hidden, V(0));
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
