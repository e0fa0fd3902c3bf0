// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels share: a lane is a row, so that each access of a warp is one piece of
// memory, and a warp's chunk of a few steps is copied to shared memory while an earlier one is
// worked on.
//
// A Source and a Sink are those of cpu.h with a few additions, rows being adjacent elements of T:
//   Source::kStreams, stream(i) -> Stream<T>    the inputs of this line, in the order of a tile
//   Source::staged(tile, step, stream, row, t)  the same line, read from a tile that starts there;
//   t is kInside where the line's last step is not loaded, which spares what kLastDiffers costs
//   Sink::from(row, t), next()                  the same line counted from there, moved on by a
//   step
// and a kernel is given the states at both ends of time:
//   Ends::first(line, row) -> State,  Ends::last(line, row, State)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <utility>

#include "scanrnn/scan/cuda_stream.cuh"
#include "scanrnn/scan/pair.h"

namespace scanrnn::scan {

// How a value of T lies in memory, and what it is computed in. A row is one unit.
template <class Scalar>
struct Units {
  using T = Scalar;
  using V = float;
  static constexpr int kUnits = 1;          // of a row
  static constexpr bool kAddsBias = false;  // the projection's epilogue has added it
  SCANRNN_HD static V read(const T* line, Index row, Index) { return static_cast<V>(line[row]); }
  SCANRNN_HD static void write(T* line, Index row, Index, V value) {
    line[row] = static_cast<T>(value);
  }
};
template <>
struct Units<double> {
  using T = double;
  using V = double;
  static constexpr int kUnits = 1;
  static constexpr bool kAddsBias = true;  // there is no such epilogue in float64
  SCANRNN_HD static V read(const T* line, Index row, Index) { return line[row]; }
  SCANRNN_HD static void write(T* line, Index row, Index, V value) { line[row] = value; }
};
// Two adjacent units of a 16-bit type as one row: T is a word, whose rows count pairs.
template <class Scalar>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  using T = __nv_bfloat162;
  using V = Pair;
  static constexpr int kUnits = 2;
  static constexpr bool kAddsBias = false;
  SCANRNN_HD static V read(const T* line, Index row, Index) {
    const float2 value = __bfloat1622float2(line[row]);
    return {value.x, value.y};
  }
  SCANRNN_HD static void write(T* line, Index row, Index, const V& value) {
    line[row] = __floats2bfloat162_rn(value.x, value.y);
  }
};
template <>
struct Pairs<__half> {
  using T = __half2;
  using V = Pair;
  static constexpr int kUnits = 2;
  static constexpr bool kAddsBias = false;
  SCANRNN_HD static V read(const T* line, Index row, Index) {
    const float2 value = __half22float2(line[row]);
    return {value.x, value.y};
  }
  SCANRNN_HD static void write(T* line, Index row, Index, const V& value) {
    line[row] = __floats2half2_rn(value.x, value.y);
  }
};

namespace cuda {

inline constexpr int kLanes = 32;
inline constexpr int kVectorBytes = 16;

template <class Source>
using ItemOf = decltype(std::declval<const Source&>().load(Index(0), Index(0)));

// Steps that a thread keeps in registers: as many as an item's size allows, and one promotion.
template <class Source>
constexpr int steps_per_thread() {
  constexpr std::size_t bytes = sizeof(ItemOf<Source>);
  return bytes <= 12 ? kLocalSteps : bytes <= 28 ? kLocalSteps / 2 : kLocalSteps / 4;
}

// Elements of the tile of one warp: kSteps x kLanes of every stream.
template <class Source, int kSteps>
constexpr int tile_elements() {
  return Source::kStreams * kSteps * kLanes;
}

// A column is a line and a block of kLanes of its rows; the last block may be cut off.
inline Index row_blocks(const Extent& extent) { return (extent.rows + kLanes - 1) / kLanes; }
inline Index columns(const Extent& extent) { return extent.lines * row_blocks(extent); }

// The row of its block that a lane reads: lanes past the last row read it too, and store nothing.
__device__ __forceinline__ int unit_of(const Extent& extent, Index row) {
  const int lane = threadIdx.x % kLanes;
  return extent.rows - row > lane ? lane : static_cast<int>(extent.rows - row) - 1;
}

// The lane and a kernel argument, read anew: what is computed from them is not kept in registers,
// or worse, from tile to tile.
__device__ __forceinline__ int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ __forceinline__ Index fresh(Index argument) {
  asm volatile("" : "+l"(argument));
  return argument;
}

template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this warp's latest groups are on their way.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncwarp();
}

// Copies the inputs of a warp's chunk to its tile, [stream][step][lane], as one group of copies.
// What lies past the last step or row is left as it is.
template <class Source, int kSteps>
struct Feed {
  using T = typename Source::T;
  static constexpr int kPiece = kVectorBytes / sizeof(T);  // elements of one copy
  static constexpr int kPieces = kLanes / kPiece;
  static constexpr int kPass = kLanes / kPieces;  // steps that the warp copies at once

  const Extent& extent;
  const bool vectors;               // vectors_fit()
  const T* from[Source::kStreams];  // this lane's first piece of each

