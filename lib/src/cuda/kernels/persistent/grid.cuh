// SPDX-License-Identifier: Apache-2.0
// A dense cell's whole sequence in one kernel. R stays in registers, and blocks hand one another
// what the next product needs through memory in which every word says itself that it has come.
//
// The lines of the batch are cut into groups, the units into slices, and a block has one slice of
// one group: of R the rows of its units' gates (forward) or the columns of its units (backward). A
// step of a block is
//   receive  poll the group's words of this step until none of them is absent: h, or the
//            cotangents of R h
//   product  each warp multiplies its pieces of R by its share of those words (tensor cores), and
//            leaves partial sums in shared memory
//   item     a thread adds up the sums of one unit of one line and makes its step; what the next
//            product reads is sent, and only then is the rest stored
// Blocks wait for one another, so all of them must be resident: the launch is cooperative, or an
// error.
#pragma once

#include <algorithm>

#include "cuda/kernels/persistent/item.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

using dispatch::PersistentShape;
using dispatch::PersistentTile;
using fragment::multiply;
using fragment::Operand;
inline constexpr int kThreads = 32 * dispatch::kPersistentWarps;

template <class C, class T, bool kBackward, bool kSplit, int kUnitBlocks, int kChunks, int kFetched,
          int kItems>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CudaDenseArgs<T, float> a,
           const __grid_constant__ PersistentShape shape, std::uint32_t* const exchange) {
  constexpr int kPerWord = Bits<T>::kPerWord;
  constexpr int kSent = kBackward ? C::kGates : 1;    // values of an item that others read
  constexpr int kBlocks = kBackward ? 1 : C::kGates;  // rows of R for each unit
  constexpr int kTiles = (kUnitBlocks * kBlocks + 1) / 2;
  constexpr int kChains = kTiles >= 4 ? 1 : kTiles >= 2 ? 2 : 4;  // products that need not wait
  using Part = typename Item<C, T, kBackward>::Part;

  extern __shared__ float4 memory[];
  const auto parts = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
  const int warps_along_sum = dispatch::kPersistentWarps / shape.warps_along_units;
  const int warp_units = warp % shape.warps_along_units, warp_sum = warp / shape.warps_along_units;
  const int slice = static_cast<int>(blockIdx.x) % shape.slices;
  const int group = static_cast<int>(blockIdx.x) / shape.slices;
  const int batch = static_cast<int>(a.batch), hidden = static_cast<int>(a.hidden);
  const int steps = static_cast<int>(a.steps);
  const int first_line = static_cast<int>(a.batch * group / shape.groups);
  const int lines = static_cast<int>(a.batch * (group + 1) / shape.groups) - first_line;
  const int units = shape.units, first_unit = slice * units;
  const int block_words = shape.block_words;
  const int words = kSent * block_words;
  const Index slot = Index{(words + 15) / 16} * batch * 16;

  // Pieces of R, as fragments. The sum may be taken in any order, so a lane's words of a chunk are
  // adjacent: each 16 bytes that it receives are its part of two fragments of b.
  std::uint32_t weights[kChunks][kTiles][8];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int block = 2 * tile + half;  // of 8 rows
        const int local = (warp_units * kUnitBlocks + block / kBlocks) * 8;
        const int unit = first_unit + local + row;
        const bool exists = block < kUnitBlocks * kBlocks && local < units && unit < hidden;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int word = (warp_sum * kChunks + chunk) * 16 + quad * 4 + i;
          const int gate = kBackward ? word / block_words : block % kBlocks;
          std::uint32_t bits = 0;
#pragma unroll
          for (int e = 0; e < kPerWord; ++e) {
            const int other = (kBackward ? word % block_words : word) * kPerWord + e;
            if (!exists || gate >= C::kGates || other >= hidden) continue;
            const Index at = kBackward ? (Index{gate} * hidden + other) * a.weight_stride + unit
                                       : (Index{gate} * hidden + unit) * a.weight_stride + other;
            bits |= Bits<T>::load(a.weight + at) << (16 * e);
          }
          const bool once = kPerWord == 1 && !kSplit;  // rounded here, not in every step
          weights[chunk][tile][i / 2 * 4 + i % 2 * 2 + half] = Operand<once, false>(bits).upper;
        }
      }

  // The items of this thread, their partial sums, and where what they give is sent.
  const std::uint32_t line_bytes = 4u * shape.line_floats;
  const std::uint32_t warp_bytes = (lines + 1) / 2 * 2 * line_bytes;
  Item<C, T, kBackward> items[kItems];
  bool sends[kItems];
  std::uint32_t part[kItems];
  std::uint32_t* to[kItems][kSent];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int number = static_cast<int>(threadIdx.x) + j * kThreads;
    const int local = number % units, unit = first_unit + local;
    const int line = number / units, at = first_line + line;
    items[j].open(a, at, unit, line < lines && unit < hidden);
    sends[j] = line < lines && unit % kPerWord == 0 && unit / kPerWord < block_words;
    part[j] = parts + (line < lines ? line * line_bytes + local * sizeof(Part) : 0);
