// SPDX-License-Identifier: Apache-2.0
// A warp's chunk of steps: composed into one element, and walked when the state before it is known.
//
// With marks (feed.cuh) most chunks have none that says anything, and are worked on as if there
// were none. At a step whose mark says something
//   Source::anew(mark), entering(mark, row) -> V   the walk begins anew before it, with this state
//   Source::amend(item, mark, row)                 what the plain Source cannot know of its item
//   Sink::store_marked(mark, row, t, item, before, after)   in place of store()
// and at one whose mark has no bit of kEnds that is no more than
//   Source::anew(mark)                             the state before it is zero
//   Source::kForgets, cut(mark), forget(item)      its item is amended so
// A Source without kEnds has only these.
#pragma once

#include <algorithm>
#include <utility>

#include "scanrnn/scan/cuda/feed.cuh"

namespace scanrnn::scan {
namespace cuda {

// What CUDA keeps of shared memory for each block that is resident.
inline constexpr std::size_t kReservedShared = 1024;

template <class Source_, class = void>
struct Unmarked {
  using Source = Source_;
};
template <class Source_>
struct Unmarked<Source_, std::enable_if_t<Source_::kMarked>> {
  using Source = typename Source_::Plain;
};
template <class Source>
__device__ __forceinline__ const auto& unmarked(const Source& source) {
  if constexpr (IsMarked<Source>::value) {
    return source.plain;
  } else {
    return source;
  }
}

template <class Source>
using ItemOf =
    decltype(std::declval<const typename Unmarked<Source>::Source&>().load(Index(0), Index(0)));

template <class Source>
using StepOf = decltype(std::declval<const typename Unmarked<Source>::Source&>().step(
    std::declval<ItemOf<Source>>()));

// A Source that says so is cut into tiles as another one.
template <class Source_, class = void>
struct SizedAs {
  using Source = typename Unmarked<Source_>::Source;
};
template <class Source_>
struct SizedAs<Source_, std::void_t<typename Unmarked<Source_>::Source::Sized>> {
  using Source = typename Unmarked<Source_>::Source::Sized;
};

template <class Source_>
constexpr std::size_t bytes_per_step() {
  using Source = typename SizedAs<Source_>::Source;
  return std::max(sizeof(ItemOf<Source>), sizeof(StepOf<Source>));
}

// Steps that a thread keeps in registers: as many as an item's size allows, and one promotion. The
// same with marks as without.
template <class Source>
constexpr int steps_per_thread() {
  constexpr std::size_t bytes = bytes_per_step<Source>();
  return bytes <= 12 ? kLocalSteps : bytes <= 28 ? kLocalSteps / 2 : kLocalSteps / 4;
}

// A Source whose marks say no more than where its line is cut.
template <class Source, class = void>
struct IsOnlyCut : std::false_type {};
template <class Source>
struct IsOnlyCut<Source, std::enable_if_t<Source::kMarked>>
    : std::bool_constant<Source::kEnds == 0> {};

// The marks of a chunk: lane k has that of step k, and bit k of `said` is whether it says
// something.
struct ChunkMarks {
  std::uint32_t own = 0;
  unsigned said = 0;

  __device__ __forceinline__ explicit operator bool() const { return said != 0; }
};

// The same of a chunk that is no more than cut: bit k is about step k. A warp asks as much at once
// as it has lanes for.
struct ChunkCuts {
  unsigned anew = 0, cut = 0;
  bool ends = false;  // it is more than that

