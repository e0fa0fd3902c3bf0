// SPDX-License-Identifier: Apache-2.0
// The bare recurrence, once for both processors: what the engine reads and writes, forward and
// backward, in the linear form and by logarithms. Those of log_output are in recurrence/log_scan.h.
//
// Memory is that of recurrence/linear.h, and where its rows are units they may lie any stride
// apart.
#pragma once

#include "recurrence/linear.h"
#include "scanrnn/linear_scan.h"
#include "scanrnn/scan/complex.h"

namespace scanrnn {

// A tensor walked by line, row and step, each a stride apart. Kernels whose rows are vectors or
// words take `row` to be 1. With `split` it is cut into lines of one row: so many make a line.
template <class T>
struct Grid {
  T* data = nullptr;
  Index line = 0, step = 0, row = 1;
  Index split = 0;

  SCANRNN_HD Grid at_line(Index i) const {
    if (!data) return *this;
    if (!split) return {data + i * line, line, step, row, split};
    const Index whole = scan::quotient(i, split);
    return {data + whole * line + (i - whole * split) * row, line, step, row, split};
  }
  SCANRNN_HD T* at(Index t) const { return data + t * step; }
  // The same tensor counted from (row, t), and moved on by a step.
  SCANRNN_HD Grid from(Index r, Index t) const {
    return {data ? data + t * step + r * row : nullptr, line, step, row, split};
  }
  SCANRNN_HD void next() { data += step; }
  // The same tensor, read `steps` at a time at the address of the lowest of them.
  SCANRNN_HD Grid abreast(Index steps) const {
    return {data && step < 0 ? data + (steps - 1) * step : data, line, step, row, split};
  }

  SCANRNN_HD scan::Stream<std::remove_const_t<T>> stream(Index steps) const {
    return {data, step, steps, row};
  }
  // Its tile; of a tensor that may be absent, where it has one. A pointer that is one or the other
  // is no address of shared memory to a compiler, and its loads are slower.
  SCANRNN_HD Grid staged(const T* tile, Index tile_step) const {
    return {tile, 0, tile_step, 1, 0};
  }
  SCANRNN_HD Grid staged_if_there(const T* tile, Index tile_step) const {
    return {data ? tile : nullptr, 0, tile_step, 1, 0};
  }
};
template <class T>
Grid<const T> as_const(const Grid<T>& g) {
  return {g.data, g.line, g.step, g.row, g.split};
}

template <class Memory>
SCANRNN_HD typename Memory::V read(const Grid<const typename Memory::T>& grid, Index row, Index t,
                                   Index width) {
  return Memory::read(grid.at(t), row * grid.row, width);
}
template <class Memory>
SCANRNN_HD void write(const Grid<typename Memory::T>& grid, Index row, Index t, Index width,
                      const typename Memory::V& value) {
  Memory::write(grid.at(t), row * grid.row, width, value);
}

// Where the state before a step is zero: a byte for each unit, and Memory says
//   resets(const uint8_t* step, Index row, Index stride, Index width) -> mask of a row.
// No tile has it. A Source that reads it is counted from where a tile begins: by staged() where the
// step is told, elsewhere by from() before that (scan/cuda/feed.cuh).
template <class Memory>
struct Resets {
  Grid<const std::uint8_t> at;
  Index steps = 0;  // left; what lies past them is not read

