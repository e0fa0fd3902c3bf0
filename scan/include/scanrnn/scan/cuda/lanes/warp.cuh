// SPDX-License-Identifier: Apache-2.0
// A warp whose lanes lie along time. Its tile is one piece of memory: lanes are stretches of time
// times rows, rows first. It is copied to shared memory as it lies; each lane composes its stretch,
// the warp scans the compositions by shuffles, and when the state before the tile is known each
// lane walks its stretch and leaves the results where its inputs were, from where they go back as
// one piece.
//
// Beside what feed.cuh asks of them, a Sink has
//   kStreams, stream(i) -> OutStream<T>  its tensors of this line, at most as many as inputs
//   staged(tiles, step, row, t)          the same line, written to tiles from (row, t) on
#pragma once

#include <cub/util_ptx.cuh>

#include "scanrnn/scan/cuda/device/shape.cuh"
#include "scanrnn/scan/cuda/lanes/piece.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kLaneWarps = 8;   // of a block that shares a tile
inline constexpr int kLaneStages = 2;  // tiles of a warp: on its way, at work
inline constexpr int kMostLaneSteps = 31;

// Elements of a stream's tile, which starts as far behind a multiple of 16 bytes as its memory
// does.
template <class T>
constexpr int lane_tile(int steps) {
  return steps * kLanes + kVectorBytes / static_cast<int>(sizeof(T));
}
// Bytes of a warp's tiles.
template <class Source>
constexpr int lane_shared(int steps) {
  return kLaneStages * Source::kStreams * lane_tile<typename Source::T>(steps) *
         static_cast<int>(sizeof(typename Source::T));
}

// What the warps of a block that shares a tile tell one another: of tiles in turn, and of tickets
// that came in order.
template <class Op>
struct LaneShared {
  typename Op::Local totals[2][kLaneWarps][kLanes];  // of each worker's rows
  typename Op::State before[2][kLanes];              // the tile
  unsigned tickets[4];
};

// Steps of a lane there: an odd number, so that lanes read different banks, and as many as a block
// has room for on every device.
template <class Op, class Source>
constexpr int lane_steps() {
  constexpr int kRoom = static_cast<int>(kLeastShared - sizeof(LaneShared<Op>));
  int steps = kMostLaneSteps;
  while (kLaneWarps * lane_shared<Source>(steps) > kRoom) steps -= 2;
  return steps;
}

// Steps of a lane where a warp's tile is its own: so many that tiles fit well into powers of two,
// and no more than leaves room for sixteen warps on a multiprocessor.
template <class Source>
constexpr int line_steps() {
  constexpr int kRoom = 14 * 1024;
  for (int steps : {33, 17, 9, 5, 3}) {
    if (steps * static_cast<int>(sizeof(typename Source::T)) <= 72 &&
        lane_shared<Source>(steps) <= kRoom) {
      return steps;
    }
  }
  return 1;
}

// How a warp's lanes lie over rows and time. kStep is known of lines of one row whose streams all
// have it from step to step, 1 or -1; elsewhere it is 0.
template <int kStep>
struct LaneShape {
  static constexpr int rows = 1, stretches = kLanes;
  __device__ __forceinline__ explicit LaneShape(const Extent&) {}
};
template <>
struct LaneShape<0> {
  int rows;       // 1 to kLanes of a line
  int stretches;  // of time, side by side

  __device__ __forceinline__ explicit LaneShape(const Extent& extent)
      : rows(static_cast<int>(extent.rows)), stretches(kLanes / rows) {}
};

// Where the streams of a lane's stretch start.
template <class T, int kCount>
struct LaneTiles {
  T* first[kCount];
  __device__ __forceinline__ T* operator[](int i) const { return i < kCount ? first[i] : nullptr; }
};

// What a lane keeps of steps that are costly to compute again, from when it composes a stretch to
// when it walks it: nothing; the steps in registers; or in place of their inputs.
enum class Keeps { nothing, steps, in_tile };
// A step of which a walk needs a and b alone.
template <class Step>
struct IsAffine : std::false_type {};
template <class V>
struct IsAffine<Affine<V>> : std::true_type {};
// In registers 16-bit steps are worth keeping, too, which take two instructions each to read.
template <class Source, class Sink>
constexpr Keeps kept_in_registers() {
  constexpr bool kHalf = sizeof(typename Source::T) < sizeof(typename Source::V);
  constexpr bool kReads = kHalf && IsAffine<StepOf<Source>>::value && !Sink::kReadsItem;
  return keeps_steps<Source, Sink>() || kReads ? Keeps::steps : Keeps::nothing;
}
// In a tile there is place for steps where they are of the type that lies there.
template <class Source, class Sink>
constexpr Keeps kept_in_tile() {
  constexpr bool kFits = std::is_same<typename Source::T, typename Source::V>::value;
  return keeps_steps<Source, Sink>() && kFits ? Keeps::in_tile : Keeps::nothing;
}

