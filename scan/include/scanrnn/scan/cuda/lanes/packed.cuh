// SPDX-License-Identifier: Apache-2.0
// Lines that are one run of memory (vectors.cuh), none shorter than a vector: a line's end is a
// cut. A warp has some whole lines of the run. Each of its lanes takes a vector of every tensor and
// composes its steps; the warp scans the compositions by shuffles, each from the last cut on, and
// each lane walks its steps from the state before them. Nothing goes through shared memory.
#pragma once

#include <numeric>

#include "scanrnn/scan/cuda/lanes/vectors.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kPackedWarps = 4;                     // of a block
inline constexpr int kPackedTiles = 2;                     // of a warp, on their way
inline constexpr Index kMostPackedSteps = Index{1} << 20;  // of a line: places are 32-bit words

// Blocks of a multiprocessor, as many as registers allow.
template <class Source>
inline constexpr int kPackedBlocks = Source::kStreams > 2 ? 5 : 8;

// A warp on its way through its lines, [begin, end) of all.
template <class Op, class Source, class Sink, int kStep>
struct PackedWarp {
  using T = typename Source::T;
  using V = typename Source::V;
  using State = typename Op::State;
  using Vector = StepVector<T>;
  static constexpr int kSteps = kVectorSteps<T>, kTile = kLanes * kSteps;
  static constexpr int kAhead = kStreamAhead<Source>;
  static constexpr int kTiles = kPackedTiles;

  const Source& source;
  const Sink& sink;
  const VectorEnds<T>& ends;
  const Index begin, end;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int steps;  // of a line
  int count;  // of whole vectors
  int rest;   // steps behind those in memory: the last ones of the last line of all, or none
  int tile_lines, tile_steps;  // that a tile is long: whole lines, and steps besides
  bool there[Sink::kStreams];  // the results that are wanted
  // The lane's vector of the tile that is walked next:
  int vector;  // its number in the order of the walk
  int line;    // of the warp's, in that order too: the last in memory first where kStep is below 0
  int t;       // its step that the vector begins with
  const T* in[Source::kStreams];
  T* out[Sink::kStreams];
  // What is in it, and in those of the next tiles.
  struct Loaded {
    int4 of[Source::kStreams] = {};
    T ahead{};  // what follows the last vector of a tile
  };
  Loaded loaded[kTiles];

  __device__ __forceinline__ PackedWarp(const Extent& extent, Index begin, Index end,
                                        const Source& source, const Sink& sink,
                                        const VectorEnds<T>& ends)
      : source(source), sink(sink), ends(ends), begin(begin), end(end) {
    steps = static_cast<int>(extent.steps);
    asm volatile("" : "+r"(steps));  // a register, not a load of a parameter in each turn
    const Index first = begin * steps / kSteps;
    const Index length = end * steps - first * kSteps;
    count = static_cast<int>(length / kSteps);
    rest = static_cast<int>(length % kSteps);
    tile_lines = kTile / steps;
    tile_steps = kTile - tile_lines * steps;
    vector = lane;
    const int at = lane * kSteps + (kStep > 0 ? 0 : rest);
    line = at / steps;
    t = at - line * steps;
    const Index place = (first + (kStep > 0 ? lane : count - 1 - lane)) * kSteps;
    const auto inputs = source.line(0);
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      in[i] = vector_run<kStep>(inputs.stream(i), steps, i == kAhead) + place;
    }
    const auto outputs = sink.line(0);
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      const auto stream = outputs.stream(i);
      out[i] = vector_run<kStep>(stream, steps) + place;
      there[i] = stream.data != nullptr;
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) load(loaded[i], i);
  }

  // Walks all of the warp's lines.
  __device__ __forceinline__ void run() {
    V state(0);
    if (kStep < 0 && rest > 0) state = walk_rest(state);
    for (int done = 0; done < count; done += kLanes) {
      state = walk(state, min(kLanes, count - done) - 1);
    }
    if (kStep > 0 && rest > 0) walk_rest(state);
  }

 private:
  // Whether no lane has the vector behind that.
  __device__ __forceinline__ bool is_last(int number) const {
    return lane == kLanes - 1 || number == count - 1;
  }
  // The index of a line of the warp's, or the last one's for those behind it.
  __device__ __forceinline__ Index line_of(int number) const {
    return kStep > 0 ? min(begin + number, end - 1) : max(end - 1 - number, begin);
  }
  __device__ __forceinline__ static constexpr int in_vector(int k) {
    return kStep > 0 ? k : kSteps - 1 - k;
  }

  // Loads the vector that is so many tiles further.
  __device__ __forceinline__ void load(Loaded& to, int further) const {
    const int number = vector + further * kLanes, apart = kStep * further * kTile;
    if (number >= count) return;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      to.of[i] = __ldcs(reinterpret_cast<const int4*>(in[i] + apart));
    }
    if constexpr (kAhead >= 0) {
      const bool follows = number + 1 < count || (kStep > 0 && rest > 0);
      if (is_last(number) && follows) to.ahead = in[kAhead][apart + (kStep > 0 ? kSteps : -1)];
    }
  }
  // Walks the tile that is loaded from the state before it, and loads another one meanwhile; the
  // state behind the last lane's vector.
  __device__ __forceinline__ V walk(V before, int last_lane) {
    // The lane's step that begins a line, and the one that ends one; none where it is none of its.
    // A line is no shorter than a vector, so there is at most one of each.
    const int starts = t == 0 ? 0 : steps - t, stops = steps - 1 - t;
    const bool has_start = starts < kSteps, has_stop = stops < kSteps;
    T values[Source::kStreams][kSteps];
    LaneTiles<T, Source::kStreams> at;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      at.first[i] = values[i];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        values[i][k] = reinterpret_cast<const Vector&>(loaded[0].of[i]).value[in_vector(k)];
      }
      if constexpr (kAhead >= 0) {
        if (i == kAhead) shift(values[i], has_stop, stops);
      }
    }
