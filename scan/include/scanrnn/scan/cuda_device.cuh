// SPDX-License-Identifier: Apache-2.0
// Parallel scan over the whole device, one pass over memory: time is cut into tiles that blocks
// take in order, and a tile stays on chip while the state before it is put together. What is
// combined with what depends on positions alone, so that two runs give the same bits.
//
// Tiles of a column form a tree of kFan: a tile publishes its total, the last tile of each group
// the group's, and the last tile of each group of the highest level the state after it. A tile that
// waits, waits for tiles with smaller tickets. Tickets are given out in order to blocks that are
// running, and a block finishes its tiles in the order of their tickets, so the smallest unfinished
// ticket never waits for long.
#pragma once

#include "scanrnn/scan/cuda_block.cuh"
#include "scanrnn/scan/cuda_sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kFanBits = 3, kFan = 1 << kFanBits;
inline constexpr int kMaxLevels = 3;

// The states after the groups of the highest level follow one another, each an exchange through the
// L2 (about 1.3 us) later; meanwhile the columns' tiles of that many groups must keep memory busy.
inline int levels_for(Index columns) { return columns >= 24 ? 1 : 2; }

// A value in global memory that one warp writes, each lane its own, and others wait for. Each
// 16-byte packet holds three words of it and a flag, and is written and read at once: no fence.
template <class Value>
struct Mailbox {
  static constexpr int kWords = sizeof(Value) / 4, kPackets = (kWords + 2) / 3;
  using Slot = uint4[kPackets][kLanes];
  static_assert(sizeof(Value) % 4 == 0);

  union Packets {
    unsigned word[kPackets * 4];
    uint4 packet[kPackets];
  };

  __device__ static uint4 load(const uint4* from) {
    uint4 v;
    asm volatile(
        "{\n.reg .b128 all;\n.reg .b64 low, high;\n"
        "ld.relaxed.gpu.global.b128 all, [%4];\nmov.b128 {low, high}, all;\n"
        "mov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from)
        : "memory");
    return v;
  }
  __device__ static void store(uint4* to, uint4 v) {
    asm volatile(
        "{\n.reg .b128 all;\n.reg .b64 low, high;\n"
        "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 all, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], all;\n}" ::"l"(to),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
  }

  __device__ static void publish(Slot& slot, int lane, const Value& value) {
    unsigned words[kPackets * 3] = {};
    memcpy(words, &value, sizeof(Value));
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      store(&slot[i][lane], {words[3 * i], words[3 * i + 1], words[3 * i + 2], 1u});
    }
  }
  // What a look at a slot found; a value is there once every packet is flagged.
  struct Look {
    uint4 packet[kPackets];

    __device__ bool complete() const {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kPackets; ++i) all = all && packet[i].w != 0;
      return all;
    }
    __device__ void look(const Slot& slot, int lane) {
#pragma unroll
      for (int i = 0; i < kPackets; ++i) packet[i] = load(&slot[i][lane]);
    }
    __device__ Value value() const {
      unsigned words[kPackets * 3];
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
        words[3 * i] = packet[i].x;
        words[3 * i + 1] = packet[i].y;
        words[3 * i + 2] = packet[i].z;
      }
      Value value;
      memcpy(&value, words, sizeof(Value));
      return value;
    }
  };
};

// Where tiles leave word for one another. Zero before a launch; column by column.
template <class Op>
struct Exchange {
  using Total = Mailbox<typename Op::Element>;
  using After = Mailbox<typename Op::State>;

  unsigned* tickets;
  typename Total::Slot* totals[kMaxLevels];  // [groups of the level][columns]
  typename After::Slot* after;               // [groups of the highest level][columns]
  unsigned columns;
  int levels;

