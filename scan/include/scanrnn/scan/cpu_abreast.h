// SPDX-License-Identifier: Apache-2.0
// Few rows on the CPU: a vector holds all rows of several adjacent steps.
//
// The other arrangement of cpu.h walks one step at a time, so a vector that few rows do not fill is
// a waste, and each step waits for the one before it. Here one load reads moves.steps() of them,
// log2 of that many compositions give each step the map from the vector's start, and states wait
// for one another once a vector. It asks three things more:
//   Source and Sink: abreast(steps)   the same, where load and store at t are of t, t + 1 ...
//   each(f, use, more...)             use on each value of a Local or a State
//   Moves: how values move between the lanes of a vector V
//     kLevels, steps()          how many steps a vector holds: 1 at least, 2^kLevels at most
//     earlier(level, x)         to each step's lanes those of 2^level steps before it; anything
//                               where there is no such step
//     choose(level, yes, no)    `no` where there is no such step
//     first(x), last(x)         to all steps' lanes those of the lone step that a carry holds, or
//                               of a vector's last step
//     every_other(odd, x, y)    of the steps of x and then of y every other one, from the first
//                               (odd 0) or second on
#pragma once

#include "scanrnn/scan/cpu.h"

namespace scanrnn::scan {

template <class V, class Use, class... More>
Affine<V> each(const Affine<V>& f, const Use& use, const More&... more) {
  return {use(f.a, more.a...), use(f.z, more.z...), use(f.b, more.b...)};
}
template <class V, class Use, class... More>
Carried<V> each(const Carried<V>& s, const Use& use, const More&... more) {
  return {use(s.h, more.h...), use(s.c, more.c...)};
}

template <class Moves>
struct StepsAbreast {
  Moves moves;
  Moves tail;  // for a last vector of fewer steps; what neither fits is walked step by step

  template <class Op, class Cursor, class Output>
  void walk(const Cursor& source, const Output& sink, Range rows, Range steps,
            typename Op::State* carry) const {
    if (rows.begin == rows.end) return;
    const Index left = (steps.end - steps.begin) % moves.steps();
    const Range rest{steps.end - left, steps.end};
    walk_vectors<Op>(moves, source, sink, {steps.begin, rest.begin}, *carry);
    if (left == tail.steps()) return walk_vectors<Op>(tail, source, sink, rest, *carry);
    scan::walk<Op>(source, sink, rows, rest, carry);
  }

  template <class Op, class Cursor>
  void reduce(const Cursor& source, Range rows, Range steps, typename Op::Element* total) const {
    if (rows.begin == rows.end) return;
    const auto wide = source.abreast(moves.steps());
    const auto vector_at = [&](Index t) {
      return from_start(moves, Op::alone(wide.step(wide.load(0, t))), appended<Op>);
    };
    // Two steps of a vector are composed where they are: to move them would take as long.
    constexpr bool kByRuns = Moves::kLevels > 1;
    const Index block = kByRuns ? kLocalSteps * moves.steps() : kLocalSteps;
    auto chunk = Op::local_identity();
    Index t = steps.begin;
    for (; t + block <= steps.end; t += block) {
      if constexpr (kByRuns) {
        const auto joined = [](const auto& f, const auto& g) { return Op::join(f, g); };
        chunk = Op::join(chunk, from_start(moves, runs<Op>(wide, t), joined));
      } else {
        auto local = vector_at(t);
        for (Index i = moves.steps(); i < block; i += moves.steps()) {
          local = Op::append(local, vector_at(t + i));
        }
        chunk = Op::join(chunk, local);
      }
    }
    for (; t + moves.steps() <= steps.end; t += moves.steps()) {
      chunk = Op::join(chunk, vector_at(t));
    }
    chunk = last(moves, chunk);
    auto local = Op::local_identity();
    for (; t < steps.end; ++t) local = Op::then(local, source.step(source.load(0, t)));
    *total = Op::promote(Op::join(chunk, local));
  }

 private:
  template <class Op, class Cursor, class Output>
  static void walk_vectors(const Moves& moves, const Cursor& source, const Output& sink,
                           Range steps, typename Op::State& carry) {
    const auto wide = source.abreast(moves.steps());
    const auto out = sink.abreast(moves.steps());
    auto state = each(carry, [&](const auto& x) { return moves.first(x); });
    for (Index t = steps.begin; t < steps.end; t += moves.steps()) {
      const auto item = wide.load(0, t);
      const auto f = from_start(moves, Op::alone(wide.step(item)), appended<Op>);
      const auto after = Op::apply(f, state);
      const auto before = each(
          state,
          [&](const auto& s, const auto& x) { return moves.choose(0, moves.earlier(0, x), s); },
          after);
      out.store(0, t, item, before, after);
      state = last(moves, after);
    }
    carry = state;
  }
  template <class Values>
  static Values last(const Moves& moves, const Values& f) {
    return each(f, [&](const auto& x) { return moves.last(x); });
  }
  template <class Op>
  static constexpr auto appended = [](const auto& f, const auto& g) { return Op::append(f, g); };
  // Each step's map from the start of the vector; both(f, g) is "first f, then g".
  template <class Local, class Both>
  static Local from_start(const Moves& moves, Local f, const Both& both) {
    for (int level = 0; level < Moves::kLevels; ++level) {
      const auto earlier = each(f, [&](const auto& x) { return moves.earlier(level, x); });
      f = each(
          f, [&](const auto& x, const auto& y) { return moves.choose(level, y, x); },
          both(earlier, f));
    }
    return f;
  }
  // The maps of runs of kLocalSteps steps from `t` on, as many runs as a vector holds steps:
  // neighbours are composed, two vectors to one, until as many are left. That is one composition a
  // vector, where the map from its start to each of its steps takes one for each level.
  template <class Op, class Wide>
  typename Op::Local runs(const Wide& wide, Index t) const {
    constexpr int kPairings = 4;
    static_assert(1 << kPairings == kLocalSteps);
    typename Op::Local first[kPairings];  // of two, whose second is to come
    for (int i = 0;; ++i, t += moves.steps()) {
      auto f = Op::alone(wide.step(wide.load(0, t)));
      int k = 0;
      for (; i >> k & 1; ++k) {
        const auto half = [&](int odd) {
          return each(
              first[k], [&](const auto& x, const auto& y) { return moves.every_other(odd, x, y); },
              f);
        };
        f = Op::append(half(0), half(1));
      }
      if (k == kPairings) return f;
      first[k] = f;
    }
  }
};

}  // namespace scanrnn::scan
