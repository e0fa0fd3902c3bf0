// SPDX-License-Identifier: Apache-2.0
// Parallel scan over the whole device, one pass over memory: time is cut into tiles that blocks take
// in order, and a tile stays on chip while the state before it is put together. What is combined
// with what depends on positions alone, so that two runs give the same bits.
//
// Tiles of a column form a tree of kFan: a tile publishes its total, the last tile of each group the
// group's, and the last tile of each group of the highest level the state after it. A tile that
// waits, waits for tiles with smaller tickets. Tickets are given out in order to blocks that are
// running, and a block finishes its tiles in the order of their tickets, so the smallest unfinished
// ticket never waits for long.
#pragma once

#include "scanrnn/scan/cuda_block.cuh"
#include "scanrnn/scan/cuda_sequential.cuh"

namespace scanrnn::scan {
namespace cuda {

#ifndef SCANRNN_RESIDENT
#define SCANRNN_RESIDENT 22
#endif
inline constexpr int kFanBits = 3, kFan = 1 << kFanBits;
inline constexpr int kMaxLevels = 3;

// The states after the groups of the highest level follow one another, each an exchange through the
// L2 (about 1.3 us) later; meanwhile the columns' tiles of that many groups must keep memory busy.
inline int levels_for(Index columns) {
#ifdef SCANRNN_LEVELS
  return SCANRNN_LEVELS;
#endif
  return columns >= 24 ? 1 : 2;
}

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
  template <class Slot>
  __device__ __forceinline__ Slot& at(Slot* slots, unsigned group, unsigned column) const {
    return slots[static_cast<std::size_t>(group) * columns + column];
  }
};

// The warp that puts together the state before a tile. It never waits for one thing alone: the tile's
// total and those of the groups that it ends are published as soon as they are known.
template <class Op, class OwnTotal>
struct Carrier {
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
  int levels_published = 0, levels_known = 0;

  __device__ __forceinline__ bool ends_group(int level) const {
    return (tile + 1) % (1u << (kFanBits * level)) == 0;
  }
  __device__ __forceinline__ void serve() {
    if (levels_published == 0) {
      if (!own_total(own)) return;
      published = own;
      publish(0);
    }
    while (levels_published <= levels_known && levels_published < exchange.levels &&
           ends_group(levels_published)) {
      published = Op::combine(siblings[levels_published - 1][lane], published);
      publish(levels_published);
    }
  }
  __device__ __forceinline__ void publish(int level) {
    if (tile + 1 < tiles) {
      Total::publish(
          exchange.at(exchange.level_totals(level), tile >> (kFanBits * level), column), lane,
          published);
    }
    ++levels_published;
  }
  // One lane asks first, which is cheap for the L2: what the others need is there too, or soon.
  template <class Slot>
  __device__ __forceinline__ void wait_for(const Slot& slot) {
    for (;;) {
      const unsigned flag = lane == 0 ? Total::load(&slot[0][0]).w : 0;
      if (__shfl_sync(~0u, flag, 0) != 0) return;
      serve();
    }
  }
  __device__ __forceinline__ Element find_siblings(int level) {
    const unsigned group = tile >> (kFanBits * level), position = group % kFan;
    auto out = Op::identity();
    if (position == 0) return out;
    wait_for(exchange.at(exchange.level_totals(level), group - 1, column));
    typename Total::Look total[kFan - 1];
    for (bool complete = false; !complete;) {
#pragma unroll
      for (int i = 0; i < kFan - 1; ++i) {
        if (i < position) {
          total[i].look(exchange.at(exchange.level_totals(level), group - position + i, column),
                        lane);
        }
      }
      complete = true;
#pragma unroll
      for (int i = 0; i < kFan - 1; ++i) {
        complete = complete && (i >= position || total[i].complete());
      }
      complete = __all_sync(~0u, complete);
      if (!complete) serve();
    }
#pragma unroll
    for (int i = 0; i < kFan - 1; ++i) {
      if (i < position) out = i == 0 ? total[i].value() : Op::combine(out, total[i].value());
    }
    return out;
  }
  // The state before the tile, given that before the first of all.
  template <class First>
  __device__ __forceinline__ State find_state(const First& first) {
    auto preceding = Op::identity();
    for (int level = 0; level < exchange.levels; ++level) {
      const auto found = find_siblings(level);
      preceding = level == 0 ? found : Op::combine(found, preceding);
      siblings[level][lane] = found;
      levels_known = level + 1;
      serve();
    }
    State start;
    const unsigned group = tile >> (kFanBits * exchange.levels);
    if (group == 0) {
      start = first();
    } else {
      const auto& slot = exchange.at(exchange.after, group - 1, column);
      wait_for(slot);
      typename After::Look look;
      do look.look(slot, lane);
      while (!look.complete());
      start = look.value();
    }
    const State state = Op::apply(preceding, start);
    while (levels_published == 0) serve();
    if (tile + 1 < tiles && ends_group(exchange.levels)) {
      After::publish(exchange.at(exchange.after, group, column), lane, Op::apply(own, state));
    }
    return state;
  }
};

// What a ticket stands for: columns side by side, then the next tile of time.
struct Place {
  unsigned tile, line, block;
};

// Two meetings a tile, so that a warp waits only for what it needs: workers leave their totals at an
// mbarrier and do not wait for the others', the carry warp leaves the state before the tile.
__device__ __forceinline__ void leave_total(std::uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % kLanes == 0) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
                 : "memory");
  }
}
__device__ __forceinline__ bool totals_are_there(std::uint64_t* barrier, unsigned parity) {
  unsigned there;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(there)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(parity)
      : "memory");
  return __all_sync(~0u, there);
}
template <int kThreads>
__device__ __forceinline__ void leave_carry() {
  asm volatile("barrier.cta.arrive 1, %0;" ::"n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void await_carry() {
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(kThreads) : "memory");
}

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