  // The layout, starting at `base`; returns its bytes. With base null it only counts.
  std::size_t place(char* base, Index column_count, Index tiles) {
    std::size_t bytes = 256;
    tickets = reinterpret_cast<unsigned*>(base);
    columns = static_cast<unsigned>(column_count);
    levels = levels_for(column_count);
    Index groups = tiles;
    for (int level = 0; level < levels; ++level) {
      totals[level] = reinterpret_cast<typename Total::Slot*>(base + bytes);
      bytes += static_cast<std::size_t>(groups * column_count) * sizeof(typename Total::Slot);
      groups = (groups + kFan - 1) / kFan;
    }
    after = reinterpret_cast<typename After::Slot*>(base + bytes);
    return bytes + static_cast<std::size_t>(groups * column_count) * sizeof(typename After::Slot);
  }

  // Not by a run-time index, which would move the array to local memory.
  __device__ __forceinline__ typename Total::Slot* level_totals(int level) const {
    return level == 0 ? totals[0] : level == 1 ? totals[1] : totals[2];
  }
  // The total of the group of the level that ends with the tile.
  __device__ __forceinline__ void publish(int level, unsigned tile, unsigned column, int lane,
                                          const typename Op::Element& total) const {
    Total::publish(at(level_totals(level), tile >> (kFanBits * level), column), lane, total);
  }
  template <class Slot>
  __device__ __forceinline__ Slot& at(Slot* slots, unsigned group, unsigned column) const {
    return slots[static_cast<std::size_t>(group) * columns + column];
  }
};

// Puts together the state before a tile. While it waits, the totals of the groups that the tile
// ends are published as soon as they are known: nothing that others wait for waits for a state.
template <class Op, class OwnTotal>
struct Resolver {
  using Element = typename Op::Element;
  using State = typename Op::State;
  using Total = typename Exchange<Op>::Total;
  using After = typename Exchange<Op>::After;
  const Exchange<Op>& exchange;
  Element (*siblings)[kLanes];  // shared memory: what precedes the tile's group on each level
  const OwnTotal& own_total;    // bool(Element&): the tile's total, once it is there
  unsigned tile, tiles, column;
  int lane;
  Element own;        // the tile's total,
  Element published;  // and that of the largest group that it ends and whose total is known
  int levels_published = 0, levels_known = 0;  // the tile's own total is published by others

  __device__ __forceinline__ bool ends_group(int level) const {
    return (tile + 1) % (1u << (kFanBits * level)) == 0;
  }
  __device__ __forceinline__ void serve() {
    if (levels_published == 0) {
      if (!own_total(own)) return;
      published = own;
      levels_published = 1;
    }
    for (; levels_published <= levels_known && levels_published < exchange.levels &&
           ends_group(levels_published);
         ++levels_published) {
      published = Op::combine(siblings[levels_published - 1][lane], published);
      if (tile + 1 < tiles) exchange.publish(levels_published, tile, column, lane, published);
    }
  }
  // Waits by one lane's asking, which is cheap for the L2.
  template <class Slot>
  __device__ __forceinline__ void wait_for(const Slot& slot) {
    for (;;) {
      const unsigned flag = lane == 0 ? Total::load(&slot[0][0]).w : 0;
      if (__shfl_sync(~0u, flag, 0) != 0) return;
      serve();
    }
  }
  // The state before the tile, given that before the first of all. All that is needed of a level is
  // looked at together with the state before the group: mostly it is there, at one latency.
  template <class First>
  __device__ __forceinline__ State find_state(const First& first) {
    const unsigned top = tile >> (kFanBits * exchange.levels);
    typename After::Look start{};
    const auto look_at_start = [&] {
      if (top != 0 && !start.complete()) {
        start.look(exchange.at(exchange.after, top - 1, column), lane);
      }
    };
    auto preceding = Op::identity();
    for (int level = 0; level < exchange.levels; ++level) {
      const unsigned group = tile >> (kFanBits * level), position = group % kFan;
      const auto slot = [&](unsigned i) -> typename Total::Slot& {
        return exchange.at(exchange.level_totals(level), group - position + i, column);
      };
      typename Total::Look total[kFan - 1] = {};
      for (;;) {
#pragma unroll
        for (int i = 0; i < kFan - 1; ++i) {
          if (i < position && !total[i].complete()) total[i].look(slot(i), lane);
        }
        look_at_start();
        bool complete = true;
#pragma unroll
        for (int i = 0; i < kFan - 1; ++i) {
          complete = complete && (i >= position || total[i].complete());
        }
        if (__all_sync(~0u, complete)) break;
        serve();
        wait_for(slot(position - 1));
      }
      auto found = Op::identity();
#pragma unroll
      for (int i = 0; i < kFan - 1; ++i) {
        if (i < position) found = i == 0 ? total[i].value() : Op::combine(found, total[i].value());
      }
      preceding = level == 0 ? found : Op::combine(found, preceding);
      siblings[level][lane] = found;
      levels_known = level + 1;
      serve();
    }
    while (top != 0 && !__all_sync(~0u, start.complete())) {
      wait_for(exchange.at(exchange.after, top - 1, column));
      look_at_start();
    }
    const State state = Op::apply(preceding, top == 0 ? first() : start.value());
    while (levels_published == 0) serve();
    if (tile + 1 < tiles && ends_group(exchange.levels)) {
      After::publish(exchange.at(exchange.after, top, column), lane, Op::apply(own, state));
    }
    return state;
  }
};

