// SPDX-License-Identifier: Apache-2.0
// What a dense layer's products with R are made of, once for both processors.
#pragma once

#include "stack/layer_call.h"

namespace scanrnn {

// Rows of R: the first add to the sums in order, the others to sums of their own behind all others
// (step_cell.h).
struct RecurrentRows {
  Index in_order, own;
};
inline RecurrentRows recurrent_rows(const LayerCall& call) {
  const Index own = call.kept_width() - call.width();
  return {call.width() - own, own};
}

// The steps of a sequence in the order of a layer's walk, and where in memory they are.
struct SequenceWalk {
  Index line, first, count;  // where it begins in time, and its steps
  bool reverse;
  Strided<const std::uint8_t> reset;  // of each of its line's tokens, or absent

  // Step t in time, on its line.
  SCANRNN_HD Index step(Index t) const { return first + (reverse ? count - 1 - t : t); }
  // The flag that no state comes into it, or null: of a walk against time the step walked before
  // it says so.
  SCANRNN_HD const std::uint8_t* cut_at(Index t) const {
    if (!reset.data || (reverse && t == 0)) return nullptr;
    return reset.at(step(reverse ? t - 1 : t));
  }
  SCANRNN_HD bool cut(Index t) const {
    const std::uint8_t* const flag = cut_at(t);
    return flag && *flag != 0;
  }
  template <class T>
  SCANRNN_HD T* at(const Strided<T>& tokens, Index t) const {
    return tokens.data ? tokens.at_line(line).at(step(t)) : nullptr;
  }
};

// Those of each sequence.
struct SequenceSteps {
  SequenceBounds all;
  Strided<const std::uint8_t> reset;  // of each token, or absent
  bool reverse;

  explicit SequenceSteps(const LayerCall& call)
      : all(call.ragged, call.steps, call.is_ragged() ? call.sequences : call.batch,
            call.layout == dispatch::Batch::packed),
        reset{static_cast<const std::uint8_t*>(call.ragged.reset.data),
              call.ragged.reset.strides[1], call.ragged.reset.strides[0]},
        reverse(call.reverse) {}

  SCANRNN_HD Index count(Index n) const { return all.length(n); }
  SCANRNN_HD Index line(Index n) const { return all.packed ? 0 : n; }
  SCANRNN_HD SequenceWalk of(Index n) const {
    return {line(n), all.first(n), count(n), reverse, reset.at_line(line(n))};
  }
};

// The first step of each sequence in the order of the walk, into which its initial state comes; or
// its last one, after which the final state is.
struct EdgeSteps {
  SequenceSteps all;
  bool last;

  EdgeSteps(const LayerCall& call, bool last) : all(call), last(last) {}

  SCANRNN_HD Index count() const { return all.all.count; }
  // Where in time, on the line of the sequence; -1 where there is no such step, or no state comes
  // into it.
  SCANRNN_HD Index step(Index n) const {
    const SequenceWalk own = all.of(n);
    if (own.count == 0 || (!last && own.cut(0))) return -1;
    return own.step(last ? own.count - 1 : 0);
  }
  SCANRNN_HD Index line(Index n) const { return all.line(n); }
};

// `count` steps of a [T,B,.] tensor from step `first` on.
inline TensorView steps_of(TensorView view, Index first, Index count) {
  view.data = static_cast<char*>(view.data) +
              first * view.strides[0] * static_cast<Index>(size_of(view.dtype));
  view.sizes[0] = count;
  return view;
}

// dR is a sum over tokens of d(R h)^T and the h before: of the first step with h_0, and of the
// others with y of the step before. All are [T,B,.] in the order of memory; h_first is absent where
// h_0 is zero. There is at least one step.
struct RecurrentPairs {
  TensorView d_first, h_first, d_rest, h_rest;
};
inline RecurrentPairs recurrent_pairs(const LayerCall& call, const TensorView& dsums) {
  const Index rest = call.steps - 1, second = call.reverse ? 0 : 1;
  RecurrentPairs out{steps_of(dsums, call.reverse ? rest : 0, 1),
                     {},
                     steps_of(dsums, second, rest),
                     steps_of(call.y, 1 - second, rest)};
  if (call.h0) {
    out.h_first = call.h0;  // [B,H] as [1,B,H]
    out.h_first.rank = 3;
    out.h_first.sizes = {1, call.batch, call.hidden};
    out.h_first.strides = {call.batch * call.h0.strides[0], call.h0.strides[0], 1};
  }
  return out;
}

}  // namespace scanrnn