// Tiles of a block on their way while another is worked on.
template <class Source, int kSteps>
constexpr int device_stages() {
  constexpr std::size_t bytes = tile_elements<Source, kSteps>() * sizeof(typename Source::T);
  return bytes <= 4096 ? 2 : 1;
}

// kWarps workers hold a tile; one more warp puts together the state before it.
template <class Op, class Source, class Sink, class Ends, int kWarps, int kMinBlocks>
__global__ void __launch_bounds__((kWarps + 1) * kLanes, kMinBlocks)
    device_kernel(const Extent extent, const unsigned row_blocks, const unsigned tiles,
                  const Source source, const Sink sink, const Ends ends, const bool vectors,
                  const Exchange<Op> exchange) {
  using T = typename Source::T;
  constexpr int kSteps = steps_per_thread<Source>();
  constexpr int kTile = tile_elements<Source, kSteps>();
  constexpr int kThreads = (kWarps + 1) * kLanes;
  constexpr int kStages = device_stages<Source, kSteps>();
  constexpr unsigned kPlaces = kStages + 2;  // this tile's, those on their way, and the next
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  __shared__ typename Op::Local totals[2][kWarps][kLanes];
  __shared__ typename Op::Element siblings[kMaxLevels][kLanes];
  __shared__ typename Op::State carry[kLanes];
  __shared__ Place places[kPlaces];
  __shared__ std::uint64_t arrived;

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const unsigned count = tiles * exchange.columns;
  const auto place_of = [&](unsigned ticket) -> Place {
    const unsigned column = ticket % exchange.columns;
    return {ticket < count ? ticket / exchange.columns : tiles, column / row_blocks,
            column % row_blocks};
  };
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(&arrived))),
                 "n"(kWarps)
                 : "memory");
  }
  T* const ring = reinterpret_cast<T*>(shared) + warp * kStages * kTile;
  const auto first_step = [&](const Place& place) {
    return (Index{place.tile} * kWarps + warp) * kSteps;
  };
  const auto ask_for = [&](const Place& place, T* tile) {
    Feed<Source, kSteps> feed{extent, vectors};
    if (place.tile < tiles) {
      const auto in = source.line(place.line);
      const Index row = Index{place.block} * kLanes, t = first_step(place);
      feed.aim(in, row, t);
      feed.copy(in, tile, row, t);
    } else {
      commit_copies();
    }
  };
  // One ticket after another: blocks that start together so take turns. A block with several
  // tickets in a row would make tiles wait for one another's whole stay.
  for (int stage = 0; stage <= kStages; ++stage) {
    if (threadIdx.x == 0) places[stage] = place_of(atomicAdd(exchange.tickets, 1u));
    __syncthreads();
    if (stage < kStages && warp < kWarps) ask_for(places[stage], ring + stage * kTile);
  }

  if (warp == kWarps) {
    for (unsigned i = 0;; ++i) {
      const Place now = places[i % kPlaces];
      if (now.tile >= tiles) return;
      const Index row = Index{now.block} * kLanes;
      const unsigned ticket = lane == 0 ? atomicAdd(exchange.tickets, 1u) : 0;
      const auto own_total = [&](typename Op::Element& own) {
        if (!totals_are_there(&arrived, i % 2)) return false;
        own = Op::promote(fold<Op, kWarps>([&](int w) { return totals[i % 2][w][lane]; }));
        return true;
      };
      Carrier<Op, decltype(own_total)> carrier{
          exchange, siblings, own_total, now.tile, tiles, now.line * row_blocks + now.block, lane};
      carry[lane] = carrier.find_state(
          [&] { return ends.first(now.line, row + unit_of(extent, row)); });
      if (lane == 0) places[(i + kStages + 1) % kPlaces] = place_of(ticket);
      leave_carry<kThreads>();
    }
  }

  for (unsigned i = 0;; ++i) {
    const Place now = places[i % kPlaces];
    if (now.tile >= tiles) return;
    const Index t = first_step(now), row = Index{now.block} * kLanes;
    T* const tile = ring + i % kStages * kTile;
    await_copies<kStages - 1>();
    Chunk<Op, Source, kSteps> chunk;
    const int unit = unit_of(extent, row);
    const auto total = chunk.compose(staged<kSteps>(source.line(now.line), tile, row, t), unit);
    __syncwarp();  // the tile has been read by every lane: it can be filled again
    ask_for(places[(i + kStages) % kPlaces], tile);

    totals[i % 2][warp][lane] = total;
    leave_total(&arrived);
    await_carry<kThreads>();
    auto state = carry[lane];
    for (int w = 0; w < warp; ++w) state = Op::apply(totals[i % 2][w][lane], state);
    if (unit == lane && t < extent.steps) {
      auto cursor = sink.line(now.line).from(row + lane, t);
      const auto last = chunk.walk(extent.steps - t, cursor, state);
      if (extent.steps - t <= kSteps) ends.last(now.line, row + lane, last);
    }
  }
}

