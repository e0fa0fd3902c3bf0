// SPDX-License-Identifier: Apache-2.0
// A recurrence over integers for the CUDA kernels of the engine: a Source, a Sink and Ends whose
// tiles are cut as those of one of the library's own are, and the walk on the host that says what
// must come out.
#pragma once

#include <limits>

#include "recurrence/scan.h"
#include "scanrnn/scan/cuda/chunk.cuh"
#include "support/integer_op.h"

namespace scanrnn::test {

using scan::Carried;
using scan::Extent;

// Integers that lie in memory as the values of one of the library's Memory do.
template <class Word, class Computed>
struct Integers {
  using T = Word;
  using Scalar = Integer<Computed>;
  using V = Scalar;
  SCANRNN_HD static V read(const T& stored) { return V(stored); }
};
struct alignas(4) HalfWords {
  std::uint16_t x, y;
};
struct PairsOfIntegers {
  using T = HalfWords;
  using Scalar = Integer<std::uint32_t>;
  using V = IntegerPair<std::uint32_t>;
  SCANRNN_HD static V read(const T& stored) { return {Scalar(stored.x), Scalar(stored.y)}; }
};
template <class Memory>
struct IntegersLike;
template <>
struct IntegersLike<scan::Units<__half>> : Integers<std::uint16_t, std::uint32_t> {};
template <>
struct IntegersLike<scan::Units<float>> : Integers<std::uint32_t, std::uint32_t> {};
template <>
struct IntegersLike<scan::Units<double>> : Integers<std::uint64_t, std::uint64_t> {};
template <>
struct IntegersLike<scan::Pairs<__half>> : PairsOfIntegers {};

// A Source and a Sink of the library, by all that the kernels cut their tiles by.
template <class LibraryMemory, class LibrarySource, class LibrarySink>
struct Shape {
  using Library = LibraryMemory;
  using From = LibrarySource;
  using To = LibrarySink;
  using Memory = IntegersLike<Library>;
  using T = typename Memory::T;
  using V = typename Memory::V;
  using Scalar = typename Memory::Scalar;
  static constexpr int kStreams = From::kStreams;
  static constexpr int kValues = sizeof(scan::cuda::ItemOf<From>) / sizeof(typename Library::V);
  static constexpr bool kLifts = From::kLifts, kLastDiffers = From::kLastDiffers;
  static constexpr bool kReadsItem = To::kReadsItem;
  static_assert(kStreams >= 2 && kStreams <= kValues);
};

// Where things lie: [steps][lines][rows] or [lines][steps][rows], walked either way in time.
struct Layout {
  Index line = 0, step = 0, begin = 0;

  static Layout of(const Extent& e, bool line_major, bool reverse) {
    Layout out{line_major ? e.steps * e.rows : e.rows, line_major ? e.rows : e.lines * e.rows};
    if (reverse && e.steps > 0) out = {out.line, -out.step, (e.steps - 1) * out.step};
    return out;
  }
};

template <class S>
struct Item {
  typename S::V value[S::kValues];
};

// A map from all streams. Where the last step differs the second stream lacks it, and `initial`, if
// there is one, stands in; the last of three or more streams may be absent, and counts as zeros.
template <class S>
struct Source {
  using T = typename S::T;
  using V = typename S::V;
  static constexpr int kStreams = S::kStreams;
  static constexpr bool kLifts = S::kLifts, kLastDiffers = S::kLastDiffers;
  const T* data[kStreams];
  Index line_stride, step_stride, steps;
  const T* initial;
  Index rows, last;