// What a ticket stands for: columns side by side, then the next tile of time.
struct Place {
  unsigned tile, line, block;
};

// Barriers in shared memory, one phase after another; a warp arrives once and may wait for a phase
// that is over.
struct Signal {
  std::uint64_t bits;

  __device__ __forceinline__ unsigned address() {
    return static_cast<unsigned>(__cvta_generic_to_shared(&bits));
  }
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) {
      asm volatile(
          "{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(address())
          : "memory");
    }
  }
  __device__ __forceinline__ bool test(unsigned phase) {
    unsigned over;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(over)
        : "r"(address()), "r"(phase % 2)
        : "memory");
    return __all_sync(~0u, over);
  }
  __device__ __forceinline__ void wait(unsigned phase) {
#if __CUDA_ARCH__ >= 900
    // The hardware lets the warp sleep, and gives up now and then.
    asm volatile(
        "{\n.reg .pred p;\nagain%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
        "@!p bra again%=;\n}" ::"r"(address()),
        "r"(phase % 2)
        : "memory");
    __syncwarp();
#else
    while (!test(phase)) {
    }
#endif
  }
};

// total(0), then total(1) ...: composed as a tree, which is short and rounds little.
template <class Op, int kCount, class Totals>
__device__ __forceinline__ typename Op::Local fold(const Totals& total, int first = 0) {
  if constexpr (kCount == 1) {
    return total(first);
  } else {
    return Op::join(fold<Op, kCount / 2>(total, first),
                    fold<Op, kCount - kCount / 2>(total, first + kCount / 2));
  }
}

// The shape of a block: it walks a tile kLag tiles after it has composed it, so that other blocks
// have that long to say what comes before. kStages tiles are in shared memory: on their way,
// composed and not yet walked, at work. kKept is how many tiles' totals are told apart.
inline constexpr unsigned kLag = 1, kStages = 3, kPlaces = kStages + kLag + 1;
inline constexpr unsigned kKept = 2 + 2 * kLag;
inline constexpr unsigned kRound = 8;  // signals in turn: more than anyone is ever behind
inline constexpr int kBlocksPerUnit = 2;

// Workers of a block: as many as let kBlocksPerUnit blocks share 226 KB.
template <class Op, class Source, int kMost>
constexpr int device_warps() {
  constexpr int tile = tile_elements<Source, steps_per_thread<Source>()>() *
                       static_cast<int>(sizeof(typename Source::T));
  constexpr int local = kLanes * static_cast<int>(sizeof(typename Op::Local));
  constexpr int fit = (226 * 1024 / kBlocksPerUnit - 8 * 1024) / (kStages * tile + kKept * local);
  return fit < 1 ? 1 : fit < kMost ? fit : kMost;
}