  SCANRNN_HD explicit operator bool() const { return at.data != nullptr; }
  SCANRNN_HD Resets at_line(Index i) const { return {at.at_line(i), steps}; }
  SCANRNN_HD Resets from(Index row, Index t) const {
    return {at.from(row * Memory::kUnits, t), steps - t};
  }
  SCANRNN_HD Resets staged(Index row, Index t) const {
    return t == scan::kInside ? *this : from(row, t);
  }
  // `cut` where the row is cut before step t, elsewhere `kept`.
  template <class V>
  SCANRNN_HD V choose(Index row, Index t, Index width, const V& cut, const V& kept) const {
    using scan::select;
    if (t >= steps) return kept;
    return select(Memory::resets(at.at(t), row, at.row, width), cut, kept);
  }
};

// In place of Resets where there are none: known when a kernel is compiled, so that its loads wait
// for no branch.
struct NoResets {
  SCANRNN_HD explicit constexpr operator bool() const { return false; }
  SCANRNN_HD NoResets at_line(Index) const { return {}; }
  SCANRNN_HD NoResets from(Index, Index) const { return {}; }
  SCANRNN_HD NoResets staged(Index, Index) const { return {}; }
  template <class V>
  SCANRNN_HD V choose(Index, Index, Index, const V&, const V& kept) const {
    return kept;
  }
};

// ---- forward: h_t = a_t h_{t-1} + b_t

template <class Memory, bool kLogForm, class Cuts = Resets<Memory>>
struct BareSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  using Item = std::conditional_t<kLogForm, scan::LogAffine<V>, scan::Affine<V>>;
  static constexpr int kStreams = kLogForm ? 3 : 2;
  static constexpr bool kLifts = kLogForm, kLastDiffers = false, kReadsUnstaged = true;
  Grid<const T> a, b, sign_b;
  Cuts reset;
  Index width;
  Index steps = 0;  // read by stream() alone

  SCANRNN_HD BareSource line(Index i) const {
    return {a.at_line(i), b.at_line(i), sign_b.at_line(i), reset.at_line(i), width, steps};
  }
  SCANRNN_HD scan::Stream<T> stream(int i) const {
    return (i == 0 ? a : i == 1 ? b : sign_b).stream(steps);
  }
  // For tensors whose steps are adjacent, without resets (scan/cpu_abreast.h).
  SCANRNN_HD BareSource abreast(Index count) const {
    return {a.abreast(count), b.abreast(count), sign_b.abreast(count), reset, width * count, steps};
  }
  SCANRNN_HD void prefetch(Index row, Index t) const {
    Memory::prefetch(a.at(t), row * a.row);
    Memory::prefetch(b.at(t), row * b.row);
  }
  template <class Tiles>
  SCANRNN_HD BareSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return {a.staged(tiles[0], step),
            b.staged(tiles[1], step),
            sign_b.staged_if_there(tiles[2], step),
            reset.staged(row, t),
            width,
            steps};
  }
  SCANRNN_HD BareSource from(Index row, Index t) const {
    return {a, b, sign_b, reset.from(row, t), width, steps};
  }
  SCANRNN_HD Item load(Index row, Index t) const {
    V decay = read<Memory>(a, row, t, width);
    const V input = read<Memory>(b, row, t, width);
    if constexpr (kLogForm) {
      if (reset) decay = reset.choose(row, t, width, scan::log_of_zero<V>(), decay);
      return {decay, input, sign_b.data ? read<Memory>(sign_b, row, t, width) : V(1)};
    } else {
      if (reset) decay = reset.choose(row, t, width, V(0), decay);
      return {decay, V(1) - decay, input};
    }
  }
  SCANRNN_HD scan::Affine<V> step(const Item& item) const {
    if constexpr (kLogForm) {
      return lift(item);
    } else {
      return item;
    }
  }
};

// The same of logarithms without signs and resets, for operators of LoggedAffine.
template <class Memory>
struct LoggedSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  struct Item {
    V log_a, log_b;
  };
  static constexpr int kStreams = 2;
  static constexpr bool kLifts = true, kLastDiffers = false;
  Grid<const T> a, b;
  Index width;
  Index steps = 0;  // read by stream() alone

  SCANRNN_HD LoggedSource line(Index i) const { return {a.at_line(i), b.at_line(i), width, steps}; }
  SCANRNN_HD scan::Stream<T> stream(int i) const { return (i == 0 ? a : b).stream(steps); }
  template <class Tiles>
  SCANRNN_HD LoggedSource staged(const Tiles& tiles, Index step, Index, Index) const {
    return {a.staged(tiles[0], step), b.staged(tiles[1], step), width, steps};
  }
  SCANRNN_HD Item load(Index row, Index t) const {
    return {read<Memory>(a, row, t, width), read<Memory>(b, row, t, width)};
  }
  SCANRNN_HD scan::LoggedAffine<V> step(const Item& item) const {
    return scan::lift_logged(item.log_a, item.log_b);
  }
};