// A warp's tiles and what it does with them.
template <class Op, class Source, class Sink, int kSteps, int kStep, Keeps kKeeps>
struct LaneWarp {
  using T = typename Source::T;
  using Local = typename Op::Local;
  using State = typename Op::State;
  static constexpr int kTile = lane_tile<T>(kSteps);
  static constexpr int kParts = (kSteps + kLocalSteps - 1) / kLocalSteps;
  static constexpr int kPart = (kSteps + kParts - 1) / kParts;
  static_assert(Sink::kStreams <= Source::kStreams);

  const LaneShape<kStep> shape;
  const bool runs;  // lanes_run()
  T* const tiles;   // [kLaneStages][kStreams][kTile]
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row = kStep != 0 ? 0 : lane % shape.rows;
  const bool walks = kStep != 0 || lane < shape.stretches * shape.rows;
  const int stretch = kStep != 0 ? lane : walks ? lane / shape.rows : 0;

  __device__ __forceinline__ Index steps() const { return Index{shape.stretches} * kSteps; }
  __device__ __forceinline__ T* tile_of(int stage, int stream) const {
    return tiles + (stage * Source::kStreams + stream) * kTile;
  }
  __device__ __forceinline__ Piece<const T> piece_of(const Stream<T>& stream, Index t) const {
    return {stream.data, step_of(stream.step),     stream.steps,      t,
            shape.rows,  shape.stretches * kSteps, kStep != 0 || runs};
  }
  __device__ __forceinline__ static Index step_of(Index step) { return kStep != 0 ? kStep : step; }

