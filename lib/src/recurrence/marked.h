// SPDX-License-Identifier: Apache-2.0
// A linear cell's recurrence over ragged batches: that of recurrence/linear.h, where a mark says of
// each step whether a sequence begins or ends there, whether it is cut from the one before, and
// whether it exists at all. A cut is a decay of zero, which operators with resets (scan/op.h) do
// not multiply.
#pragma once

#include "recurrence/linear.h"
#include "recurrence/ragged.h"

namespace scanrnn {

// The states at one end of all sequences, or their cotangents; rows of a line that is `row` on.
template <class T>
struct SequenceStates {
  Strided<T> states;  // [N,H], or absent

  SCANRNN_HD SequenceStates from(Index row) const {
    return {{states.data ? states.data + row : nullptr, states.line, 0}};
  }
  SCANRNN_HD T* of(std::uint32_t m) const { return states.at_line(Marks::sequence(m)).data; }
};

// A step where the walk cannot come from the one before: x -> b, b being what enters it.
template <class V>
SCANRNN_HD scan::Affine<V> constant(V b) {
  return {V(0), V(1), b};
}

template <class Cell, class Memory>
struct MarkedForwardItem {
  ForwardItem<Cell, Memory> own;
  typename Memory::V entered;  // the state that enters with the sequence
  std::uint32_t mark;
};

template <class Cell, class Memory>
struct MarkedForwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Plain = ForwardSource<Cell, Memory>;
  using Item = MarkedForwardItem<Cell, Memory>;
  static constexpr int kStreams = Plain::kStreams;
  static constexpr bool kLifts = true, kLastDiffers = false, kMarked = true;
  Plain plain;
  Marks marks;
  SequenceStates<const T> initial;

  SCANRNN_HD scan::Stream<T> stream(int i) const { return plain.stream(i); }
  template <class Tiles>
  SCANRNN_HD MarkedForwardSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return {plain.staged(tiles, step, row, t),
            {tiles.marks(kStreams), 0, 1, marks.reverse},
            initial.from(row)};
  }
  SCANRNN_HD MarkedForwardSource line(Index i) const {
    return {plain.line(i), marks.at_line(i), initial};
  }
  SCANRNN_HD Item load(Index row, Index t) const {
    Item item{plain.load(row, t), V(0), marks.at(t)};
    const bool begins = marks.enters(item.mark) && !marks.cut(item.mark);
    if (begins && initial.states.data) {
      item.entered = Memory::read(initial.of(item.mark), row, plain.gates.hidden);
    }
    return item;
  }
  SCANRNN_HD scan::Affine<V> step(const Item& item) const {
    const auto f = plain.step(item.own);
    if (Marks::absent(item.mark)) return constant(V(0));
    if (!marks.enters(item.mark) && !marks.cut(item.mark)) return f;
    return constant(scan::fma(f.a, item.entered, f.b));
  }
};

template <class Cell, class Memory>
struct MarkedForwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Item = MarkedForwardItem<Cell, Memory>;
  static constexpr bool kReadsItem = true;
  ForwardSink<Cell, Memory> plain;
  Marks marks;
  SequenceStates<T> final;

  SCANRNN_HD MarkedForwardSink line(Index i) const { return {plain.line(i), marks, final}; }
  SCANRNN_HD MarkedForwardSink from(Index row, Index t) const {
    return {plain.from(row, t), marks, final.from(row)};
  }
  SCANRNN_HD void next() { plain.next(); }
  SCANRNN_HD void store(Index row, Index t, const Item& item, const scan::Carried<V>& before,
                        const scan::Carried<V>& state) const {
    if (Marks::absent(item.mark)) return;
    plain.store(row, t, item.own, before, state);
    if (marks.leaves(item.mark) && final.states.data) {
      Memory::write(final.of(item.mark), row, plain.hidden, state.h);
    }
  }
};

// Backward, the cotangent of a final state enters where forward leaves, and that of an initial one
// is what the walk has when it leaves.
template <class Cell, class Memory>
struct MarkedBackwardItem {
  using V = typename Memory::V;
  BackwardItem<Cell, Memory> own;
  V entered;
  std::uint32_t mark;
};

template <class Cell, class Memory>
struct MarkedBackwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Plain = BackwardSource<Cell, Memory>;
  using Item = MarkedBackwardItem<Cell, Memory>;
  static constexpr int kStreams = Plain::kStreams;
  static constexpr bool kLifts = true, kLastDiffers = false, kMarked = true;
  Plain plain;  // without an initial state
  Marks marks;
  SequenceStates<const T> initial, dfinal;

  SCANRNN_HD scan::Stream<T> stream(int i) const { return plain.stream(i); }
  // What comes before a step that a sequence begins with is not read from a tile; of others, all is
  // there.
  template <class Tiles>
  SCANRNN_HD MarkedBackwardSource staged(const Tiles& tiles, Index step, Index row, Index) const {
    return {plain.staged(tiles, step, row, scan::kInside),
            {tiles.marks(kStreams), 0, 1, marks.reverse},
            initial.from(row),
            dfinal.from(row)};
  }
  SCANRNN_HD MarkedBackwardSource line(Index i) const {
    return {plain.line(i), marks.at_line(i), initial, dfinal};
  }
  SCANRNN_HD Item load(Index row, Index t) const {
    const Index hidden = plain.gates.hidden;
    Item item{plain.load(row, t), V(0), marks.at(t)};
    const bool begins = marks.enters(item.mark), cut = marks.cut(item.mark);
    if (begins || cut) item.own.previous = V(0);
    if (begins && !cut && initial.states.data) {
      item.own.previous = Memory::read(initial.of(item.mark), row, hidden);
    }
    if (marks.leaves(item.mark) && dfinal.states.data) {
      item.entered = Memory::read(dfinal.of(item.mark), row, hidden);
    }
    return item;
  }
  SCANRNN_HD bool ends(std::uint32_t m) const { return marks.leaves(m) || marks.cut_after(m); }
  SCANRNN_HD scan::Affine<V> step(const Item& item) const {
    const auto f = Cell::lift(item.own.gates);
    if (Marks::absent(item.mark) || marks.cut(item.mark)) return constant(V(0));
    const V dh = item.own.dh();
    if (ends(item.mark)) return constant(f.a * (dh + item.entered));
    return {f.a, f.z, f.a * dh};
  }
};

template <class Cell, class Memory>
struct MarkedBackwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Item = MarkedBackwardItem<Cell, Memory>;
  static constexpr bool kReadsItem = true;
  BackwardSink<Cell, Memory> plain;
  Marks marks;
  SequenceStates<T> dinitial;

  SCANRNN_HD MarkedBackwardSink line(Index i) const { return {plain.line(i), marks, dinitial}; }
  SCANRNN_HD MarkedBackwardSink from(Index row, Index t) const {
    return {plain.from(row, t), marks, dinitial.from(row)};
  }
  SCANRNN_HD void next() { plain.next(); }
  SCANRNN_HD void store(Index row, Index t, const Item& item, const scan::Carried<V>& before,
                        const scan::Carried<V>& after) const {
    if (Marks::absent(item.mark)) return plain.store_zeros(row, t);
    const bool ends = marks.leaves(item.mark) || marks.cut_after(item.mark);
    plain.store(row, t, item.own, ends ? scan::carried(item.entered) : before, after);
    if (marks.enters(item.mark) && dinitial.states.data) {
      Memory::write(dinitial.of(item.mark), row, plain.hidden, after.h);
    }
  }
};

}  // namespace scanrnn