  __device__ __forceinline__ explicit operator bool() const { return (anew | cut) != 0; }
};
template <int kSteps, class Source>
__device__ __forceinline__ ChunkCuts cuts_of(const Source& here) {
  constexpr int kAtOnce = kLanes / kSteps, kEnds = 1 + Source::kForgets;
  constexpr int kAsked = kEnds + (Source::kEnds != 0);
  const int lane = threadIdx.x % kLanes;
  const std::uint32_t mark = here.marks.at(lane % kSteps);
  unsigned said[kAsked + kAtOnce];
#pragma unroll
  for (int i = 0; i < kAsked; i += kAtOnce) {
    const int asked = i + lane / kSteps;
    bool yes = asked == 0 ? here.anew(mark) : (mark & Source::kEnds) != 0;
    if constexpr (Source::kForgets) yes = asked == 1 ? here.cut(mark) : yes;
    const unsigned all = __ballot_sync(~0u, yes);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) said[i + k] = all >> k * kSteps & ((1u << kSteps) - 1);
  }
  return {said[0], Source::kForgets ? said[1] : 0, kAsked > kEnds && said[kEnds] != 0};
}

template <int kSteps, class Source>
__device__ __forceinline__ auto marks_of(const Source& here) {
  if constexpr (IsOnlyCut<Source>::value) {
    return cuts_of<kSteps>(here);
  } else if constexpr (IsMarked<Source>::value) {
    const int lane = fresh_lane();
    const std::uint32_t own = lane < kSteps ? here.marks.at(lane) : 0;
    return ChunkMarks{own, __ballot_sync(~0u, own & Source::kSays)};
  } else {
    return ChunkMarks{};
  }
}

// Composes a chunk that lies in a tile; use(k, step) is told its steps.
template <class Op, int kSteps, class Source, class Use>
__device__ __forceinline__ typename Op::Local compose(const Source& here, int unit,
                                                      const Use& use) {
  auto run = RunOf<Op>::none();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const auto step = here.step(here.load(unit, k));
    use(k, step);
    run = Op::then(run, step);
  }
  return RunOf<Op>::whole(run);
}
// The same with marks.
template <class Op, int kSteps, class Source, class Use>
__device__ __forceinline__ typename Op::Local compose(const Source& here, int unit,
                                                      const ChunkMarks& marks, const Use& use) {
  if constexpr (IsMarked<Source>::value) {
    auto local = Op::local_identity();
    using Steps = typename Op::Uncut;
    if (!marks) return Op::settle(compose<Steps, kSteps>(here.plain, unit, use));
    bool cut = false;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      auto item = here.plain.load(unit, k);
      const std::uint32_t mark = marks.said >> k & 1 ? here.marks.at(k) : 0;
      const bool anew = mark && here.anew(mark);
      if (mark) here.amend(item, mark, unit);
      auto step = here.plain.step(item);
      if (anew) local = constant(here.entering(mark, unit));
      local = Steps::then(local, step);
      if (anew) step = constant(local.b);
      use(k, step);
      cut = cut || anew;
    }
    return cut ? local : Op::settle(local);
  } else {
    return compose<Op, kSteps>(here, unit, use);
  }
}
// Whatever comes before a chunk with a cut, its last state is the one that zero becomes.
template <class Op, int kSteps, class Source, class Use>
__device__ __forceinline__ typename Op::Local compose(const Source& here, int unit,
                                                      const ChunkCuts& cuts, const Use& use) {
  using Steps = typename Op::Uncut;
  if (!cuts) return Op::settle(compose<Steps, kSteps>(here.plain, unit, use));
  const auto zero = carried(typename Source::V(0));
  auto state = zero;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    auto item = here.plain.load(unit, k);
    if (cuts.cut >> k & 1) here.forget(item);
    if (cuts.anew >> k & 1) state = zero;
    const auto step = here.plain.step(item);
    use(k, step);
    state = Steps::advance(step, state);
  }
  return constant(state.h);
}

// advance(k, may_be_last) for as many steps of a chunk as are left. A line's last step is never
// another one of a whole chunk than its last. kUnrolls: `k` is known when compiled in any case.
template <int kSteps, bool kUnrolls, class Advance>
__device__ __forceinline__ void for_steps(Index left, const Advance& advance) {
  if (left >= kSteps) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) advance(k, k == kSteps - 1);
  } else if constexpr (kUnrolls) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k < left) advance(k, true);
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < left; ++k) advance(k, true);
  }
}

// The steps of a chunk as its tile has them; `inside` is `here` but for a line's last step.
template <class Source>
struct TileSteps {
  using Marked = Source;
  static constexpr bool kMarked = IsMarked<Source>::value, kUnrolls = false, kCuts = false,
                        kBegins = false;
  const Source& here;
  const Source& inside;
  int unit;

  __device__ __forceinline__ auto plain() const {
    return TileSteps<typename Source::Plain>{here.plain, inside.plain, unit};
  }
  __device__ __forceinline__ auto item(int k, bool may_be_last) const {
    return unmarked(may_be_last ? here : inside).load(unit, k);
  }
  template <class Item>
  __device__ __forceinline__ auto step(const Item& item, int, bool may_be_last) const {
    return unmarked(may_be_last ? here : inside).step(item);
  }
  __device__ __forceinline__ std::uint32_t mark(int k) const { return here.marks.at(k); }
  template <class Item, class State>
  __device__ __forceinline__ void begin(std::uint32_t mark, Item& item, State& state) const {
    if (here.anew(mark)) state = carried(here.entering(mark, unit));
    here.amend(item, mark, unit);
  }
};
template <class Source>
TileSteps(const Source&, const Source&, int) -> TileSteps<Source>;

// The same, where the items of some are cut. Where nobody reads items, a step that is cut makes its
// b of any state.
template <class Steps, class Marked, bool kReadsItem>
struct CutSteps {
  static constexpr bool kUnrolls = Steps::kUnrolls, kCuts = kReadsItem, kBegins = !kReadsItem;
  const Steps steps;
  const unsigned cut;

