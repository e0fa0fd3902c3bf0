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

inline constexpr int kFan = 8;
inline constexpr int kLevels = 3;

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
  // A first look at the slot; wait() goes on from it, so that several can be under way at once.
  struct Look {
    uint4 packet[kPackets];
  };
  __device__ static Look look(const Slot& slot, int lane) {
    Look out;
#pragma unroll
    for (int i = 0; i < kPackets; ++i) out.packet[i] = load(&slot[i][lane]);
    return out;
  }
  __device__ static Value wait(Look look, const Slot& slot, int lane) {
    unsigned words[kPackets * 3];
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      while (look.packet[i].w == 0) look.packet[i] = load(&slot[i][lane]);
      words[3 * i] = look.packet[i].x;
      words[3 * i + 1] = look.packet[i].y;
      words[3 * i + 2] = look.packet[i].z;
    }
    Value value;
    memcpy(&value, words, sizeof(Value));
    return value;
  }
};

// Where tiles leave word for one another. Zero before a launch; column by column.
template <class Op>
struct Exchange {
  using Total = Mailbox<typename Op::Element>;
  using After = Mailbox<typename Op::State>;

  unsigned* tickets;
  typename Total::Slot* totals[kLevels];  // [groups of the level][columns]
  typename After::Slot* after;            // [groups of the highest level][columns]
  unsigned columns;

  // The layout, starting at `base`; returns its bytes. With base null it only counts.
  std::size_t place(char* base, Index column_count, Index tiles) {
    std::size_t bytes = 256;
    tickets = reinterpret_cast<unsigned*>(base);
    columns = static_cast<unsigned>(column_count);
    Index groups = tiles;
    for (int level = 0; level < kLevels; ++level) {
      totals[level] = reinterpret_cast<typename Total::Slot*>(base + bytes);
      bytes += static_cast<std::size_t>(groups * column_count) * sizeof(typename Total::Slot);
      groups = (groups + kFan - 1) / kFan;
    }
    after = reinterpret_cast<typename After::Slot*>(base + bytes);
    return bytes + static_cast<std::size_t>(groups * column_count) * sizeof(typename After::Slot);
  }

  // The state before `tile` of a column, given the tile's own total; called by one warp.
  template <class First>
  __device__ __forceinline__ typename Op::State arrive(unsigned tile, unsigned tiles,
                                                       unsigned column, int lane,
                                                       typename Op::Element own,
                                                       const First& first) const {
    auto before = Op::identity();  // of the tiles of this tile's highest group that precede it
    unsigned group = tile;         // of the level, and whether it ends with this tile
    bool ends = true;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const unsigned position = group % kFan;
      if (ends && tile + 1 < tiles) Total::publish(at(totals[level], group, column), lane, own);
      typename Total::Look look[kFan - 1];
#pragma unroll
      for (int i = 0; i < kFan - 1; ++i) {
        if (i < position) {
          look[i] = Total::look(at(totals[level], group - position + i, column), lane);
        }
      }
      auto here = Op::identity();
#pragma unroll
      for (int i = 0; i < kFan - 1; ++i) {
        if (i < position) {
          const auto& slot = at(totals[level], group - position + i, column);
          const auto next = Total::wait(look[i], slot, lane);
          here = i == 0 ? next : Op::combine(here, next);
        }
      }
      if (position != 0) before = level == 0 ? here : Op::combine(here, before);
      ends = ends && position == kFan - 1;
      if (ends) own = Op::combine(here, own);
      group /= kFan;
    }
    typename Op::State state;
    if (group == 0) {
      state = first();
    } else {
      const auto& slot = at(after, group - 1, column);
      state = After::wait(After::look(slot, lane), slot, lane);
    }
    if (ends && tile + 1 < tiles) {
      After::publish(at(after, group, column), lane, Op::apply(own, state));
    }
    return Op::apply(before, state);
  }

  template <class Slot>
  __device__ __forceinline__ Slot& at(Slot* slots, unsigned group, unsigned column) const {
    return slots[static_cast<std::size_t>(group) * columns + column];
  }
};

// What a ticket stands for: columns side by side, then the next tile of time.
struct Place {
  unsigned tile, line, block;
};

