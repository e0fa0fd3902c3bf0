// SPDX-License-Identifier: Apache-2.0
// How tiles of the lanes kernel leave word for one another, and how the state before a tile is put
// together from it: as in device/lookback.cuh, but a warp's lanes are tiles of one row.
#pragma once

#include <cub/util_ptx.cuh>

#include "scanrnn/scan/cuda/device/lookback.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kLaneGroup = 16;  // tiles that are combined at once

// Where tiles of all rows leave word for one another: slots of 32 tiles of a row, of which each
// half is a group. Zero before a launch.
template <class Op>
struct LaneExchange {
  using Element = typename Op::Element;
  using State = typename Op::State;
  using Total = Mailbox<Element>;
  using After = Mailbox<State>;
  static constexpr int kGroup = kLaneGroup;

  unsigned* tickets;
  typename Total::Slot* totals[2];  // of tiles, of groups
  typename After::Slot* after;      // the states after groups of groups
  Index rows;                       // of all lines

  // As Exchange::place().
  std::size_t place(char* base, Index row_count, Index tiles) {
    std::size_t bytes = kTicketBytes;
    tickets = reinterpret_cast<unsigned*>(base);
    rows = row_count;
    const auto take = [&](std::size_t slot) {
      char* const at = base + bytes;
      bytes += static_cast<std::size_t>((tiles + kLanes - 1) / kLanes * rows) * slot;
      tiles = (tiles + kGroup - 1) / kGroup;
      return at;
    };
    for (auto& level : totals) {
      level = reinterpret_cast<typename Total::Slot*>(take(sizeof(typename Total::Slot)));
    }
    after = reinterpret_cast<typename After::Slot*>(take(sizeof(typename After::Slot)));
    return bytes;
  }

  // Where the word of number `index` of a row is.
  template <class Slot>
  __device__ __forceinline__ Slot& slot(Slot* slots, unsigned index, Index row) const {
    return slots[index / kLanes * rows + row];
  }
  __device__ __forceinline__ void publish(int level, unsigned index, Index row,
                                          const Element& total) const {
    Total::publish(slot(totals[level], index, row), index % kLanes, total);
  }
  // The state before a tile of one row, by the kGroup lanes that call it for that row and have the
  // tile's total; all lanes of the warp call it. What others wait for is published as soon as it is
  // known. Rows that are not there wait for nothing.
  template <class First>
  __device__ __forceinline__ State resolve(unsigned tile, unsigned tiles, Index row, bool exists,
                                           const Element& own, const First& first) const {
    const unsigned lane = threadIdx.x % kGroup;
    const unsigned group = tile / kGroup, place = tile % kGroup;
    const unsigned large = group / kGroup, large_place = group % kGroup;
    const bool followed = exists && tile + 1 < tiles;
    if (followed && lane == 0) publish(0, tile, row, own);
    const bool needs_tile = exists && lane < place, needs_group = exists && lane < large_place;
    const bool needs_start = exists && large != 0;
    typename Total::Look tile_total{}, group_total{};
    typename After::Look start{};
    // Asks for all that is not there yet, at one latency.
    const auto look = [&] {
      const unsigned of_tile = group * kGroup + lane, of_group = large * kGroup + lane;
      if (needs_tile && !tile_total.complete()) {
        tile_total.look(slot(totals[0], of_tile, row), of_tile % kLanes);
      }
      if (needs_group && !group_total.complete()) {
        group_total.look(slot(totals[1], of_group, row), of_group % kLanes);
      }
      if (needs_start && !start.complete()) {
        start.look(slot(after, large - 1, row), (large - 1) % kLanes);
      }
    };
    do {
      look();
    } while (__any_sync(~0u, needs_tile && !tile_total.complete()));
    const auto combined = [&](Element f) {  // of the lanes before this one and this one
      for (int apart = 1; apart < kGroup; apart *= 2) {
        const Element later = cub::ShuffleDown<kGroup>(f, apart, kGroup - 1, ~0u);
        f = Op::combine(f, later);
      }
      return cub::ShuffleIndex<kGroup>(f, 0, ~0u);
    };
    const Element siblings = combined(needs_tile ? tile_total.value() : Op::identity());
    const Element through = Op::combine(siblings, own);
    const bool ends_group = followed && place + 1 == kGroup;
    if (ends_group && lane == 0) publish(1, group, row, through);
    while (__any_sync(
        ~0u, (needs_group && !group_total.complete()) || (needs_start && !start.complete()))) {
      look();
    }
    const Element groups = combined(needs_group ? group_total.value() : Op::identity());
    const State begin = needs_start ? start.value() : first();
    if (ends_group && large_place + 1 == kGroup && lane == 0) {
      After::publish(slot(after, large, row), large % kLanes,
                     Op::apply(Op::combine(groups, through), begin));
    }
    return Op::apply(Op::combine(groups, siblings), begin);
  }
};

}  // namespace cuda
}  // namespace scanrnn::scan