// The state that is walked, as it is.
template <class Memory>
struct BareSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = 1;
  static constexpr bool kReadsItem = false;
  Grid<T> h;
  Index width;
  Index steps = 0;  // read by stream() alone

  SCANRNN_HD BareSink line(Index i) const { return {h.at_line(i), width, steps}; }
  SCANRNN_HD BareSink abreast(Index count) const {
    return {h.abreast(count), width * count, steps};
  }
  SCANRNN_HD scan::OutStream<T> stream(int) const { return {h.data, h.step, steps, h.row}; }
  template <class Tiles>
  SCANRNN_HD BareSink staged(const Tiles& tiles, Index step, Index, Index) const {
    return {{tiles[0], 0, step}, width, steps};
  }
  SCANRNN_HD BareSink from(Index row, Index t) const { return {h.from(row, t), width, steps}; }
  SCANRNN_HD void next() { h.next(); }
  template <class Item>
  SCANRNN_HD void store(Index row, Index t, const Item&, const scan::Carried<V>&,
                        const scan::Carried<V>& state) const {
    write<Memory>(h, row, t, width, state.h);
  }
};

// h_0, zeros where it is absent, and h_T, for who wants it; both are [lines, rows].
template <class Memory>
struct BareEnds {
  using V = typename Memory::V;
  using T = typename Memory::T;
  Grid<const T> initial;
  Grid<T> final;
  Index width;

  SCANRNN_HD scan::Carried<V> first(Index line, Index row) const {
    if (!initial.data) return scan::carried(V(0));
    return scan::carried(read<Memory>(initial.at_line(line), row, 0, width));
  }
  SCANRNN_HD void last(Index line, Index row, const scan::Carried<V>& state) const {
    if (final.data) write<Memory>(final.at_line(line), row, 0, width, state.h);
  }
};

// ---- backward, walked from the last step to the first, as that of a cell is
// (recurrence/linear.h): mu_t = conj(a_t) lambda_t, from zero at the end of time to the cotangent
// of h_0

// A step and what its cotangents are made of. In the linear form `b` is not used.
template <class V>
struct BareBackwardItem {
  scan::Affine<V> f;
  V previous, dh;
};

template <class Source>
struct BackwardAbreast;  // several adjacent steps to a vector; the CPU has it alone

template <class Memory, bool kLogForm, class Cuts = Resets<Memory>>
struct BareBackwardSource {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = kLogForm ? 5 : 3;
  static constexpr bool kLifts = kLogForm, kLastDiffers = true, kReadsUnstaged = true;
  Grid<const T> a, previous, dh, b, sign_b;  // previous: the states a step before
  Grid<const T> initial;                     // h_0, or absent: zeros
  Cuts reset;
  Index width;
  Index last;  // the index of the first step in time

