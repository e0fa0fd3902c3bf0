// SPDX-License-Identifier: Apache-2.0
// The bare recurrence whose states leave the range of the dtype (log_output), once for both
// processors: Sources and Sinks, forward and backward.
#pragma once

#include "recurrence/scan.h"
#include "scanrnn/scan/log_state.h"

namespace scanrnn {

// ---- forward

template <class Memory>
struct LogStateSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Logs = BareSource<Memory, true>;
  static constexpr int kStreams = Logs::kStreams;
  // What a kernel would keep of a lifted step is that of a linear one.
  static constexpr bool kLifts = false, kLastDiffers = false, kReadsUnstaged = true;
  Logs logs;

  SCANRNN_HD LogStateSource line(Index i) const { return {logs.line(i)}; }
  SCANRNN_HD scan::Stream<T> stream(int i) const { return logs.stream(i); }
  template <class Tiles>
  SCANRNN_HD LogStateSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return {logs.staged(tiles, step, row, t)};
  }
  SCANRNN_HD LogStateSource from(Index row, Index t) const { return {logs.from(row, t)}; }
  SCANRNN_HD scan::LogAffine<V> load(Index row, Index t) const { return logs.load(row, t); }
  SCANRNN_HD scan::ScaledAffine<V, V> step(const scan::LogAffine<V>& item) const {
    return scaled_lift(item);
  }
};

template <class Memory>
struct LogStateSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = 2;
  static constexpr bool kReadsItem = false;
  Grid<T> h, sign_h;
  Index width;
  Index steps = 0;  // read by stream() alone

  SCANRNN_HD LogStateSink line(Index i) const {
    return {h.at_line(i), sign_h.at_line(i), width, steps};
  }
  SCANRNN_HD scan::OutStream<T> stream(int i) const {
    const Grid<T>& out = i == 0 ? h : sign_h;
    return {out.data, out.step, steps, out.row};
  }
  template <class Tiles>
  SCANRNN_HD LogStateSink staged(const Tiles& tiles, Index step, Index, Index) const {
    return {{tiles[0], 0, step}, {tiles[1], 0, step}, width, steps};
  }
  SCANRNN_HD LogStateSink from(Index row, Index t) const {
    return {h.from(row, t), sign_h.from(row, t), width, steps};
  }
  SCANRNN_HD void next() {
    h.next();
    sign_h.next();
  }
  template <class Item>
  SCANRNN_HD void store(Index row, Index t, const Item&, const scan::ScaledState<V>&,
                        const scan::ScaledState<V>& state) const {
    write<Memory>(h, row, t, width, log_of(state));
    write<Memory>(sign_h, row, t, width, sign_of(state));
  }
};

template <class Memory>
struct LogStateEnds {
  using V = typename Memory::V;
  using T = typename Memory::T;
  Grid<const T> initial, sign;
  Index width;

  SCANRNN_HD scan::ScaledState<V> first(Index line, Index row) const {
    if (!initial.data) return scan::scaled_state(scan::log_of_zero<V>(), V(1));
    const V positive = V(1);
    return scan::scaled_state(
        read<Memory>(initial.at_line(line), row, 0, width),
        sign.data ? read<Memory>(sign.at_line(line), row, 0, width) : positive);
  }
  SCANRNN_HD void last(Index, Index, const scan::ScaledState<V>&) const {}
};

// ---- backward: lambda_t = g_t + w_{t+1} lambda_{t+1}, g the cotangent of log|h| and w the share
// of the state before in it; walked as the linear one is

template <class V>
struct LogStateBackwardItem {
  scan::Shares<V> of;
  V dh;
};

