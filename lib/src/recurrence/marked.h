// SPDX-License-Identifier: Apache-2.0
// A recurrence over ragged batches on a GPU: that of a cell (recurrence/linear.h), and the bare one
// (recurrence/scan.h), where a mark says of each step whether a sequence begins or ends there,
// whether it is cut from the one before, and whether it exists at all. What kernels ask of a marked
// Source and Sink is in scan/cuda/chunk.cuh; a step whose mark says nothing is the plain one's.
#pragma once

#include "recurrence/linear_backward.h"
#include "recurrence/ragged.h"
#include "recurrence/scan.h"

namespace scanrnn {

namespace mark {
// What says more of a step than where its line is cut.
inline constexpr std::uint32_t kEnds = kAbsent | kFirst | kLast;
}  // namespace mark

// Sequences that are walked for themselves, without marks: each is a line of its own. Plain and
// PlainSink are those of the whole batch, in the order of the walk.
template <class Plain>
struct SequenceSource {
  Plain whole;
  SequenceBounds all;
  bool against_time;  // the walk
  RaggedWays ways;

  SCANRNN_HD Index lines() const { return all.packed ? 1 : all.count; }
  SCANRNN_HD Index first_step(Index n) const {
    return against_time ? all.steps - all.first(n) - all.length(n) : all.first(n);
  }
  SCANRNN_HD Index steps_of(Index n) const { return all.length(n); }
  SCANRNN_HD Plain line(Index n) const {
    return whole.part(all.packed ? 0 : n, n, first_step(n), steps_of(n));
  }
  SCANRNN_HD bool runs() const { return ways.runs(true); }
};
template <class Source, class PlainSink>
struct SequenceSink {
  PlainSink whole;
  Source source;

  SCANRNN_HD PlainSink line(Index n) const {
    return whole.part(source.all.packed ? 0 : n, n, source.first_step(n));
  }
};

// The states at one end of all sequences, or their cotangents; rows of a line that is `row` on.
template <class T>
struct SequenceStates {
  Strided<T> states;  // [N,H], or absent

  SCANRNN_HD SequenceStates from(Index row) const {
    return {{states.data ? states.data + row : nullptr, states.line, 0}};
  }
  SCANRNN_HD explicit operator bool() const { return states.data != nullptr; }
  SCANRNN_HD T* of(std::uint32_t m) const { return states.at_line(Marks::sequence(m)).data; }
};

template <class Cell, class Memory, bool kMasked>
struct MarkedForwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Plain = ForwardSource<Cell, Memory, kMasked>;
  using Draws = typename Plain::Draws;
  static constexpr int kStreams = Plain::kStreams;
  static constexpr bool kLifts = true, kLastDiffers = false, kMarked = true;
  static constexpr bool kComposes = Plain::kComposes;
  static constexpr std::uint32_t kSays = mark::kFlags, kEnds = mark::kEnds;
  static constexpr bool kForgets = false;
  Plain plain;
  Marks marks;
  SequenceStates<const T> initial;
  RaggedWays ways;

  SCANRNN_HD bool runs() const { return ways.runs(false); }
  SCANRNN_HD scan::Stream<T> stream(int i) const { return plain.stream(i); }
  template <int kSteps>
  SCANRNN_HD Draws draw(Index row, Index t, Index count) const {
    return plain.template draw<kSteps>(row, t, count);
  }
  SCANRNN_HD void hold(const Draws& drawn) { plain.hold(drawn); }
  template <class Tiles>
  SCANRNN_HD MarkedForwardSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return {plain.staged(tiles, step, row, t), marks.staged(tiles.marks(kStreams)),
            initial.from(row), ways};
  }
  SCANRNN_HD MarkedForwardSource line(Index i) const {
    return {plain.line(i), marks.at_line(i), initial, ways};
  }
  SCANRNN_HD MarkedForwardSource part(Index i, Index n, Index first, Index count) const {
    return {plain.part(i, n, first, count), marks.at_line(i).from(first), initial, ways};
  }
  SCANRNN_HD bool anew(std::uint32_t m) const { return marks.enters(m) || marks.cut(m); }
  SCANRNN_HD V entering(std::uint32_t m, Index row) const {
    if (marks.cut(m) || !initial) return V(0);
    return Memory::read(initial.of(m), row, plain.gates.hidden);
  }
  template <class Item>
  SCANRNN_HD void amend(Item&, std::uint32_t, Index) const {}
};