// Two meetings a tile, so that a warp waits only for what it needs: workers leave their totals and
// do not wait for the others', the carry warp leaves the state before the tile.
enum Meeting { kTotals = 1, kCarry = 2 };
template <int kMeeting, int kThreads>
__device__ __forceinline__ void arrive() {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"n"(kMeeting), "n"(kThreads) : "memory");
}
template <int kMeeting, int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(kMeeting), "n"(kThreads) : "memory");
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
  extern __shared__ __align__(kVectorBytes) unsigned char shared[];
  __shared__ typename Op::Local totals[2][kWarps][kLanes];
  __shared__ typename Op::State carry[kLanes];
  __shared__ Place start, upcoming;

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const unsigned count = tiles * exchange.columns;
  const auto place_of = [&](unsigned ticket) -> Place {
    const unsigned column = ticket % exchange.columns;
    return {ticket < count ? ticket / exchange.columns : tiles, column / row_blocks,
            column % row_blocks};
  };
  if (threadIdx.x == 0) {
    const unsigned ticket = atomicAdd(exchange.tickets, 2u);
    start = place_of(ticket);
    upcoming = place_of(ticket + 1);
  }
  __syncthreads();
  Place now = start, next = upcoming;

  if (warp == kWarps) {
    for (int parity = 0; now.tile < tiles; parity ^= 1) {
      const Index row = Index{now.block} * kLanes;
      unsigned ticket = 0;
      if (lane == 0) ticket = atomicAdd(exchange.tickets, 1u);
      meet<kTotals, kThreads>();
      auto own = Op::promote(totals[parity][0][lane]);
      for (int i = 1; i < kWarps; ++i) {
        own = Op::combine(own, Op::promote(totals[parity][i][lane]));
      }
      carry[lane] = exchange.arrive(
          now.tile, tiles, now.line * row_blocks + now.block, lane, own,
          [&] { return ends.first(now.line, row + unit_of(extent, row)); });
      const Place later = place_of(__shfl_sync(~0u, ticket, 0));
      if (lane == 0) upcoming = later;
      arrive<kCarry, kThreads>();
      now = next;
      next = later;
    }
    return;
  }

  T* const tile = reinterpret_cast<T*>(shared) + warp * kTile;
  const auto first_step = [&](const Place& place) {
    return (Index{place.tile} * kWarps + warp) * kSteps;
  };
  const auto ask_for = [&](const Place& place) {
    if (place.tile < tiles) {
      fetch<kSteps>(source.line(place.line), tile, Index{place.block} * kLanes, extent.rows,
                    first_step(place), vectors);
    }
  };
  ask_for(now);
  for (int parity = 0; now.tile < tiles; parity ^= 1) {
    const Index t = first_step(now), row = Index{now.block} * kLanes;
    await_copies<0>();
    Chunk<Op, Source, kSteps> chunk;
    const auto total = chunk.compose(
        staged<kSteps>(source.line(now.line), tile, row, t), unit_of(extent, row));
    __syncwarp();  // the tile has been read by every lane: it can be filled again
    ask_for(next);

    totals[parity][warp][lane] = total;
    arrive<kTotals, kThreads>();
    meet<kCarry, kThreads>();
    const Place later = upcoming;
    auto state = carry[lane];
    for (int before = 0; before < warp; ++before) {
      state = Op::apply(totals[parity][before][lane], state);
    }
    if (t < extent.steps) {
      chunk.walk(extent, sink.line(now.line), ends, now.line, row + lane, t, state);
    }
    now = next;
    next = later;
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
  constexpr int kMinBlocks = (kSteps == kLocalSteps ? 24 : 16) / kWarps;
  const Index tiles = device_tiles<Source, kWarps>(extent), count = columns(extent);
  if (count == 0 || tiles == 0) return launch_sequential<Op>(extent, source, sink, ends, launch);
  // Tickets are 32-bit words, and every running block takes two beyond the last tile.
  if (tiles * count > Index{1} << 31) return cudaErrorInvalidConfiguration;
  Exchange<Op> exchange;
  const std::size_t bytes = exchange.place(static_cast<char*>(workspace), count, tiles);
  const auto status = cudaMemsetAsync(workspace, 0, bytes, launch.stream);
  if (status != cudaSuccess) return status;
  const Index resident = Index{launch.units} * kMinBlocks;
  return cuda::launch(device_kernel<Op, Source, Sink, Ends, kWarps, kMinBlocks>,
                      tiles * count < resident ? tiles * count : resident, (kWarps + 1) * kLanes,
                      kWarps * tile_elements<Source, kSteps>() * sizeof(typename Source::T),
                      launch.stream, extent, static_cast<unsigned>(row_blocks(extent)),
                      static_cast<unsigned>(tiles), source, sink, ends,
                      vectors_fit(extent, source), exchange);
}

}  // namespace scanrnn::scan