#pragma unroll
    for (int i = 0; i + 1 < kTiles; ++i) loaded[i] = loaded[i + 1];
    load(loaded[kTiles - 1], kTiles);
    State first = carried(V(0));
    if (ends.first.data && has_start) {
      first = carried(static_cast<V>(ends.first.at(line_of(line + (t > 0)))));
    }

    const Source here = source.staged(at, 1, 0, kInside);
    ItemOf<Source> item[kSteps];
    StepOf<Source> step[kSteps];
    V a(1), b(0);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      item[k] = here.load(0, k);
      step[k] = here.step(item[k]);
      if (k == starts) b = first.h;
      b = fma(step[k].a, b, step[k].b);
      a = a * step[k].a;
    }
    if (lane == 0 && !has_start && before != V(0)) b = fma(a, before, b);
    compose(a, b, has_start);
    State state = carried(__shfl_up_sync(~0u, b, 1));
    if (lane == 0) state = carried(before);
    if (ends.last.data && has_stop && vector < count) {
      State last = t == 0 ? first : state;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        if (k <= stops) last = Op::advance(step[k], last);
      }
      ends.last.at(line_of(line)) = static_cast<T>(last.h);
    }

    T results[Sink::kStreams][kSteps];
    LaneTiles<T, Sink::kStreams> to_at;
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) to_at.first[i] = results[i];
    const Sink to = sink.staged(to_at, 1, 0, 0);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k == starts) state = first;
      const State after = Op::advance(step[k], state);
      to.store(0, k, item[k], state, after);
      state = after;
    }
    if (vector < count) send(results);
    go_on();
    return __shfl_sync(~0u, b, last_lane);
  }
  // Each step's value from the step behind it; at a line's end what is before its first step.
  __device__ __forceinline__ void shift(T (&values)[kSteps], bool has_stop, int stops) const {
    T next = shuffle_down(values[0]);
    if (is_last(vector)) next = loaded[0].ahead;
    T before{};
    if (ends.before.data && has_stop) before = ends.before.at(line_of(line));
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      values[k] = k + 1 < kSteps ? values[k + 1] : next;
      if (k == stops) values[k] = before;
    }
  }
  __device__ __forceinline__ static T shuffle_down(T value) {
    if constexpr (sizeof(T) == 2) {
      const auto bits = static_cast<std::uint16_t>(
          __shfl_down_sync(~0u, unsigned{reinterpret_cast<const std::uint16_t&>(value)}, 1));
      return reinterpret_cast<const T&>(bits);
    } else {
      return __shfl_down_sync(~0u, value, 1);
    }
  }
  // b: what the lane's steps and those before them in the tile give, from the last cut on. A
  // product of decays that is beyond every number leaves 0 as it is.
  __device__ __forceinline__ void compose(V a, V& b, bool has_start) const {
    const unsigned heads = __ballot_sync(~0u, has_start) | 1u;
    const unsigned up_to = heads & (~0u >> (kLanes - 1 - lane));
    const int reach = lane - (kLanes - 1 - __clz(static_cast<int>(up_to)));
#pragma unroll
    for (int apart = 1; apart < kLanes; apart *= 2) {
      const V earlier_a = __shfl_up_sync(~0u, a, apart), earlier_b = __shfl_up_sync(~0u, b, apart);
      if (apart <= reach && earlier_b != V(0)) b = fma(a, earlier_b, b);
      if (apart <= reach) a = a * earlier_a;
    }
  }
  __device__ __forceinline__ void send(const T (&results)[Sink::kStreams][kSteps]) const {
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      if (!there[i]) continue;
      Vector result;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) result.value[in_vector(k)] = results[i][k];
      __stcs(reinterpret_cast<int4*>(out[i]), reinterpret_cast<const int4&>(result));
    }
  }
  // On to the next tile.
  __device__ __forceinline__ void go_on() {
    vector += kLanes;
    line += tile_lines;
    t += tile_steps;
    if (t >= steps) {
      t -= steps;
      ++line;
    }
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) in[i] += kStep * kTile;
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) out[i] += kStep * kTile;
  }
  // The steps behind the last whole vector, one after another, from the state before them.
  __device__ __forceinline__ V walk_rest(V before) const {
    const Source from = source.line(end - 1);
    const Sink to = sink.line(end - 1);
    State state = carried(before);
    const int low = kStep > 0 ? steps - rest : 0;
#pragma unroll 1
    for (int k = low; k < low + rest; ++k) {
      if (k == 0 && ends.first.data) state = carried(static_cast<V>(ends.first.at(end - 1)));
      const auto item = from.load(0, k);
      const State after = Op::advance(from.step(item), state);
      if (lane == 0) to.store(0, k, item, state, after);
      state = after;
    }
    if (kStep > 0 && lane == 0 && ends.last.data) ends.last.at(end - 1) = static_cast<T>(state.h);
    return state.h;
  }
};