#pragma unroll
    for (int i = 0; i < kSent; ++i) {
      const int word = i * block_words + unit / kPerWord;
      to[j][i] = exchange + (Index{word / 16} * batch + at) * 16 + word % 16;
    }
  }
  // Value i of item j, to every block of the group.
  const auto send_item = [&](int j, int i, float value) {
    std::uint32_t bits = Bits<T>::of(value);
    if (kPerWord == 2) bits |= __shfl_xor_sync(~0u, bits, 1) << 16;
    if (sends[j]) send(to[j][i], bits);
    to[j][i] += slot;
  };
  const bool has_items = static_cast<int>(threadIdx.x) - lane < units * lines;  // this warp
  if (has_items) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
#pragma unroll
      for (int i = 0; i < kSent; ++i) send_item(j, i, kBackward ? 0.0f : items[j].h);
      items[j].fetch(a, 0);
    }
  }

  const std::uint32_t* words_in =
      exchange + (Index{warp_sum * kChunks} * batch + first_line + row) * 16 + quad * 4;
  const int chunk_words = batch * 16;
  const std::uint32_t own_parts =
      parts + warp_sum * warp_bytes + 2 * quad * line_bytes +
      (warp_units * kUnitBlocks * 8 + row) * static_cast<int>(sizeof(Part));
  const std::uint32_t half_bytes = warps_along_sum * warp_bytes;
  std::uint32_t half = 0;  // which of two sets of partial sums, so that one barrier is enough
  // Backward ends with a product and no step: the cotangent of the state before the first one.
  const int turns = steps + kBackward;
  for (int t = 0; t < turns; ++t) {
    for (int first = 0; first < lines; first += 8) {
      const bool exists = first + row < lines;
      float sum[kChains][kTiles][4] = {};
#pragma unroll
      for (int done = 0; done < kChunks; done += kFetched) {
        uint4 v[kFetched];
        bool waits[kFetched];
#pragma unroll
        for (int i = 0; i < kFetched; ++i) {
          waits[i] = exists && (warp_sum * kChunks + done + i) * 16 + quad * 4 < words;
          v[i] = make_uint4(0, 0, 0, 0);
        }
        bool again;
        do {
          again = false;
#pragma unroll
          for (int i = 0; i < kFetched; ++i)
            if (waits[i]) v[i] = receive(words_in + first * 16 + Index{done + i} * chunk_words);
#pragma unroll
          for (int i = 0; i < kFetched; ++i) {
            waits[i] = waits[i] && absent(v[i]);
            again |= waits[i];
          }
        } while (__any_sync(~0u, again));
#pragma unroll
        for (int i = 0; i < kFetched; ++i) {
          using B = Operand<kPerWord == 1, kSplit>;
          const B b[4] = {B(v[i].x), B(v[i].y), B(v[i].z), B(v[i].w)};
#pragma unroll
          for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
              multiply<T, kSplit>(sum[(2 * i + step) % kChains][tile],
                                  weights[done + i][tile] + 4 * step, b[2 * step], b[2 * step + 1]);
        }
      }
#pragma unroll
      for (int i = 1; i < kChains; ++i)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[0][tile][e] += sum[i][tile][e];
      if (first + 2 * quad >= lines) continue;
#pragma unroll
      for (int block = 0; block < kUnitBlocks; ++block) {
        if ((warp_units * kUnitBlocks + block) * 8 >= units) continue;
        const std::uint32_t at = own_parts + half + first * line_bytes + block * 8 * sizeof(Part);
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const auto of = [&](int b) { return sum[0][b / 2][b % 2 * 2 + column]; };
          if constexpr (kBackward) {
            store_shared(at + column * line_bytes, of(block));
          } else {
            const int b = block * kBlocks;
            store_shared(
                at + column * line_bytes,
                make_float4(of(b), of(b + 1), of(b + 2), kBlocks > 3 ? of(b + kBlocks - 1) : 0.0f));
          }
        }
      }
    }
    __syncthreads();
    words_in += slot;
    if (has_items) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        Part p[dispatch::kPersistentWarps];
        std::uint32_t at = part[j] + half;
#pragma unroll
        for (int i = 0; i < dispatch::kPersistentWarps; ++i) {
          p[i] = Part();
          if (i < warps_along_sum) load_shared(at, p[i]);
          at += warp_bytes;
        }
        const Part total = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
        if constexpr (kBackward) {
          if (t == steps) {
            items[j].finish(total);
            continue;
          }
        }
        items[j].step(t, total);
        if (kBackward || t + 1 < steps) {
#pragma unroll
          for (int i = 0; i < kSent; ++i) send_item(j, i, items[j].sent(i));
        }
        items[j].store(a);
      }
#pragma unroll
      for (int j = 0; j < kItems; ++j) items[j].fetch(a, t + 1);
    }
    half = half_bytes - half;
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) items[j].close(a);
}

}  // namespace scanrnn::persistent