  // Takes aim at the chunk that starts at (row, t); skip() moves on in time.
  __device__ __forceinline__ void aim(const Source& line, Index row, Index t) {
    const int lane = fresh_lane();
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      from[i] =
          stream.data + (t + lane / kPieces) * fresh(stream.step) + row + lane % kPieces * kPiece;
    }
  }
  __device__ __forceinline__ void skip(const Source& line, int steps) {
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) from[i] += steps * fresh(line.stream(i).step);
  }
  __device__ __forceinline__ void copy(const Source& line, T* tile, Index row, Index t) const {
    if (vectors) {
      const int lane = fresh_lane();
      if (row + lane % kPieces * kPiece < extent.rows) {
        T* to = tile + lane * kPiece;
#pragma unroll
        for (int i = 0; i < Source::kStreams; ++i) {
          const auto stream = line.stream(i);
          if (!stream.data) continue;
          const int left = steps_left(stream, t) - lane / kPieces;
          const T* source = from[i];
          const Index pass = kPass * fresh(stream.step);
#pragma unroll
          for (int k = 0; k < kSteps; k += kPass) {
            if (k < left) copy_async<kVectorBytes>(to + (i * kSteps + k) * kLanes, source);
            source += pass;
          }
        }
      }
    } else {
      copy_singly(line, tile, row, t);
    }
    commit_copies();
  }

 private:
  // Of this chunk.
  __device__ __forceinline__ static int steps_left(const Stream<T>& stream, Index t) {
    return static_cast<int>(min(stream.steps - t, Index{kSteps}));
  }
  // Element by element: any alignment.
  __device__ __forceinline__ void copy_singly(const Source& line, T* tile, Index row,
                                              Index t) const {
    const int lane = fresh_lane();
    if (row + lane >= extent.rows) return;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = line.stream(i);
      if (!stream.data) continue;
      const T* source = stream.data + t * stream.step + row + lane;
      T* to = tile + i * kSteps * kLanes + lane;
      const int count = steps_left(stream, t);
#pragma unroll 4
      for (int k = 0; k < count; ++k) {
        if constexpr (sizeof(T) >= 4) {
          copy_async<sizeof(T)>(to + k * kLanes, source);
        } else {
          to[k * kLanes] = *source;
        }
        source += stream.step;
      }
    }
  }
};

// The line as its tile holds it: rows are lanes, steps count from the tile's first.
template <int kSteps, class Source>
__device__ __forceinline__ Source staged(const Source& line, const typename Source::T* tile,
                                         Index row, Index t) {
  return line.staged(tile, kLanes, kSteps * kLanes, row, t);
}

// The steps of a warp's chunk composed, and read again from its tile when they are walked.
template <class Op, int kSteps, class Source>
__device__ __forceinline__ typename Op::Local compose(const Source& here, int unit) {
  auto local = Op::local_identity();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) local = Op::then(local, here.step(here.load(unit, k)));
  return local;
}

// Walks as many steps of a chunk as are left, from `cursor` on; returns the last state. `inside` is
// `here` but for a line's last step.
template <class Op, int kSteps, class Source, class Sink>
__device__ __forceinline__ typename Op::State walk(const Source& here, const Source& inside,
                                                   int unit, Index left, Sink cursor,
                                                   typename Op::State state) {
  const auto advance = [&](const Source& tile, int k) {
    const auto item = tile.load(unit, k);
    const auto after = Op::advance(tile.step(item), state);
    cursor.store(0, 0, item, state, after);
    cursor.next();
    state = after;
  };
  if (left >= kSteps) {
#pragma unroll
    for (int k = 0; k < kSteps - 1; ++k) advance(inside, k);
    advance(here, kSteps - 1);
  } else {
#pragma unroll 1
    for (int k = 0; k < left; ++k) advance(here, k);
  }
  return state;
}

// A few steps of each of a warp's rows in registers: composed as soon as they are there, walked
// when the state before them is known.
template <class Op, class Source, int kSteps>
struct Chunk {
  ItemOf<Source> item[kSteps];
  typename Op::Step step[kSteps];

  // `inside` is `here` but for a line's last step; `left` are its steps from here on.
  __device__ __forceinline__ typename Op::Local compose(const Source& here, const Source& inside,
                                                        Index left, int unit) {
    const bool whole = Source::kLastDiffers && left > kSteps;
    if (whole) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) item[k] = inside.load(unit, k);
    } else {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) item[k] = here.load(unit, k);
    }
    auto local = Op::local_identity();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      step[k] = here.step(item[k]);
      local = Op::then(local, step[k]);
    }
    return local;
  }

  // Walks as many steps as are left, from `cursor` on; returns the last state.
  template <class Sink>
  __device__ __forceinline__ typename Op::State walk(Index left, Sink& cursor,
                                                     typename Op::State state) const {
    const auto advance = [&](int k) {
      const auto after = Op::advance(step[k], state);
      cursor.store(0, 0, item[k], state, after);
      cursor.next();
      state = after;
    };
    if (left >= kSteps) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) advance(k);
    } else {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        if (k < left) advance(k);
      }
    }
    return state;
  }
};

// Whether every line of every stream can be copied by vectors. Looks at addresses only.
template <class Source>
bool vectors_fit(const Extent& extent, const Source& source) {
  using T = typename Source::T;
  if (extent.rows * sizeof(T) % kVectorBytes != 0) return false;
  for (Index line = 0; line < (extent.lines > 1 ? 2 : 1); ++line) {
    for (int i = 0; i < Source::kStreams; ++i) {
      const auto stream = source.line(line).stream(i);
      if (!stream.data) continue;
      if (reinterpret_cast<std::uintptr_t>(stream.data) % kVectorBytes != 0) return false;
      if (stream.step * static_cast<Index>(sizeof(T)) % kVectorBytes != 0) return false;
    }
  }
  return true;
}

}  // namespace cuda
}  // namespace scanrnn::scan
