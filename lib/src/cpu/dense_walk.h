// SPDX-License-Identifier: Apache-2.0
// What a dense layer on the CPU is walked with: its weights, and the states that the walk carries.
#pragma once

#include <algorithm>
#include <optional>

#include "cpu/ragged.h"
#include "cpu/team.h"

namespace scanrnn {

// What both directions work with: the weights as they are and packed, and the carried states.
template <class T>
struct DenseWalk {
  const LayerCall& call;
  DenseWeight<T> input, recurrent;
  std::optional<Sequences> sequences;  // of a ragged batch, each a line of the walk
  Index lines;
  T *bias = nullptr, *packed_input = nullptr, *packed_recurrent = nullptr;
  T *h = nullptr, *more = nullptr, *zeros = nullptr;

  DenseWalk(const LayerCall& p, Arena& arena, bool forward, bool pack)
      : call(p),
        input(weight_of(p, p.weight, p.input)),
        recurrent(weight_of(p, p.recurrent_weight, p.hidden)),
        lines(p.batch) {
    const Index line = padded(call.hidden);
    if (call.is_ragged()) {
      sequences.emplace(call, arena);
      lines = call.sequences;
      zeros = take<T>(arena, line);
      if (!arena.counting()) std::fill_n(zeros, line, T(0));
    }
    if (forward) bias = take<T>(arena, call.kept_width());
    if (pack) {
      packed_input = take<T>(
          arena, call.gates * std::max(line * call.input, call.hidden * padded(call.input)));
      packed_recurrent = take<T>(arena, call.width() * line);
    }
    if (!forward) h = take<T>(arena, lines * line);
    if (call.more_states() > 0) more = take<T>(arena, call.more_states() * lines * line);
  }
  static DenseWeight<T> weight_of(const LayerCall& call, const TensorView& weight, Index columns) {
    return {static_cast<const T*>(weight.data), weight.strides[0], call.hidden, columns,
            call.gates};
  }

  // Threads worth keeping in step: a barrier takes about as long as this many multiplications.
  int members(const scan::Team& team) const {
    constexpr Index kPerThread = 1 << 14;
    const Index worth = lines * call.width() * call.hidden / kPerThread;
    return static_cast<int>(std::clamp<Index>(worth, 1, team.size));
  }
  Index threads(const dispatch::Plan& plan) const {
    return team_size(plan, call.tokens() * call.width() * (call.input + call.hidden));
  }
  DenseSchedule<T> schedule(const scan::Team& team, StepBarrier& barrier) const {
    DenseSchedule<T> out;
    out.team = {team.rank, members(team)};
    out.barrier = &barrier;
    out.lines = lines;
    out.hidden = call.hidden;
    out.h = h;
    out.more = more;
    return out;
  }
  static bool takes_part(const DenseSchedule<T>& schedule) {
    return schedule.team.rank < schedule.team.size;
  }

  // bias_ih and bias_hh, each with the sums that its row blocks add to.
  void add_biases() const {
    const auto [in_order, own] = recurrent_rows(call);
    std::fill_n(bias, call.kept_width(), T(0));
    const auto add = [&](const TensorView& from, Index first, Index last, Index shift) {
      const auto* values = static_cast<const T*>(from.data);
      for (Index i = first; values && i < last; ++i) bias[i + shift] += values[i];
    };
    add(call.bias, 0, call.width(), 0);
    add(call.recurrent_bias, 0, in_order, 0);
    add(call.recurrent_bias, in_order, call.width(), own);
  }
  // Where a [B,H] tensor has the state of a line; null where it is absent.
  T* state(const TensorView& of, Index line) const {
    const Index row = sequences ? sequences->begin()[line].row : line;
    return of ? static_cast<T*>(of.data) + row * of.strides[0] : nullptr;
  }
  // Between a carry, `apart` from line to line, and a [B,H] tensor; absent: all of them `value`.
  void load(const scan::Team& team, const TensorView& from, T* carry, Index apart,
            double value) const {
    const scan::Range mine = team.share(lines);
    for (Index line = mine.begin; line < mine.end; ++line) {
      T* to = carry + line * apart;
      std::fill_n(to, padded(call.hidden), static_cast<T>(value));
      if (from) std::copy_n(state(from, line), call.hidden, to);
    }
  }
  void store(const scan::Team& team, const T* carry, Index apart, const TensorView& to) const {
    const scan::Range mine = team.share(lines);
    for (Index line = mine.begin; to && line < mine.end; ++line) {
      std::copy_n(carry + line * apart, call.hidden, state(to, line));
    }
  }
  // The same of the tensors behind h; absent: fresh ones, or zeros.
  Index more_apart() const { return call.more_states() * padded(call.hidden); }
  void load_more(const scan::Team& team, const MoreStates& from, bool fresh) const {
    for (int i = 0; i < call.more_states(); ++i) {
      const auto k = static_cast<std::size_t>(i);
      load(team, from[k], more + i * padded(call.hidden), more_apart(),
           fresh ? info(call.cell).fresh[k + 1] : 0);
    }
  }
  void store_more(const scan::Team& team, const MoreStates& to) const {
    for (int i = 0; i < call.more_states(); ++i) {
      store(team, more + i * padded(call.hidden), more_apart(), to[static_cast<std::size_t>(i)]);
    }
  }
  // The h before each step of a ragged batch, [T,B,H], zeros where there is no step.
  void keep_before(const scan::Team& team, T* values) const {
    const Tile all{0, call.steps, 0, call.batch};
    const TensorView view = dense(values, call.steps, call.batch, call.hidden, call.batch_major);
    const auto to = walked<T>(view, all, call.reverse);
    const auto y = walked<T>(call.y, all, call.reverse);
    clear_padding<T>(team, view, call.ragged.lengths);
    for (Index line = team.rank; line < lines; line += team.size) {
      const Sequence& s = sequences->begin()[line];
      for (Index t = 0; t < s.count; ++t) {
        const T* from = t > 0 ? y.at_line(s.line).at(s.first + t - 1) : state(call.h0, line);
        if (sequences->lines().resets(s, s.first + t)) from = nullptr;
        std::copy_n(from ? from : zeros, call.hidden, to.at_line(s.line).at(s.first + t));
      }
    }
  }
  // The h after a line's last step, which is in y or, where there was no step, `before`.
  void store_last(const scan::Team& team, const Strided<T>& y,
                  const Strided<const T>& before) const {
    const scan::Range mine = team.share(lines);
    for (Index line = mine.begin; call.hn && line < mine.end; ++line) {
      const T* from = before.at_line(line).data;
      if (sequences) {
        const Sequence& s = sequences->begin()[line];
        from = s.count > 0 ? y.at_line(s.line).at(s.first + s.count - 1) : state(call.h0, line);
      }
      T* to = state(call.hn, line);
      if (!from) std::fill_n(to, call.hidden, T(0));
      if (from && from != to) std::copy_n(from, call.hidden, to);
    }
  }
};

}  // namespace scanrnn