template <class Memory>
struct LogStateBackwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = 6;
  static constexpr bool kLifts = true, kLastDiffers = true, kReadsUnstaged = true;
  Grid<const T> a, previous, dh, b, sign_b, sign;  // previous, sign: the states a step before
  Grid<const T> initial, initial_sign;             // log|h_0|, or absent: zeros
  Resets<Memory> reset;
  Index width;
  Index last;  // the index of the first step in time

  SCANRNN_HD LogStateBackwardSource line(Index i) const {
    return {a.at_line(i),
            previous.at_line(i),
            dh.at_line(i),
            b.at_line(i),
            sign_b.at_line(i),
            sign.at_line(i),
            initial.at_line(i),
            initial_sign.at_line(i),
            reset.at_line(i),
            width,
            last};
  }
  SCANRNN_HD scan::Stream<T> stream(int i) const {
    const Index steps = last + 1;
    return i == 0   ? a.stream(steps)
           : i == 1 ? previous.stream(last)
           : i == 2 ? dh.stream(steps)
           : i == 3 ? b.stream(steps)
           : i == 4 ? sign_b.stream(steps)
                    : sign.stream(last);
  }
  template <class Tiles>
  SCANRNN_HD LogStateBackwardSource staged(const Tiles& tiles, Index step, Index row,
                                           Index t) const {
    return {a.staged(tiles[0], step),
            previous.staged(tiles[1], step),
            dh.staged(tiles[2], step),
            b.staged(tiles[3], step),
            sign_b.staged_if_there(tiles[4], step),
            sign.staged(tiles[5], step),
            initial.from(row, 0),
            initial_sign.from(row, 0),
            reset.staged(row, t),
            width,
            t == scan::kInside ? std::numeric_limits<Index>::max() : last - t};
  }
  SCANRNN_HD LogStateBackwardSource from(Index row, Index t) const {
    LogStateBackwardSource out = *this;
    out.reset = reset.from(row, t);
    return out;
  }
  SCANRNN_HD LogStateBackwardItem<V> load(Index row, Index t) const {
    V before = scan::log_of_zero<V>(), sign_before = V(1);
    if (t < last) {
      before = read<Memory>(previous, row, t, width);
      sign_before = read<Memory>(sign, row, t, width);
    } else if (initial.data) {
      before = read<Memory>(initial, row, 0, width);
      if (initial_sign.data) sign_before = read<Memory>(initial_sign, row, 0, width);
    }
    V kept = read<Memory>(a, row, t, width) + before;
    if (reset) kept = reset.choose(row, t, width, scan::log_of_zero<V>(), kept);
    const V sign_of_b = sign_b.data ? read<Memory>(sign_b, row, t, width) : V(1);
    return {scan::shares(kept, sign_before, read<Memory>(b, row, t, width), sign_of_b),
            read<Memory>(dh, row, t, width)};
  }
  SCANRNN_HD scan::Affine<V> step(const LogStateBackwardItem<V>& item) const {
    using scan::is_zero, scan::select;
    const V w = item.of.w;
    return {w, V(1) - w, select(is_zero(w), V(0), w * item.dh)};
  }
};

// The cotangents of log a and log|b|: those of BareBackwardSink, by shares.
template <class Memory>
struct LogStateBackwardSink : BareBackwardSink<Memory, true> {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Outputs = BareBackwardSink<Memory, true>;

  SCANRNN_HD LogStateBackwardSink(const Outputs& outputs) : Outputs(outputs) {}
  SCANRNN_HD LogStateBackwardSink line(Index i) const { return Outputs::line(i); }
  template <class Tiles>
  SCANRNN_HD LogStateBackwardSink staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return Outputs::staged(tiles, step, row, t);
  }
  SCANRNN_HD LogStateBackwardSink from(Index row, Index t) const { return Outputs::from(row, t); }
  SCANRNN_HD void store(Index row, Index t, const LogStateBackwardItem<V>& item,
                        const scan::Carried<V>& before, const scan::Carried<V>&) const {
    const V lambda = item.dh + before.h;
    if (this->da.data) write<Memory>(this->da, row, t, this->width, lambda * item.of.w);
    if (this->db.data) write<Memory>(this->db, row, t, this->width, lambda * item.of.v);
  }
};

}  // namespace scanrnn