  SCANRNN_HD BareBackwardSource line(Index i) const {
    return {a.at_line(i),       previous.at_line(i), dh.at_line(i), b.at_line(i), sign_b.at_line(i),
            initial.at_line(i), reset.at_line(i),    width,         last};
  }
  SCANRNN_HD scan::Stream<T> stream(int i) const {
    const Index steps = last + 1;
    return i == 0   ? a.stream(steps)
           : i == 1 ? previous.stream(last)
           : i == 2 ? dh.stream(steps)
           : i == 3 ? b.stream(steps)
                    : sign_b.stream(steps);
  }
  template <class Tiles>
  SCANRNN_HD BareBackwardSource staged(const Tiles& tiles, Index step, Index row, Index t) const {
    return {a.staged(tiles[0], step),
            previous.staged(tiles[1], step),
            dh.staged(tiles[2], step),
            b.staged(tiles[3], step),
            sign_b.staged_if_there(tiles[4], step),
            initial.from(row, 0),
            reset.staged(row, t),
            width,
            t == scan::kInside ? std::numeric_limits<Index>::max() : last - t};
  }
  SCANRNN_HD BareBackwardSource from(Index row, Index t) const {
    BareBackwardSource out = *this;
    out.reset = reset.from(row, t);
    return out;
  }
  BackwardAbreast<BareBackwardSource> abreast(Index count) const { return {*this, count}; }
  SCANRNN_HD BareBackwardSource of_steps(Index steps) const {
    BareBackwardSource out = *this;
    out.last = steps - 1;
    return out;
  }
  SCANRNN_HD BareBackwardItem<V> load(Index row, Index t) const {
    using scan::conj;
    BareBackwardItem<V> item{};
    V decay = read<Memory>(a, row, t, width);
    if (t < last) {
      item.previous = read<Memory>(previous, row, t, width);
    } else {
      item.previous = initial.data ? read<Memory>(initial, row, 0, width) : V(0);
    }
    item.dh = read<Memory>(dh, row, t, width);
    if (reset) {
      const V zero = kLogForm ? scan::log_of_zero<V>() : V(0);
      decay = reset.choose(row, t, width, zero, decay);
      item.previous = reset.choose(row, t, width, V(0), item.previous);
    }
    if constexpr (kLogForm) {
      const V sign = sign_b.data ? read<Memory>(sign_b, row, t, width) : V(1);
      item.f = lift(scan::LogAffine<V>{decay, read<Memory>(b, row, t, width), sign});
    } else {
      item.f = {conj(decay), conj(V(1) - decay), V(0)};
    }
    return item;
  }
  SCANRNN_HD scan::Affine<V> step(const BareBackwardItem<V>& item) const {
    using scan::is_zero, scan::select;
    return {item.f.a, item.f.z, select(is_zero(item.f.a), V(0), item.f.a * item.dh)};
  }
};

template <class Memory, bool kLogForm>
struct BareBackwardSink {
  using V = typename Memory::V;
  using T = typename Memory::T;
  static constexpr int kStreams = 2;
  static constexpr bool kReadsItem = true;
  Grid<T> da, db;  // each may be absent
  Index width;
  Index steps = 0;  // read by stream() alone

  SCANRNN_HD BareBackwardSink line(Index i) const {
    return {da.at_line(i), db.at_line(i), width, steps};
  }
  SCANRNN_HD scan::OutStream<T> stream(int i) const {
    const Grid<T>& out = i == 0 ? da : db;
    return {out.data, out.step, steps, out.row};
  }
  template <class Tiles>
  SCANRNN_HD BareBackwardSink staged(const Tiles& tiles, Index step, Index, Index) const {
    return {{tiles[0], 0, step}, {tiles[1], 0, step}, width, steps};
  }
  SCANRNN_HD BareBackwardSink abreast(Index count) const {
    return {da.abreast(count), db.abreast(count), width * count, steps};
  }
  SCANRNN_HD BareBackwardSink from(Index row, Index t) const {
    return {da.from(row, t), db.from(row, t), width, steps};
  }
  SCANRNN_HD void next() {
    if (da.data) da.next();
    if (db.data) db.next();
  }
  SCANRNN_HD void store(Index row, Index t, const BareBackwardItem<V>& item,
                        const scan::Carried<V>& before, const scan::Carried<V>&) const {
    using scan::conj;
    const V lambda = item.dh + before.h;
    if (da.data) {
      V slope = conj(item.previous);
      if constexpr (kLogForm) slope = item.f.a * slope;  // a term of h, and in its range
      write<Memory>(da, row, t, width, lambda * slope);
    }
    if (db.data) write<Memory>(db, row, t, width, kLogForm ? lambda * item.f.b : lambda);
  }
};

// ---- what the kernels are called with, on any processor: all in the order of the walk

template <class T>
struct ScanKernelArgs {
  ScanForm form = ScanForm::linear;
  Grid<const T> a, b, sign_b;
  Grid<const std::uint8_t> reset;
  Grid<const T> h0, sign_h0;
  Grid<T> h, sign_h;
};

template <class T>
struct ScanBackwardKernelArgs {
  ScanForm form = ScanForm::linear;
  Grid<const T> a, b, sign_b;
  Grid<const std::uint8_t> reset;
  Grid<const T> h0, sign_h0;  // h0 has a stride of 0 between steps
  Grid<const T> h, sign_h, dh;
  Grid<T> da, db, dh0;
};

}  // namespace scanrnn