  __device__ __forceinline__ auto item(int k, bool may_be_last) const {
    auto item = steps.item(k, may_be_last);
    if constexpr (kReadsItem) {
      if (cut >> k & 1) Marked::forget(item);
    }
    return item;
  }
  template <class Item>
  __device__ __forceinline__ auto step(const Item& item, int k, bool may_be_last) const {
    return steps.step(item, k, may_be_last);
  }
};

// Walks as many of a chunk's steps as are left, from `cursor` on; returns the last state. The steps
// of `anew` begin it anew: where Steps::kCuts, from zero; where kBegins, with their b.
template <class Op, int kSteps, class Steps, class Sink>
__device__ __forceinline__ typename Op::State walk(const Steps& steps, unsigned anew, Index left,
                                                   Sink& cursor, typename Op::State state) {
  for_steps<kSteps, Steps::kUnrolls>(left, [&](int k, bool may_be_last) {
    if constexpr (Steps::kCuts) {
      if (anew >> k & 1) state = carried(decltype(state.h)(0));
    }
    const auto item = steps.item(k, may_be_last);
    const auto step = steps.step(item, k, may_be_last);
    auto after = Op::advance(step, state);
    if constexpr (Steps::kBegins) {
      if (anew >> k & 1) after = carried(step.b);
    }
    cursor.store(0, 0, item, state, after);
    cursor.next();
    state = after;
  });
  return state;
}
// The same with marks.
template <class Op, int kSteps, class Steps, class Sink>
__device__ __forceinline__ typename Op::State walk(const Steps& steps, const ChunkMarks& marks,
                                                   Index left, Sink& cursor,
                                                   typename Op::State state) {
  if constexpr (Steps::kMarked) {
    using Uncut = typename Op::Uncut;
    if (!marks) return walk<Uncut, kSteps>(steps.plain(), 0, left, cursor.plain, state);
    for_steps<kSteps, Steps::kUnrolls>(left, [&](int k, bool may_be_last) {
      auto item = steps.item(k, may_be_last);
      const std::uint32_t mark = marks.said >> k & 1 ? steps.mark(k) : 0;
      if (mark) steps.begin(mark, item, state);
      const auto after = Uncut::advance(steps.step(item, k, may_be_last), state);
      cursor.store_marked(mark, 0, 0, item, state, after);
      cursor.next();
      state = after;
    });
    return state;
  } else {
    return walk<Op, kSteps>(steps, 0, left, cursor, state);
  }
}
// One loop for all chunks: where warps of a block took two in turn, each waited for its code.
template <class Op, int kSteps, class Steps, class Sink>
__device__ __forceinline__ typename Op::State walk(const Steps& steps, const ChunkCuts& cuts,
                                                   Index left, Sink& cursor,
                                                   typename Op::State state) {
  using Plain = std::decay_t<decltype(steps.plain())>;
  const CutSteps<Plain, typename Steps::Marked, Sink::kReadsItem> plain{steps.plain(), cuts.cut};
  return walk<typename Op::Uncut, kSteps>(plain, cuts.anew, left, cursor.plain, state);
}

// A few steps of each of a warp's rows in registers: composed as soon as they are there, walked
// when the state before them is known. kCuts_: they may be cut.
template <class Op, class Source, int kSteps, bool kCuts_ = false>
struct Chunk {
  static constexpr bool kMarked = false, kUnrolls = true, kCuts = kCuts_, kBegins = false;
  ItemOf<Source> items[kSteps];
  typename Op::Step steps[kSteps];

  // `inside` is `here` but for a line's last step; `left` are its steps from here on.
  __device__ __forceinline__ typename Op::Local compose(const Source& here, const Source& inside,
                                                        Index left, int unit) {
    const bool whole = Source::kLastDiffers && left > kSteps;
    if (whole) {
      load(inside, unit);
    } else {
      load(here, unit);
    }
    return compose_loaded(here);
  }
  __device__ __forceinline__ void load(const Source& from, int unit) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) items[k] = from.load(unit, k);
  }
  // Drops what comes from the step before, where a step is cut.
  template <class Marked>
  __device__ __forceinline__ void forget(const Marked& here, unsigned cut) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (cut >> k & 1) here.forget(items[k]);
    }
  }
  __device__ __forceinline__ typename Op::Local compose_loaded(const Source& from) {
    auto run = RunOf<Op>::none();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      steps[k] = from.step(items[k]);
      run = Op::then(run, steps[k]);
    }
    return RunOf<Op>::whole(run);
  }

  __device__ __forceinline__ const ItemOf<Source>& item(int k, bool) const { return items[k]; }
  __device__ __forceinline__ const typename Op::Step& step(const ItemOf<Source>&, int k,
                                                           bool) const {
    return steps[k];
  }
};

}  // namespace cuda
}  // namespace scanrnn::scan