template <class Op, class Source, class Sink, int kStep>
__global__ void __launch_bounds__(kPackedWarps* kLanes, kPackedBlocks<Source>)
    packed_kernel(const Extent extent, const Index own, const Source source, const Sink sink,
                  const VectorEnds<typename Source::T> ends) {
  const Index begin = (Index{blockIdx.x} * kPackedWarps + threadIdx.x / kLanes) * own;
  await_stream();
  if (begin >= extent.lines) return;
  PackedWarp<Op, Source, Sink, kStep>(extent, begin, min(begin + own, extent.lines), source, sink,
                                      ends)
      .run();
}

// Lines of a warp: as few as so many warps leave each, and whole vectors; and where that makes
// little difference, so many that each warp begins with a large piece of memory, which is a tenth
// faster.
inline Index packed_lines(const Extent& extent, Index bytes, Index warps) {
  const Index least = (extent.lines + warps - 1) / warps, line = extent.steps * bytes;
  for (Index piece = kLanes * kVectorBytes;; piece /= 2) {
    const Index whole = piece / std::gcd(piece, line);
    const Index own = (least + whole - 1) / whole * whole;
    if (piece == kVectorBytes || own - least <= least / 32) return own;
  }
}

}  // namespace cuda

// Whether lines lie so and no line is shorter than a vector.
template <class Source, class Sink, class Ends>
bool packed_fit(const Extent& extent, const Source& source, const Sink& sink, const Ends& ends) {
  return extent.steps >= cuda::kVectorSteps<typename Source::T> &&
         extent.steps < cuda::kMostPackedSteps && cuda::vectors_fit(extent, source, sink, ends);
}

// For what packed_fit().
template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_packed(const Extent& extent, const Source& source, const Sink& sink,
                          const Ends& ends, const Launch& on) {
  using namespace cuda;
  using T = typename Source::T;
  if (!packed_fit(extent, source, sink, ends)) return cudaErrorInvalidConfiguration;
  const Index blocks = Index{on.units} * kPackedBlocks<Source>;
  const Index own = packed_lines(extent, sizeof(T), blocks * kPackedWarps);
  const auto kernel = source.line(0).stream(0).step < 0 ? packed_kernel<Op, Source, Sink, -1>
                                                        : packed_kernel<Op, Source, Sink, 1>;
  const Index own_of_block = own * kPackedWarps;
  return cuda::launch(kernel, (extent.lines + own_of_block - 1) / own_of_block,
                      kPackedWarps * kLanes, 0, on, extent, own, source, sink,
                      vector_ends(source, ends));
}

}  // namespace scanrnn::scan
