// SPDX-License-Identifier: Apache-2.0
// A warp's chunk of steps: composed into one element, and walked when the state before it is known.
#pragma once

#include <algorithm>
#include <utility>

#include "scanrnn/scan/cuda/feed.cuh"

namespace scanrnn::scan {
namespace cuda {

template <class Source_, class = void>
struct Unmarked {
  using Source = Source_;
};
template <class Source_>
struct Unmarked<Source_, std::enable_if_t<Source_::kMarked>> {
  using Source = typename Source_::Plain;
};

template <class Source>
using ItemOf = decltype(std::declval<const Source&>().load(Index(0), Index(0)));

// Steps that a thread keeps in registers: as many as an item's size allows, and one promotion. The
// same with marks as without.
template <class Marked>
constexpr int steps_per_thread() {
  using Source = typename Unmarked<Marked>::Source;
  using Step = decltype(std::declval<const Source&>().step(std::declval<ItemOf<Source>>()));
  constexpr std::size_t bytes = std::max(sizeof(ItemOf<Source>), sizeof(Step));
  return bytes <= 12 ? kLocalSteps : bytes <= 28 ? kLocalSteps / 2 : kLocalSteps / 4;
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

}  // namespace cuda
}  // namespace scanrnn::scan
