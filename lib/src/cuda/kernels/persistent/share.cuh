// SPDX-License-Identifier: Apache-2.0
// How a grid of blocks shares a layer: what of R a warp multiplies by, and which lines, units and
// part of the sums are a thread's.
#pragma once

#include "cuda/kernels/persistent/item.cuh"
#include "cuda/kernels/persistent/line_share.cuh"
#include "cuda/kernels/persistent/weights.cuh"
#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

using dispatch::PersistentShape;
using dispatch::PersistentTile;

// What a kernel's template arguments say: a warp has kUnitBlocks times 8 units of R, and of the sum
// kChunks pieces of 64 bytes, the last kShared of them in shared memory.
template <class C, class T, bool kBackward_, bool kSplit_, Lines kLines, bool kChain_,
          int kUnitBlocks_, int kChunks_, int kShared>
struct GridCut {
  using Cell = C;
  using Type = T;
  static constexpr bool kBackward = kBackward_, kSplit = kSplit_;
  static constexpr bool kRagged = kLines == Lines::ragged;
  static constexpr bool kChain = kChain_;
  static constexpr int kUnitBlocks = kUnitBlocks_, kChunks = kChunks_;
  static constexpr int kPerWord = Bits<T>::kPerWord;
  static constexpr int kRows = kChain ? C::kPreactivations : C::kGates;
  static constexpr int kSent = kBackward ? kRows : 1;    // values of an item that others read
  static constexpr int kBlocks = kBackward ? 1 : kRows;  // rows of weights for each unit
  static constexpr int kTiles = (kUnitBlocks * kBlocks + 1) / 2;
  // Lines whose products are multiply-adds, and of these at most so many at once.
  static constexpr int kFew = kSplit ? dispatch::kPersistentFewLines : 0;
  static constexpr int kMostFew = dispatch::persistent_few_at_once(kTiles);
  static constexpr int kChains = kTiles >= 4 ? 1 : kTiles >= 2 ? 2 : 4;  // that need not wait
  using Args = CudaDenseArgs<T, float>;
  using Unit = Item<C, T, kBackward, kLines, kChain>;
  using Part = typename Unit::Part;
  using Weights = Pieces<kChunks - kShared, kShared, kTiles>;
  using Sums = float[kChains][kTiles][4];
};

// Which lines and units a block has, and which part of the products a thread.
struct Share {
  int row, quad;             // of a fragment: a lane has a word of a row, and two columns
  int warp_units, warp_sum;  // which of the block's units and of the sum's chunks a warp has
  int warps_along_sum;
  LineShare own;
  HeadShare head;
  int first_unit, units;        // of the slice
  int block_words, sent_words;  // of a line: of one value of its units, and of all that are sent
  int others, words;            // that a product reads: of the layer before, and of all
  int first_line, lines;        // of the exchange: the group's first one, and all there are

  __device__ __forceinline__ static int warp() { return threadIdx.x / 32; }
  // A line of the group and a unit of the slice that this thread steps, the j-th of them; and
  // whether any of its warp has one.
  struct ItemAt {
    int line, unit;
  };
  __device__ __forceinline__ ItemAt item(int j) const {
    const int number = static_cast<int>(threadIdx.x) + j * kThreads;
    return {number / units, number % units};
  }
  __device__ __forceinline__ bool has_items() const { return warp() * 32 < units * own.count; }
  template <class Args>
  __device__ __forceinline__ Share(const Args& a, const PersistentShape& shape, int sent,
                                   bool chain)
      : row(threadIdx.x % 32 / 4),
        quad(threadIdx.x % 4),
        warp_units(warp() % shape.warps_along_units),
        warp_sum(warp() / shape.warps_along_units),
        warps_along_sum(dispatch::kPersistentWarps / shape.warps_along_units),
        own(static_cast<int>(a.batch), static_cast<int>(blockIdx.x) / shape.slices, shape.groups),
        head(a),
        first_unit(static_cast<int>(blockIdx.x) % shape.slices * shape.units),
        units(shape.units),
        block_words(shape.block_words),
        sent_words(sent * shape.block_words),
        others(chain && blockIdx.z > 0 ? sent_words : 0),
        words(others + sent_words),
        first_line(static_cast<int>(blockIdx.y) * static_cast<int>(a.batch) + own.first),
        lines(static_cast<int>(a.head_lines)) {}

  // Words of the exchange from one row to the next, and where the first of this layer is that it
  // sends or reads.
  __device__ __forceinline__ Index row_words() const {
    return Index{(sent_words + 15) / 16} * lines * 16;
  }
  __device__ __forceinline__ Index first_sent() const {
    return (Index{blockIdx.z} * gridDim.z + blockIdx.z) * row_words();
  }
  __device__ __forceinline__ Index first_read() const {
    return first_sent() - (blockIdx.z > 0 ? row_words() : 0);
  }
};

}  // namespace scanrnn::persistent