template <class Source, int kWarps>
Index device_tiles(const Extent& extent) {
  constexpr Index tile = kWarps * steps_per_thread<Source>();
  return (extent.steps + tile - 1) / tile;
}

}  // namespace cuda

// Bytes of workspace that launch_device needs; their contents do not matter.
template <class Op, int kWarps, class Source>
std::size_t device_workspace(const Extent& extent) {
  cuda::Exchange<Op> exchange;
  return exchange.place(nullptr, cuda::columns(extent),
                        cuda::device_tiles<Source, kWarps>(extent));
}

template <class Op, int kWarps, class Source, class Sink, class Ends>
cudaError_t launch_device(const Extent& extent, const Source& source, const Sink& sink,
                          const Ends& ends, void* workspace, const Launch& launch) {
  using namespace cuda;
  constexpr int kSteps = steps_per_thread<Source>();
  constexpr int kMinBlocks = (kSteps == kLocalSteps ? SCANRNN_RESIDENT : 16) / kWarps;
  const Index tiles = device_tiles<Source, kWarps>(extent), count = columns(extent);
  if (count == 0 || tiles == 0) return launch_sequential<Op>(extent, source, sink, ends, launch);
  // Tickets are 32-bit words, and every running block takes a few beyond the last tile.
  if (tiles * count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  Exchange<Op> exchange;
  const std::size_t bytes = exchange.place(static_cast<char*>(workspace), count, tiles);
  const auto status = cudaMemsetAsync(workspace, 0, bytes, launch.stream);
  if (status != cudaSuccess) return status;
  const Index resident = Index{launch.units} * kMinBlocks;
  return cuda::launch(device_kernel<Op, Source, Sink, Ends, kWarps, kMinBlocks>,
                      tiles * count < resident ? tiles * count : resident, (kWarps + 1) * kLanes,
                      kWarps * device_stages<Source, kSteps>() * tile_elements<Source, kSteps>() *
                          sizeof(typename Source::T),
                      launch.stream, extent, static_cast<unsigned>(row_blocks(extent)),
                      static_cast<unsigned>(tiles), source, sink, ends,
                      vectors_fit(extent, source), exchange);
}

}  // namespace scanrnn::scan