template <class Op, int kWarps>
struct Shared {
  typename Op::Local totals[kKept][kWarps][kLanes];  // of each worker's chunk
  typename Op::Element own[kKept][kLanes];           // of the tile
  typename Op::Element siblings[kMaxLevels][kLanes];
  typename Op::State before[kKept][kLanes];  // the state before the tile
  Place places[kPlaces];
  Signal composed[kRound], published[kRound], resolved[kRound];
};

// kWarps workers compose and walk; one more warp publishes the totals of tiles, and one puts
// together the states before them.
template <class Op, class Source, class Sink, class Ends, int kWarps>
__global__ void __launch_bounds__((kWarps + 2) * kLanes, kBlocksPerUnit)
    device_kernel(const Extent extent, const unsigned row_blocks, const unsigned tiles,
                  const Source source, const Sink sink, const Ends ends, const bool vectors,
                  const Exchange<Op> exchange) {
  using T = typename Source::T;
  constexpr int kSteps = steps_per_thread<Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  extern __shared__ __align__(kVectorBytes) unsigned char dynamic[];
  __shared__ Shared<Op, kWarps> shared;

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  T* const ring = reinterpret_cast<T*>(dynamic) + warp * kStages * kTile;
  const auto place_of = [&](unsigned ticket) -> Place {
    const unsigned column = ticket % exchange.columns;
    return {ticket < tiles * exchange.columns ? ticket / exchange.columns : tiles,
            column / row_blocks, column % row_blocks};
  };
  const auto first_row = [](const Place& place) { return Index{place.block} * kLanes; };
  const auto first_step = [&](const Place& place) {
    return (Index{place.tile} * kWarps + warp) * kSteps;
  };
  const auto ask_for = [&](const Place& place, T* tile) {
    Feed<Source, kSteps> feed{extent, vectors};
    if (place.tile < tiles) {
      const auto in = source.line(place.line);
      feed.aim(in, first_row(place), first_step(place));
      feed.copy(in, tile, first_row(place), first_step(place));
    } else {
      commit_copies();
    }
  };
  if (threadIdx.x == 0) {
    for (unsigned k = 0; k < kRound; ++k) {
      shared.composed[k].init(kWarps);
      shared.published[k].init(1);
      shared.resolved[k].init(1);
    }
  }
  // One ticket after another: blocks that start together so take turns. A block with several
  // tickets in a row would make tiles wait for one another's whole stay.
  for (unsigned stage = 0; stage < kStages; ++stage) {
    if (threadIdx.x == 0) shared.places[stage] = place_of(atomicAdd(exchange.tickets, 1u));
    __syncthreads();
    if (warp < kWarps) ask_for(shared.places[stage], ring + stage * kTile);
  }

  if (warp == kWarps) {
    for (unsigned i = 0;; ++i) {
      const Place now = shared.places[i % kPlaces];
      if (now.tile >= tiles) return;
      const unsigned ticket = lane == 0 ? atomicAdd(exchange.tickets, 1u) : 0;
      shared.composed[i % kRound].wait(i / kRound);
      const auto own =
          Op::promote(fold<Op, kWarps>([&](int w) { return shared.totals[i % kKept][w][lane]; }));
      if (now.tile + 1 < tiles) {
        exchange.publish(0, now.tile, now.line * row_blocks + now.block, lane, own);
      }
      if (lane == 0) shared.places[(i + kStages) % kPlaces] = place_of(ticket);
      shared.own[i % kKept][lane] = own;
      shared.published[i % kRound].arrive();
    }
  }
  if (warp == kWarps + 1) {
    for (unsigned i = 0;; ++i) {
      const Place now = shared.places[i % kPlaces];
      if (now.tile >= tiles) return;
      const auto own_total = [&](typename Op::Element& own) {
        if (!shared.published[i % kRound].test(i / kRound)) return false;
        own = shared.own[i % kKept][lane];
        return true;
      };
      Resolver<Op, decltype(own_total)> resolver{
          exchange, shared.siblings, own_total, now.tile, tiles, now.line * row_blocks + now.block,
          lane};
      shared.before[i % kKept][lane] = resolver.find_state(
          [&] { return ends.first(now.line, first_row(now) + unit_of(extent, first_row(now))); });
      shared.resolved[i % kRound].arrive();
    }
  }

  for (unsigned i = 0;; ++i) {
    const Place ahead = shared.places[i % kPlaces];
    if (ahead.tile < tiles) {
      await_copies<kStages - kLag - 1>();
      const Index row = first_row(ahead);
      const auto here = staged<kSteps>(source.line(ahead.line), ring + i % kStages * kTile, row,
                                       first_step(ahead));
      shared.totals[i % kKept][warp][lane] = compose<Op, kSteps>(here, unit_of(extent, row));
      shared.composed[i % kRound].arrive();
    }
    if (i < kLag) continue;
    const unsigned j = i - kLag;
    const Place now = shared.places[j % kPlaces];
    if (now.tile >= tiles) return;
    const Index row = first_row(now), t = first_step(now), left = extent.steps - t;
    const int unit = unit_of(extent, row);
    T* const tile = ring + j % kStages * kTile;
    shared.resolved[j % kRound].wait(j / kRound);
    auto state = shared.before[j % kKept][lane];
    for (int w = 0; w < warp; ++w) state = Op::apply(shared.totals[j % kKept][w][lane], state);
    if (unit == lane && left > 0) {
      const auto here = staged<kSteps>(source.line(now.line), tile, row, t);
      const auto last =
          walk<Op, kSteps>(here, unit, left, sink.line(now.line).from(row + lane, t), state);
      if (left <= kSteps) ends.last(now.line, row + lane, last);
    }
    __syncwarp();  // the tile has been read by every lane: it can be filled again
    ask_for(shared.places[(j + kStages) % kPlaces], tile);
  }
}

