// SPDX-License-Identifier: Apache-2.0
// A ragged batch on the CPU: its sequences as a layer call walks them, and where on the way the
// state is zero.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/dense.h"
#include "recurrence/ragged.h"
#include "scanrnn/scan/cpu.h"
#include "stack/backend.h"

namespace scanrnn {

class Sequences {
 public:
  // Takes memory for as many as the call has and, unless the arena only counts, finds them.
  Sequences(const LayerCall& call, Arena& arena) : call_(call) {
    data_ = static_cast<Sequence*>(
        arena.take(static_cast<std::size_t>(call.sequences) * sizeof(Sequence)));
    if (arena.counting()) return;
    const bool packed = static_cast<bool>(call.ragged.cu_seqlens);
    for (Index row = 0; row < call.sequences; ++row) {
      Index begin = 0, end = call.steps;
      if (packed) {
        const Integers ends(call.ragged.cu_seqlens);
        begin = ends[row];
        end = ends[row + 1];
      } else if (call.ragged.lengths) {
        end = Integers(call.ragged.lengths)[row];
      }
      data_[row] = {row, packed ? 0 : row, call.reverse ? call.steps - end : begin, end - begin};
      tokens_ += end - begin;
    }
    std::sort(begin(), end(), [](const Sequence& a, const Sequence& b) {
      return a.count != b.count ? a.count > b.count : a.row < b.row;
    });
    const TensorView& reset = call.ragged.reset;
    if (!reset) return;
    // Against time the state before a step is that after the next one.
    const Index step = reset.strides[0];
    resets_ = {
        static_cast<const std::uint8_t*>(reset.data) + (call.reverse ? call.steps * step : 0),
        reset.strides[1], call.reverse ? -step : step};
  }

  // The longest first.
  Sequence* begin() const { return data_; }
  Sequence* end() const { return data_ + call_.sequences; }
  Index longest() const { return call_.sequences > 0 ? data_[0].count : 0; }
  Index tokens() const { return tokens_; }

  DenseLines lines() const { return {data_, resets_, call_.reverse, call_.steps}; }

  // Whether the state before a step of the sequence is zero.
  bool resets(const Sequence& s, Index step) const {
    if (!resets_.data || (call_.reverse && step == s.first)) return false;
    return *resets_.at_line(s.line).at(step) != 0;
  }
  // use(first step, the step after the last, whether it begins with the sequence's own state,
  // whether it ends with the sequence) for each stretch without a reset inside.
  template <class F>
  void for_stretches(const Sequence& s, F&& use) const {
    const Index end = s.first + s.count;
    Index begin = s.first;
    if (!resets_.data) return use(begin, end, true, true);
    bool own = s.count == 0 || !resets(s, begin);
    for (Index step = begin + 1; step < end; ++step) {
      if (!resets(s, step)) continue;
      use(begin, step, own, false);
      begin = step;
      own = false;
    }
    use(begin, end, own, true);
  }

 private:
  const LayerCall& call_;
  Sequence* data_;
  Index tokens_ = 0;
  Strided<const std::uint8_t> resets_;
};

// Zeros in [T,B,columns] values at the steps of a line that do not exist; by all threads of a team.
template <class T>
void clear_padding(const scan::Team& team, const LayerCall& call, T* values, Index columns) {
  if (!call.ragged.lengths) return;
  const TensorView view = dense(values, call.steps, call.batch, columns, call.batch_major);
  const Integers lengths(call.ragged.lengths);
  const scan::Range mine = team.share(call.batch);
  for (Index line = mine.begin; line < mine.end; ++line) {
    for (Index t = lengths[line]; t < call.steps; ++t) {
      std::fill_n(values + t * view.strides[0] + line * view.strides[1], columns, T(0));
    }
  }
}

template <class T>
Strided<T> moved(const Strided<T>& s, Index line, Index step) {
  return {s.data ? s.data + line * s.line + step * s.step : nullptr, s.line, s.step};
}

}  // namespace scanrnn