  SCANRNN_HD Source line(Index i) const {
    Source out = *this;
    for (const T*& stream : out.data) {
      if (stream) stream += i * line_stride;
    }
    if (initial) out.initial += i * rows;
    return out;
  }
  SCANRNN_HD scan::Stream<T> stream(int i) const {
    return {data[i], step_stride, kLastDiffers && i == 1 ? last : steps};
  }
  template <class Tiles>
  SCANRNN_HD Source staged(const Tiles& tiles, Index step, Index row, Index t) const {
    Source out = *this;
    for (int i = 0; i < kStreams; ++i) {
      if (data[i]) out.data[i] = tiles[i];
    }
    out.step_stride = step;
    if (initial) out.initial += row;
    out.last = t == scan::kInside ? std::numeric_limits<Index>::max() : last - t;
    return out;
  }
  SCANRNN_HD Source of_steps(Index count) const {
    Source out = *this;
    out.last = count - 1;
    return out;
  }
  SCANRNN_HD Item<S> load(Index row, Index t) const {
    Item<S> item{};
    for (int i = 0; i < kStreams; ++i) {
      const bool differs = kLastDiffers && i == 1 && t >= last;
      if (differs && initial) item.value[i] = S::Memory::read(initial[row]);
      if (!differs && data[i]) item.value[i] = S::Memory::read(data[i][row + t * step_stride]);
    }
    for (int i = kStreams; i < S::kValues; ++i) item.value[i] = item.value[0] + V(i);
    return item;
  }
  SCANRNN_HD IntegerStep<V> step(const Item<S>& item) const {
    const V a = V(2) * item.value[0] + V(1);  // odd: no state is ever forgotten
    V b = item.value[1];
    for (int i = 2; i < kStreams; ++i) b = b + V(2 * i + 1) * item.value[i];
    return {a, V(1) - a, b};
  }
};

// What a step left: states, the item where the Sink reads it, and how often.
template <class S>
struct Left {
  typename S::V before{0}, after{0}, item{0};
  unsigned times = 0;

  bool operator==(const Left& other) const {
    return before == other.before && after == other.after && item == other.item &&
           times == other.times;
  }
};
template <class S>
struct Sink {
  using V = typename S::V;
  static constexpr bool kReadsItem = S::kReadsItem;
  static constexpr int kStreams = 0;  // what a step left is no tensor, and never staged
  Left<S>* data;
  Index line_stride, step_stride;

  SCANRNN_HD Sink line(Index i) const { return {data + i * line_stride, line_stride, step_stride}; }
  SCANRNN_HD Sink from(Index row, Index t) const {
    return {data + row + t * step_stride, line_stride, step_stride};
  }
  SCANRNN_HD void next() { data += step_stride; }
  SCANRNN_HD scan::OutStream<typename S::T> stream(int) const { return {}; }
  template <class Tiles>
  SCANRNN_HD Sink staged(const Tiles&, Index, Index row, Index t) const {
    return from(row, t);
  }
  SCANRNN_HD void store(Index row, Index t, const Item<S>& item, const Carried<V>& before,
                        const Carried<V>& after) const {
    Left<S>& out = data[row + t * step_stride];
    out.before = before.h;
    out.after = after.h;
    if constexpr (kReadsItem) {
      for (int i = 0; i < S::kValues; ++i) out.item = out.item + V(2 * i + 1) * item.value[i];
    }
    ++out.times;
  }
};

template <class S>
struct Ends {
  using V = typename S::V;
  const V* initial;  // or null: zeros
  Left<S>* final;
  Index rows;

  SCANRNN_HD Carried<V> first(Index line, Index row) const {
    return scan::carried(initial ? initial[line * rows + row] : V(0));
  }
  SCANRNN_HD void last(Index line, Index row, const Carried<V>& state) const {
    Left<S>& out = final[line * rows + row];
    out.after = state.h;
    ++out.times;
  }
};

// The plainest walk.
template <class S>
void walk(const Extent& extent, const Source<S>& source, const Sink<S>& sink, const Ends<S>& ends) {
  for (Index line = 0; line < extent.lines; ++line) {
    const Source<S> in = source.line(line);
    const Sink<S> out = sink.line(line);
    for (Index row = 0; row < extent.rows; ++row) {
      auto state = ends.first(line, row);
      for (Index t = 0; t < extent.steps; ++t) {
        const Item<S> item = in.load(row, t);
        const auto map = in.step(item);
        const auto after = scan::carried(map.a * state.h + map.b);
        out.store(row, t, item, state, after);
        state = after;
      }
      ends.last(line, row, state);
    }
  }
}

}  // namespace scanrnn::test
