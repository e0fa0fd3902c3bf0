// SPDX-License-Identifier: Apache-2.0
// How tiles of the device kernel leave word for one another in global memory, and how the state
// before a tile is put together from it.
#pragma once

#include <algorithm>
#include <cstring>

#include "scanrnn/scan/cuda/chunk.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kFanBits = 3, kFan = 1 << kFanBits;
inline constexpr int kMaxLevels = 2;  // so only groups of the lowest have a total of their own

// The states after the groups of the highest level follow one another, each an exchange through the
// L2 (about 1.3 us) later; meanwhile the columns' tiles of that many groups must keep memory busy.
inline int levels_for(Index columns) { return columns >= 24 ? 1 : 2; }

// A value in global memory that one warp writes, each lane its own, and others wait for. Each
// 16-byte packet holds three words of it and a flag, and is written and read at once: no fence.
// Words that are left over are flags too, and looked at: of a packet that is read in part the
// assembler makes two loads, and the flag may be newer than the value.
template <class Value>
struct Mailbox {
  static constexpr int kWords = sizeof(Value) / 4, kPackets = (kWords + 2) / 3;
  using Slot = uint4[kPackets][kLanes];
  static_assert(sizeof(Value) % 4 == 0);

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
    unsigned words[kPackets * 3];
#pragma unroll
    for (int i = kWords; i < kPackets * 3; ++i) words[i] = 1u;
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
      if constexpr (kWords % 3 != 0) all = all && packet[kPackets - 1].z != 0;
      if constexpr (kWords % 3 == 1) all = all && packet[kPackets - 1].y != 0;
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

// Clears words, and lets the next kernel start when the first kClearThreads are cleared.
inline constexpr int kClearThreads = 256;
template <class Word>
__global__ void __launch_bounds__(kClearThreads) clear_kernel(Word* words, const Index count) {
  await_stream();
  const Index stride = Index{gridDim.x} * blockDim.x;
  Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) words[i] = {};
  __threadfence();
  __syncthreads();
  release_stream();
  for (i += stride; i < count; i += stride) words[i] = {};
}

inline constexpr std::size_t kTicketBytes = 256;  // at the start of an exchange

// Clears an exchange for a kernel that is launched next. When that starts, everything before both
// is over and the tickets are cleared: it may take some and read inputs before it awaits the
// stream.
inline cudaError_t clear_exchange(void* words, std::size_t bytes, const Launch& launch) {
  static_assert(kTicketBytes <= kClearThreads * sizeof(uint4));
  const Index count = static_cast<Index>(bytes / sizeof(uint4));
  const Index needed = (count + kClearThreads - 1) / kClearThreads, most = 2 * launch.units;
  return launch_early(clear_kernel<uint4>, dim3(static_cast<unsigned>(std::min(needed, most))),
                      kClearThreads, {}, launch.stream, static_cast<uint4*>(words), count);
}

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
    std::size_t bytes = kTicketBytes;
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
    return level == 0 ? totals[0] : totals[1];
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
  Element* siblings;          // [kLanes] of shared memory: what precedes the tile in its group
  const OwnTotal& own_total;  // bool(Element&): the tile's total, once it is there
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
      published = Op::combine(siblings[lane], published);
      if (tile + 1 < tiles) exchange.publish(levels_published, tile, column, lane, published);
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
      auto* const totals = exchange.level_totals(level);
      typename Total::Look total[kFan - 1] = {};
      for (;;) {
#pragma unroll
        for (int i = 0; i < kFan - 1; ++i) {
          if (i < position && !total[i].complete()) {
            total[i].look(exchange.at(totals, group - position + i, column), lane);
          }
        }
        look_at_start();
        bool complete = true;
#pragma unroll
        for (int i = 0; i < kFan - 1; ++i) {
          complete = complete && (i >= position || total[i].complete());
        }
        if (__all_sync(~0u, complete)) break;
        serve();
      }
      // What precedes the tile in its group of this level: whole groups of the level below, then
      // what was found there.
      preceding = Op::template combine_all<kFan>([&](int i) {
        return i < position   ? total[i < kFan - 1 ? i : 0].value()
               : i < kFan - 1 ? Op::identity()
                              : preceding;
      });
      if (level == 0) siblings[lane] = preceding;
      levels_known = level + 1;
      serve();
    }
    const auto before = Op::linear(preceding);
    const bool last = tile + 1 < tiles && ends_group(exchange.levels);
    decltype(Op::linear(own)) through;
    if (last) {
      while (levels_published == 0) serve();
      through = Op::linear(own);
    }
    while (top != 0 && !__all_sync(~0u, start.complete())) {
      serve();
      look_at_start();
    }
    const State state = Op::apply(before, top == 0 ? first() : start.value());
    if (last) {
      After::publish(exchange.at(exchange.after, top, column), lane, Op::apply(through, state));
    } else {
      while (levels_published == 0) serve();
    }
    return state;
  }
};

}  // namespace cuda
}  // namespace scanrnn::scan