template <class Cell, class Memory>
struct MarkedForwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Plain = ForwardSink<Cell, Memory>;
  static constexpr bool kReadsItem = Plain::kReadsItem;
  Plain plain;
  Marks marks;
  SequenceStates<T> final;

  SCANRNN_HD MarkedForwardSink line(Index i) const { return {plain.line(i), marks, final}; }
  SCANRNN_HD MarkedForwardSink part(Index i, Index n, Index first) const {
    return {plain.part(i, n, first), marks, final};
  }
  SCANRNN_HD MarkedForwardSink from(Index row, Index t) const {
    return {plain.from(row, t), marks, final.from(row)};
  }
  SCANRNN_HD void next() { plain.next(); }
  template <class Item>
  SCANRNN_HD void store_marked(std::uint32_t m, Index row, Index t, const Item& item,
                               const scan::Carried<V>& before,
                               const scan::Carried<V>& state) const {
    if (Marks::absent(m)) return;
    plain.store(row, t, item, before, state);
    if (marks.leaves(m) && final) Memory::write(final.of(m), row, plain.hidden, state.h);
  }
};

// Backward, the cotangent of a final state enters where forward leaves, and that of an initial one
// is what the walk has when it leaves.
template <class Cell, class Memory, bool kMasked>
struct MarkedBackwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Plain = BackwardSource<Cell, Memory, kMasked>;
  using Draws = typename Plain::Draws;
  static constexpr int kStreams = Plain::kStreams;
  static constexpr bool kLifts = true, kLastDiffers = false, kMarked = true;
  static constexpr bool kComposes = Plain::kComposes;
  static constexpr std::uint32_t kSays = mark::kFlags, kEnds = mark::kEnds;
  static constexpr bool kForgets = true;
  Plain plain;  // without an initial state
  Marks marks;
  SequenceStates<const T> initial, dfinal;
  RaggedWays ways;

  SCANRNN_HD bool runs() const { return ways.runs(false); }
  SCANRNN_HD scan::Stream<T> stream(int i) const { return plain.stream(i); }
  template <int kSteps>
  SCANRNN_HD Draws draw(Index row, Index t, Index count) const {
    return plain.template draw<kSteps>(row, t, count);
  }
  SCANRNN_HD void hold(const Draws& drawn) { plain.hold(drawn); }
  // What comes before a step that a sequence begins with is not read from a tile; of others, all is
  // there.
  template <class Tiles>
  SCANRNN_HD MarkedBackwardSource staged(const Tiles& tiles, Index step, Index row, Index) const {
    return {plain.staged(tiles, step, row, scan::kInside), marks.staged(tiles.marks(kStreams)),
            initial.from(row), dfinal.from(row), ways};
  }
  SCANRNN_HD MarkedBackwardSource line(Index i) const {
    return {plain.line(i), marks.at_line(i), initial, dfinal, ways};
  }
  SCANRNN_HD MarkedBackwardSource part(Index i, Index n, Index first, Index count) const {
    return {plain.part(i, n, first, count), marks.at_line(i).from(first), initial, dfinal, ways};
  }
  SCANRNN_HD bool anew(std::uint32_t m) const { return marks.leaves(m) || marks.cut_after(m); }
  SCANRNN_HD V entering(std::uint32_t m, Index row) const {
    if (!marks.leaves(m) || !dfinal) return V(0);
    return Memory::read(dfinal.of(m), row, plain.gates.hidden);
  }
  SCANRNN_HD bool cut(std::uint32_t m) const { return marks.cut(m); }
  template <class Item>
  SCANRNN_HD static void forget(Item& item) {
    item.previous = V(0);
  }
  template <class Item>
  SCANRNN_HD void amend(Item& item, std::uint32_t m, Index row) const {
    if (cut(m)) {
      forget(item);
    } else if (marks.enters(m)) {
      item.previous = initial ? Memory::read(initial.of(m), row, plain.gates.hidden) : V(0);
    }
  }
};

