// SPDX-License-Identifier: Apache-2.0
// A dense cell's whole sequence in one kernel. R stays in registers and shared memory, and blocks
// hand one another what the next product needs through memory in which every word says itself that
// it has come.
//
// The lines of the batch are cut into groups, the units of each head into slices, and a block has
// one slice of one group: of R the rows of its units' gates (forward) or the columns of its units
// (backward). Nothing passes between heads. A step of a block is
//   receive  poll the group's words of this step until none of them is absent: h, or the
//            cotangents of R h
//   product  each warp multiplies its pieces of R by its share of those words (tensor cores), and
//            leaves partial sums in shared memory
//   item     a thread adds up the sums of one unit of one line and makes its step; what the next
//            product reads is sent, and only then is the rest stored
// Blocks wait for one another, so all of them must be resident: the launch is cooperative, or an
// error.
//
// A chain of layers can be one launch, of blocks for each layer. A product reads what the layer
// before it in the walk has sent of this step, too (h of the one below; backward the cotangents of
// the sums of the one above), times W, so that R and W lie side by side. Layers are a step apart:
// slot s of the n-th one is in row n + s of the exchange, where it adjoins the one that it reads.
#pragma once

#include "cuda/kernels/persistent/outbox.cuh"
#include "cuda/kernels/persistent/products.cuh"

namespace scanrnn::persistent {

// The items of this thread, where their partial sums are, and where what they give is sent.
template <class Cut, int kItems>
__device__ __forceinline__ void open_items(const typename Cut::Args& a, const Share& share,
                                           std::uint32_t* exchange,
                                           typename Cut::Unit (&items)[kItems],
                                           Outbox<Cut> (&outboxes)[kItems]) {
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const auto [line, local] = share.item(j);
    const int unit = share.first_unit + local;
    items[j].open(a, share.own.template line<Cut::kRagged>(line), share.head.first + unit,
                  line < share.own.count && unit < share.head.units);
    outboxes[j].open(share, exchange, line, unit);
  }
}

// The turns of a thread's items at step t, side by side, so that none waits for another's.
template <class Cut, int kItems>
__device__ __forceinline__ void take_turns(const typename Cut::Args& a, int t, Index slot,
                                           const typename Cut::Part (&totals)[kItems],
                                           typename Cut::Unit (&items)[kItems],
                                           Outbox<Cut> (&outboxes)[kItems]) {
  const int steps = static_cast<int>(a.steps);
  if constexpr (Cut::kBackward) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (t == items[j].steps(a)) items[j].finish(totals[j]);
      items[j].close_at(a, t);
    }
    if (t == steps) return;
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) items[j].step(a, t, totals[j]);
  if (Cut::kBackward || Cut::kChain || t + 1 < steps) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      outboxes[j].send([&](int i) {
        if (!Cut::kBackward && items[j].passes_on(a, t + 1)) return items[j].entering(a);
        return items[j].sent(i);
      });
      outboxes[j].move(slot);
    }
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    items[j].store(a);
    if (!Cut::kBackward) items[j].close_at(a, t + 1);
  }
}

// The arguments of a launch: of a layer, or of each of a chain in the order of the walk.
template <class Args>
struct Chain {
  Args layers[dispatch::kMostAtOnce];
};
template <class Args>
__device__ __forceinline__ const Args& of_block(const Args& args) {
  return args;
}
template <class Args>
__device__ __forceinline__ const Args& of_block(const Chain<Args>& chain) {
  return chain.layers[blockIdx.z];
}
template <class Args, bool kChain>
using LaunchArgs = typename std::conditional<kChain, Chain<Args>, Args>::type;

template <class C, class T, bool kBackward, bool kSplit, Lines kLines, bool kChain, int kUnitBlocks,
          int kChunks, int kShared, int kFetched, int kItems>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ LaunchArgs<CudaDenseArgs<T, float>, kChain> args,
           const __grid_constant__ PersistentShape shape, std::uint32_t* const exchange) {
  constexpr bool kRagged = kLines == Lines::ragged;
  using Cut = GridCut<C, T, kBackward, kSplit, kLines, kChain, kUnitBlocks, kChunks, kShared>;
  using Part = typename Cut::Part;
  const auto& a = of_block(args);
  extern __shared__ float4 memory[];
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const Share share(a, shape, Cut::kSent, kChain);
  if constexpr (kRagged) {
    if (a.steps_of(share.own.template line<true>(0)) == 0) return;
  }
  const int steps = static_cast<int>(a.steps);
  const Index slot = share.row_words() * (kChain ? gridDim.z : 1);
  std::uint32_t* sent = exchange;
  const std::uint32_t* read = exchange;
  if constexpr (kChain) {
    sent += share.first_sent();
    read += share.first_read();
  }

  Products<Cut, kFetched> products(a, share, shape, shared, read);
  typename Cut::Unit items[kItems];
  Outbox<Cut> outboxes[kItems];
  std::uint32_t part[kItems];
  open_items<Cut>(a, share, sent, items, outboxes);
#pragma unroll
  for (int j = 0; j < kItems; ++j) part[j] = products.part(share.item(j).line, share.item(j).unit);
  const bool has_items = share.has_items();  // this warp
  if (has_items) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      outboxes[j].send([&](int) { return kBackward ? 0.0f : items[j].state.h; });
      outboxes[j].move(slot);
      items[j].fetch(a, 0);
    }
  }

  // Backward ends with a product and no step: the cotangent of the state before the first one.
  const int turns = steps + kBackward;
  [[maybe_unused]] ActiveLines<kBackward> active(a, share.own);
  for (int t = 0; t < turns; ++t) {
    int lines = share.own.count;
    if constexpr (kRagged) {
      active.drop_ended(a, share.own, t);
      if (active.count == 0) return;
      lines = active.count;
    }
    products.multiply(lines, [&](int word) {
      // After the last step nothing more comes from the layer before.
      return !kChain || !kBackward || t < steps || word >= share.others;
    });
    __syncthreads();
    products.words += slot;
    if (has_items) {
      Part totals[kItems];
#pragma unroll
      for (int j = 0; j < kItems; ++j) totals[j] = products.total(part[j]);
      take_turns<Cut>(a, t, slot, totals, items, outboxes);
#pragma unroll
      for (int j = 0; j < kItems; ++j) items[j].fetch(a, t + 1);
    }
    products.next();
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) items[j].close(a);
}

}  // namespace scanrnn::persistent
