// SPDX-License-Identifier: Apache-2.0
// A ragged batch on the CPU: its sequences as a layer call walks them, and where on the way the
// state is zero.
#pragma once

#include <algorithm>

#include "cpu/dense.h"
#include "recurrence/dense_layer.h"
#include "scanrnn/scan/cpu.h"
#include "stack/backend.h"

namespace scanrnn {

class Sequences {
 public:
  // Takes memory for as many as the call has and, unless the arena only counts, finds them.
  Sequences(const LayerCall& call, Arena& arena) : call_(call) {
    lines_.sequences = static_cast<Sequence*>(
        arena.take(static_cast<std::size_t>(call.sequences) * sizeof(Sequence)));
    if (arena.counting()) return;
    lines_.reverse = call.reverse;
    lines_.steps = call.steps;
    const bool packed = static_cast<bool>(call.ragged.cu_seqlens);
    const SequenceBounds bounds(call.ragged, call.steps, call.sequences, packed);
    for (Index row = 0; row < call.sequences; ++row) {
      const Index first = bounds.first(row), count = bounds.length(row);
      begin()[row] = {row, packed ? 0 : row, call.reverse ? call.steps - first - count : first,
                      count};
      tokens_ += count;
    }
    std::sort(begin(), end(), [](const Sequence& a, const Sequence& b) {
      return a.count != b.count ? a.count > b.count : a.row < b.row;
    });
    const TensorView& reset = call.ragged.reset;
    if (!reset) return;
    // Against time the state before a step is that after the next one.
    const Index step = reset.strides[0];
    lines_.reset = {
        static_cast<const std::uint8_t*>(reset.data) + (call.reverse ? call.steps * step : 0),
        reset.strides[1], call.reverse ? -step : step};
  }

  // The longest first.
  Sequence* begin() const { return lines_.sequences; }
  Sequence* end() const { return begin() + call_.sequences; }
  Index longest() const { return call_.sequences > 0 ? begin()->count : 0; }
  Index tokens() const { return tokens_; }

  const DenseLines& lines() const { return lines_; }
  // use(first step, the step after the last, whether it begins with the sequence's own state,
  // whether it ends with the sequence) for each stretch without a reset inside.
  template <class F>
  void for_stretches(const Sequence& s, F&& use) const {
    const Index end = s.first + s.count;
    Index begin = s.first;
    if (!lines_.reset.data) return use(begin, end, true, true);
    bool own = s.count == 0 || !lines_.resets(s, begin);
    for (Index step = begin + 1; step < end; ++step) {
      if (!lines_.resets(s, step)) continue;
      use(begin, step, own, false);
      begin = step;
      own = false;
    }
    use(begin, end, own, true);
  }

 private:
  const LayerCall& call_;
  DenseLines lines_;
  Index tokens_ = 0;
};

// Zeros in a [T,B,.] tensor of T at the steps of a line from its length on; by all threads of a
// team. Without lengths there are none.
template <class T>
void clear_padding(const scan::Team& team, const TensorView& view, const TensorView& lengths) {
  if (!lengths) return;
  const Integers length(lengths);
  const scan::Range mine = team.share(view.sizes[1]);
  for (Index line = mine.begin; line < mine.end; ++line) {
    for (Index t = length[line]; t < view.sizes[0]; ++t) {
      std::fill_n(static_cast<T*>(view.data) + t * view.strides[0] + line * view.strides[1],
                  view.sizes[2], T(0));
    }
  }
}

// Rows of each sequence, [N,.], added to its edge in tokens [T,B,.].
template <class T>
void add_to_edges(const scan::Team& team, const EdgeSteps& edges, const Strided<const T>& rows,
                  const TensorView& tokens) {
  const scan::Range mine = team.share(edges.count());
  for (Index n = mine.begin; n < mine.end; ++n) {
    const Index step = edges.step(n);
    if (step < 0) continue;
    T* to =
        static_cast<T*>(tokens.data) + step * tokens.strides[0] + edges.line(n) * tokens.strides[1];
    for (Index i = 0; i < tokens.sizes[2]; ++i) to[i] += rows.at_line(n).data[i];
  }
}
// And the edges to the rows; where there is no first one, zeros.
template <class T>
void take_edges(const scan::Team& team, const EdgeSteps& edges, const TensorView& tokens,
                const Strided<T>& rows) {
  const scan::Range mine = team.share(edges.count());
  for (Index n = mine.begin; n < mine.end; ++n) {
    const Index step = edges.step(n), width = tokens.sizes[2];
    T* to = rows.at_line(n).data;
    if (step < 0) {
      if (!edges.last) std::fill_n(to, width, T(0));
    } else {
      std::copy_n(static_cast<const T*>(tokens.data) + step * tokens.strides[0] +
                      edges.line(n) * tokens.strides[1],
                  width, to);
    }
  }
}

template <class T>
Strided<T> moved(const Strided<T>& s, Index line, Index step) {
  return {s.data ? s.data + line * s.line + step * s.step : nullptr, s.line, s.step};
}

}  // namespace scanrnn