template <class Plain, class Memory>
struct MarkedBackwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr bool kReadsItem = true;
  Plain plain;
  Marks marks;
  SequenceStates<T> dinitial;

  SCANRNN_HD MarkedBackwardSink line(Index i) const { return {plain.line(i), marks, dinitial}; }
  SCANRNN_HD MarkedBackwardSink part(Index i, Index n, Index first) const {
    return {plain.part(i, n, first), marks, dinitial};
  }
  SCANRNN_HD MarkedBackwardSink from(Index row, Index t) const {
    return {plain.from(row, t), marks, dinitial.from(row)};
  }
  SCANRNN_HD void next() { plain.next(); }
  template <class Item>
  SCANRNN_HD void store_marked(std::uint32_t m, Index row, Index t, const Item& item,
                               const scan::Carried<V>& before, const scan::Carried<V>& after) {
    if (Marks::absent(m)) return plain.store_zeros(row, t);
    plain.store(row, t, item, before, after);
    if (marks.enters(m) && dinitial) {
      Memory::write(dinitial.of(m), row, plain.hidden, marks.cut(m) ? V(0) : after.h);
    }
  }
  SCANRNN_HD void close() const { plain.close(); }
};

// ---- the bare recurrence, where all rows of a line are cut at the same steps

template <class Plain_, bool kBackward>
struct MarkedScanSource {
  using Plain = Plain_;
  using V = typename Plain::V;
  using T = typename Plain::T;
  static constexpr int kStreams = Plain::kStreams;
  static constexpr bool kLifts = Plain::kLifts, kLastDiffers = Plain::kLastDiffers;
  static constexpr bool kMarked = true;
  static constexpr std::uint32_t kEnds = 0;
  static constexpr bool kForgets = true;
  Plain plain;
  Marks marks;

  SCANRNN_HD scan::Stream<T> stream(int i) const { return plain.stream(i); }
  template <class Tiles>
  SCANRNN_HD MarkedScanSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return {plain.staged(tiles, step, row, t), marks.staged(tiles.marks(kStreams))};
  }
  SCANRNN_HD MarkedScanSource line(Index i) const { return {plain.line(i), marks.at_line(i)}; }
  SCANRNN_HD bool anew(std::uint32_t m) const {
    return m & (kBackward ? mark::kResetAfter : mark::kReset);
  }
  SCANRNN_HD bool cut(std::uint32_t m) const { return m & mark::kReset; }
  // A decay that is cut may be anything.
  SCANRNN_HD static void forget(scan::Affine<V>& item) { item.a = V(0), item.z = V(1); }
  SCANRNN_HD static void forget(scan::LogAffine<V>& item) { item.log_a = scan::log_of_zero<V>(); }
  SCANRNN_HD static void forget(BareBackwardItem<V>& item) {
    forget(item.f);
    item.previous = V(0);
  }
};

template <class Plain>
struct MarkedScanSink {
  static constexpr bool kReadsItem = Plain::kReadsItem;
  Plain plain;

  SCANRNN_HD MarkedScanSink line(Index i) const { return {plain.line(i)}; }
  SCANRNN_HD MarkedScanSink from(Index row, Index t) const { return {plain.from(row, t)}; }
  SCANRNN_HD void next() { plain.next(); }
};

// Backward, a cut before the first step in time keeps the cotangent from h_0.
template <class Memory>
struct MarkedScanEnds {
  using V = typename Memory::V;
  BareEnds<Memory> plain;
  Marks last_step;

  SCANRNN_HD scan::Carried<V> first(Index line, Index row) const { return plain.first(line, row); }
  SCANRNN_HD void last(Index line, Index row, const scan::Carried<V>& state) const {
    const bool cut = last_step.at_line(line).at(0) & mark::kReset;
    plain.last(line, row, cut ? scan::carried(V(0)) : state);
  }
};

}  // namespace scanrnn
