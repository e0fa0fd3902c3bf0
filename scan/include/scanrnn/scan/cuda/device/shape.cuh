// SPDX-License-Identifier: Apache-2.0
// The shape of a block of the device kernel: what its warps hold in shared memory, how many there
// are, and the barriers between them.
#pragma once

#include "scanrnn/scan/cuda/device/lookback.cuh"
#include "scanrnn/scan/cuda/mbarrier.cuh"

namespace scanrnn::scan {
namespace cuda {

// What a ticket stands for: columns side by side, then the next tile of time.
struct Place {
  unsigned tile, line, block;
};

// total(0), then total(1) ...
template <class Op, int kCount, class Totals>
__device__ __forceinline__ typename Op::Local join_all(const Totals& total) {
  using Local = typename Op::Local;
  return as_tree<kCount>([](const Local& f, const Local& g) { return Op::join(f, g); }, total);
}

// A block walks a tile after it has composed the next one, so that other blocks have that long to
// say what comes before. A worker has three tiles in shared memory: on its way, composed and not
// yet walked, at work. kKept is how many tiles' totals are told apart.
inline constexpr unsigned kStages = 3, kPlaces = kStages + 2, kKept = 4;
inline constexpr unsigned kRound = 8;  // mbarriers in turn: more than any warp is ever behind
inline constexpr int kResolvers = 2;   // that take the tiles in turn

// Steps of a worker's tile, which need no registers of their own: as many as 4 KB hold.
template <class Source>
constexpr int device_steps() {
  int steps = kLocalSteps;
  while (steps > 4 && Source::kStreams * steps * kLanes * sizeof(typename Source::T) > 4096) {
    steps /= 2;
  }
  return steps;
}

// The operator of what a Source's lanes hold, and how many values of Op each is.
template <class Op, class V>
struct Widened;
template <template <class> class OpOf, class Scalar, class V>
struct Widened<OpOf<Scalar>, V> {
  using Op = OpOf<V>;
  static constexpr int kParts = sizeof(V) / sizeof(Scalar);
};
template <class Op, class Source>
constexpr int parts() {
  return Widened<Op, typename Source::V>::kParts;
}

// Its size is whole lines, and the workers' tiles follow: copies whose rows lay across lines made
// the kernel a twentieth slower.
inline constexpr int kLineBytes = 128;
template <class Op, int kParts, int kWarps>
struct alignas(kLineBytes) Shared {
  // Totals of each worker's chunk, then, where joins_ahead(), of the chunks before it in the tile.
  typename Op::Local totals[kKept][kWarps][kLanes * kParts];
  typename Op::Element own[kKept][kLanes * kParts];   // of the tile
  typename Op::State before[kKept][kLanes * kParts];  // the state before the tile
  typename Op::Element siblings[kParts * kResolvers][kLanes];
  bool cut[kKept][kWarps];  // whether each worker's chunk is, where knows_cuts()
  Place places[kPlaces];
  Mbarrier composed[kRound], published[kRound], joined[kRound], resolved[kRound];
};

// What advance() needs of a step.
template <class V>
struct alignas(2 * sizeof(V)) Lifted {
  V a, b;
};

// Whether a worker keeps the steps of a composed tile in place of its inputs: where they are costly
// to compute again and the Sink does not need the inputs.
template <class Source, class Sink>
constexpr bool keeps_steps() {
  return Source::kLifts && !Sink::kReadsItem;
}
// Whether it then keeps their marks, too, which may say what a state is.
template <class Source>
constexpr bool keeps_marks() {
  return IsMarked<Source>::value && !IsOnlyCut<Source>::value;
}
// Tiles of inputs that a worker holds.
template <class Source, class Sink>
constexpr unsigned input_stages() {
  return keeps_steps<Source, Sink>() ? kStages - 1 : kStages;
}

// Whether the service warp that has the totals of a tile also joins, for each worker, those before
// it: where steps are costly it spares the workers instructions; elsewhere they would wait for it.
template <class Source>
constexpr bool joins_ahead() {
  return Source::kLifts;
}

// Whether workers tell one another where a line is cut.
template <class Source>
constexpr bool knows_cuts() {
  return IsOnlyCut<Source>::value && !joins_ahead<Source>();
}

// Bytes of shared memory of a worker's tiles, and of a block of up to kWarps workers.
template <class Source, class Sink>
constexpr std::size_t worker_shared() {
  constexpr int kSteps = device_steps<Source>();
  return input_stages<Source, Sink>() * tile_elements<Source, kSteps>() *
             sizeof(typename Source::T) +
         (keeps_steps<Source, Sink>() ? kSteps * kLanes * sizeof(Lifted<typename Source::V>) +
                                            (keeps_marks<Source>() ? kLanes * 4 : 0)
                                      : 0);
}
template <class Op, class Source, class Sink, int kWarps>
constexpr std::size_t device_shared(int workers) {
  return sizeof(Shared<Op, parts<Op, Source>(), kWarps>) +
         static_cast<std::size_t>(workers) * worker_shared<Source, Sink>();
}

// Service warps of a block: for each part of the lanes' values one publishes the totals of tiles,
// and kResolvers put together the states before them.
template <class Op, class Source>
constexpr int service_warps() {
  return (1 + kResolvers) * parts<Op, Source>();
}

// What a block may take of shared memory on compute capability 9.0, where it is one block a
// multiprocessor with all of it, since tiles twice as long need half the exchanges.
inline constexpr std::size_t kMostShared = 227 * 1024;

// Workers of a block: as many as kMostShared holds, up to kMost, and with the service warps up to
// five for each scheduler, so that a thread has 96 registers.
template <class Op, class Source, class Sink, int kMost>
constexpr int device_warps() {
  constexpr bool kFits = kMost + service_warps<Op, Source>() <= 20 &&
                         device_shared<Op, Source, Sink, kMost>(kMost) <= kMostShared;
  if constexpr (kMost == 1 || kFits) {
    return kMost;
  } else {
    return device_warps<Op, Source, Sink, kMost - 1>();
  }
}
// And those that `shared` bytes hold.
template <class Op, class Source, class Sink, int kWarps>
int workers_for(std::size_t shared) {
  static_assert(device_shared<Op, Source, Sink, kWarps>(1) <= kLeastShared);
  const std::size_t fixed = device_shared<Op, Source, Sink, kWarps>(0);
  const std::size_t count = (shared - fixed) / worker_shared<Source, Sink>();
  return count < kWarps ? static_cast<int>(count) : kWarps;
}

}  // namespace cuda
}  // namespace scanrnn::scan