  // Asks for the inputs from step t on, as one group of copies.
  __device__ __forceinline__ void ask(const Source& line, int stage, Index t) const {
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      if (!stream.data) continue;
      copy_in<kTile>(tile_of(stage, i), piece_of(stream, t), step_of(stream.step), shape.rows);
    }
    commit_copies();
  }

  // This lane's stretch of the tile that starts at step t.
  struct Stretch {
    LaneTiles<T, Source::kStreams> at;
    Index step, begin;  // from step to step in the tile; the first of the line's steps
    bool within;        // the line's last step is not of the tile

    template <class Step>
    __device__ __forceinline__ void keep(int k, const Step& f) const {
      at[0][k * step] = f.a;
      at[1][k * step] = f.b;
    }
    __device__ __forceinline__ StepOf<Source> kept(int k) const {
      return {at[0][k * step], 0, at[1][k * step]};
    }
  };
  __device__ __forceinline__ Stretch stretch_of(const Source& line, int stage, Index t) const {
    Stretch out;
    const int first = stretch * kSteps;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto piece = piece_of(line.stream(i), t);
      const int step = kStep != 0 ? kStep : piece.sign * shape.rows;
      if (i == 0) out.step = step;
      out.at.first[i] = tile_of(stage, i) + piece.origin + first * step + row;
    }
    out.begin = t + first;
    out.within = t + steps() < line.stream(0).steps;
    return out;
  }

  // The compositions of the parts of a stretch, kPart steps each, but of the last. And its steps,
  // where they are walked while a lane has them.
  struct Parts {
    Local part[kParts > 1 ? kParts - 1 : 1];
    Lifted<typename Source::V> step[kKeeps == Keeps::steps ? kSteps : 1];
  };
  // The line as the tile has it; kWithin is here.within.
  template <bool kWithin>
  __device__ __forceinline__ Source staged_at(const Source& line, const Stretch& here) const {
    if constexpr (!kWithin) {
      return line.staged(here.at, here.step, row, here.begin);
    } else {
      return from_inside(line, row, here.begin).staged(here.at, here.step, row, kInside);
    }
  }
  // Composes the stretch.
  __device__ __forceinline__ Local compose(const Source& line, const Stretch& here,
                                           Parts& parts) const {
    return here.within ? compose_as<true>(line, here, parts) : compose_as<false>(line, here, parts);
  }
  template <bool kWithin>
  __device__ __forceinline__ Local compose_as(const Source& line, const Stretch& here,
                                              Parts& parts) const {
    const Source source = staged_at<kWithin>(line, here);
    Local whole = Op::local_identity();
    if (kKeeps == Keeps::in_tile && !walks) return whole;  // another lane has the tile's place
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      auto run = RunOf<Op>::none();
#pragma unroll
      for (int k = p * kPart; k < (p + 1) * kPart && k < kSteps; ++k) {
        const auto step = source.step(source.load(0, k));
        if constexpr (kKeeps == Keeps::steps) parts.step[k] = {step.a, step.b};
        if constexpr (kKeeps == Keeps::in_tile) here.keep(k, step);
        run = Op::then(run, step);
      }
      const Local part = RunOf<Op>::whole(run);
      whole = p == 0 ? part : Op::join(whole, part);
      if (p + 1 < kParts) parts.part[p] = part;
    }
    return whole;
  }

  // What the earlier stretches of this lane's row compose to in the warp; `total` becomes that of
  // all up to this one.
  __device__ __forceinline__ Local before(Local& total) const {
    for (int apart = shape.rows; apart < kLanes; apart *= 2) {
      const Local earlier = cub::ShuffleUp<kLanes>(total, apart, 0, ~0u);
      if (lane >= apart) total = Op::join(earlier, total);
    }
    const Local earlier = cub::ShuffleUp<kLanes>(total, shape.rows, 0, ~0u);
    return stretch == 0 ? Op::local_identity() : earlier;
  }

  // Walks the stretch from `state` on, results in place of inputs. Each part starts from the
  // composition of those before it.
  template <class Ends>
  __device__ __forceinline__ void walk(const Source& line, const Sink& sink, const Ends& ends,
                                       Index line_index, Index steps_in_line, const Stretch& here,
                                       const Parts& parts, const State& state) const {
    if (here.within) {
      walk_as<true>(line, sink, ends, line_index, steps_in_line, here, parts, state);
    } else {
      walk_as<false>(line, sink, ends, line_index, steps_in_line, here, parts, state);
    }
  }
  template <bool kWithin, class Ends>
  __device__ __forceinline__ void walk_as(const Source& line, const Sink& sink, const Ends& ends,
                                          Index line_index, Index steps_in_line,
                                          const Stretch& here, const Parts& parts,
                                          State state) const {
    const Source source = staged_at<kWithin>(line, here);
    const Sink out = sink.staged(here.at, here.step, row, here.begin);
    const Index left = walks ? steps_in_line - here.begin : 0;
    const auto item_of = [&](int k) {
      if constexpr (kKeeps == Keeps::nothing) {
        return source.load(0, k);
      } else if constexpr (kKeeps == Keeps::in_tile) {
        return here.kept(k);
      } else {
        return StepOf<Source>{parts.step[k].a, {}, parts.step[k].b};
      }
    };
    using Item = decltype(item_of(0));
    const auto advance = [&](int k, const Item& item) {
      State after;
      if constexpr (kKeeps == Keeps::nothing) {
        after = Op::advance(source.step(item), state);
        out.store(0, k, item, state, after);
      } else {
        after = Op::advance(item, state);
        out.store(0, k, ItemOf<Source>{}, state, after);
      }
      state = after;
    };
    State start = state;
    if (kWithin ? walks : left >= kSteps) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (p > 0) state = start = Op::apply(parts.part[p - 1], start);
        // All are read before the first result takes its input's place.
        const int begin = p * kPart, count = min(kPart, kSteps - begin);
        Item item[kPart];
#pragma unroll
        for (int k = 0; k < count; ++k) item[k] = item_of(begin + k);
#pragma unroll
        for (int k = 0; k < count; ++k) advance(begin + k, item[k]);
      }
    } else {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (p > 0) start = Op::apply(parts.part[p - 1], start);
        if (left > p * kPart) state = start;
        walk_rest(p, left, [&](int k) { advance(k, item_of(k)); });
      }
    }
    if (!kWithin && left > 0 && left <= kSteps) ends.last(line_index, row, state);
  }

  // use(k) for the steps that are left of a part. Registers have no index that is found at run
  // time.
  template <class Use>
  __device__ __forceinline__ static void walk_rest(int part, Index left, const Use& use) {
    if constexpr (kKeeps == Keeps::steps) {
#pragma unroll
      for (int k = part * kPart; k < (part + 1) * kPart && k < kSteps; ++k) {
        if (k < left) use(k);
      }
    } else {
#pragma unroll 1
      for (int k = part * kPart; k < left && k < (part + 1) * kPart; ++k) use(k);
    }
  }

  // Sends the results of the tile that starts at step t to memory.
  __device__ __forceinline__ void send(const Source& line, const Sink& sink, int stage, Index t,
                                       Index steps_in_line) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      const auto output = sink.stream(i);
      if (!output.data) continue;
      const Piece<T> piece(output.data, step_of(output.step), steps_in_line, t, shape.rows,
                           shape.stretches * kSteps, true);
      copy_out<kTile>(tile_of(stage, i), piece_of(line.stream(i), t), piece, step_of(output.step),
                      shape.rows);
    }
    __syncwarp();  // the tile has been read by every lane: it can be filled again
  }
};

}  // namespace cuda
}  // namespace scanrnn::scan