template <class Source, int kWarps>
Index device_tiles(const Extent& extent) {
  constexpr Index tile = kWarps * steps_per_thread<Source>();
  return (extent.steps + tile - 1) / tile;
}

}  // namespace cuda

// Bytes of workspace that launch_device needs; their contents do not matter.
template <class Op, int kMostWarps, class Source>
std::size_t device_workspace(const Extent& extent) {
  constexpr int kWarps = cuda::device_warps<Op, Source, kMostWarps>();
  cuda::Exchange<Op> exchange;
  return exchange.place(nullptr, cuda::columns(extent), cuda::device_tiles<Source, kWarps>(extent));
}

template <class Op, int kMostWarps, class Source, class Sink, class Ends>
cudaError_t launch_device(const Extent& extent, const Source& source, const Sink& sink,
                          const Ends& ends, void* workspace, const Launch& launch) {
  using namespace cuda;
  constexpr int kSteps = steps_per_thread<Source>();
  constexpr int kWarps = device_warps<Op, Source, kMostWarps>();
  const Index tiles = device_tiles<Source, kWarps>(extent), count = columns(extent);
  if (count == 0 || tiles == 0) return launch_sequential<Op>(extent, source, sink, ends, launch);
  // Tickets are 32-bit words, and every running block takes a few beyond the last tile.
  if (tiles * count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  Exchange<Op> exchange;
  const std::size_t bytes = exchange.place(static_cast<char*>(workspace), count, tiles);
  const auto status = cudaMemsetAsync(workspace, 0, bytes, launch.stream);
  if (status != cudaSuccess) return status;
  const Index resident = Index{launch.units} * kBlocksPerUnit;
  return cuda::launch(
      device_kernel<Op, Source, Sink, Ends, kWarps>,
      tiles * count < resident ? tiles * count : resident, (kWarps + 2) * kLanes,
      kWarps * kStages * tile_elements<Source, kSteps>() * sizeof(typename Source::T),
      launch.stream, extent, static_cast<unsigned>(row_blocks(extent)),
      static_cast<unsigned>(tiles), source, sink, ends, vectors_fit(extent, source), exchange);
}

}  // namespace scanrnn::scan
