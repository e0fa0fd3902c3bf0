// SPDX-License-Identifier: Apache-2.0
// The recurrence of every linear and diagonal cell backward, once, walked from the last step to the
// first.
//
// With lambda_t = dh_t + a_{t+1} lambda_{t+1} the cotangents are da_t = lambda_t h_{t-1} and
// db_t = lambda_t. The state that is walked is mu_t = a_t lambda_t, so mu_t = a_t mu_{t+1} + a_t
// dh_t is the forward recurrence again; it starts at the cotangent of h_T and ends at that of h_0.
// To the mu_t of a diagonal cell its gates add what they have of h_{t-1}.
#pragma once

#include <limits>

#include "recurrence/linear.h"

namespace scanrnn {

// What a step gives back.
template <class Cell, class V>
struct StepCotangents {
  V gates[Cell::kGates];
  cell::Own<V, Cell::kVectors> own;
};

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
  // Where `later` is the mu of the step after this one.
  SCANRNN_HD StepCotangents<Cell, V> cotangents(const scan::Carried<V>& later) const {
    const auto r = readout();
    const V lambda = unit.updated(r.state + later.h);
    const auto d = unit.lift_vjp(gates(), {lambda * previous, lambda});
    StepCotangents<Cell, V> out{{}, d.own};
    Cell::template scatter<V>(d.gates, [&](int gate, V value) { out.gates[gate] = value; });
    if constexpr (Cell::kReadout) {
      Cell::template scatter<V>(
          r.gates, [&](int gate, V value) { out.gates[gate] = out.gates[gate] + value; });
    }
    if constexpr (Cell::kHighway) out.own.x = r.skip;
    if constexpr (Cell::kDiagonal) {
      for (int k = 0; k < Cell::kVectors; ++k) {
        out.own.vector[k] = out.gates[Cell::peek(k)] * previous;
      }
    }
    return out;
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
  SCANRNN_HD BackwardSink part(Index i, Index, Index first) const { return line(i).from(0, first); }
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
    const auto d = item.cotangents(before);
    store_inputs(row, t, d);
    if constexpr (Cell::kVectors > 0) {
      for (int k = 0; k < Cell::kVectors; ++k) {
        Memory::write(dvectors.at(t) + k * hidden, row, hidden, d.own.vector[k]);
      }
    }
  }
  // Those of what each step reads.
  SCANRNN_HD void store_inputs(Index row, Index t, const StepCotangents<Cell, V>& d) const {
    T* step = dpreactivations.at(t);
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      Memory::write(step + gate * hidden, row, hidden, d.gates[gate]);
    }
    if constexpr (kReadsX<Cell>) Memory::write(dskip.at(t), row, hidden, d.own.x);
  }
  SCANRNN_HD void close() const {}
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

// Values added up, with what rounding takes from them.
template <class V>
struct Sum {
  scan::Carried<V> all{V(0), V(0)};

  SCANRNN_HD void add(V value) { all = scan::apply(scan::Affine<V>{V(1), V(0), value}, all); }
};

// Where a line or a sequence is walked from end to end by one thread a unit, as of a diagonal cell:
// the cotangents of its biases and vectors are summed on the way, [lines, (kGates + kVectors) * H].
template <class Cell, class Memory>
struct SummingSink : BackwardSink<Cell, Memory> {
  using Plain = BackwardSink<Cell, Memory>;
  using V = typename Memory::V;
  static constexpr int kSums = Cell::kGates + Cell::kVectors;
  V* sums;
  Sum<V> sum[kSums] = {};

  SCANRNN_HD SummingSink(const Plain& plain, V* sums) : Plain(plain), sums(sums) {}
  SCANRNN_HD SummingSink line(Index i) const { return {Plain::line(i), sums_of(i)}; }
  SCANRNN_HD SummingSink part(Index i, Index sequence, Index first) const {
    return {Plain::part(i, sequence, first), sums_of(sequence)};
  }
  SCANRNN_HD SummingSink from(Index row, Index t) const {
    return {Plain::from(row, t), sums + row};
  }
  SCANRNN_HD void store(Index row, Index t, const BackwardItem<Cell, Memory, false>& item,
                        const scan::Carried<V>& before, const scan::Carried<V>&) {
    const auto d = item.cotangents(before);
    this->store_inputs(row, t, d);
    for (int gate = 0; gate < Cell::kGates; ++gate) sum[gate].add(d.gates[gate]);
    for (int k = 0; k < Cell::kVectors; ++k) sum[Cell::kGates + k].add(d.own.vector[k]);
  }
  // Behind the last step.
  SCANRNN_HD void close() const {
    for (int k = 0; k < kSums; ++k) sums[k * this->hidden] = sum[k].all.h;
  }

 private:
  SCANRNN_HD V* sums_of(Index line) const { return sums + line * kSums * this->hidden; }
};

}  // namespace scanrnn
