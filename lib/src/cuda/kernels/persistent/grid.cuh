// SPDX-License-Identifier: Apache-2.0
// A dense cell's whole sequence in one kernel. R stays in registers, and blocks hand one another
// what the next product needs through memory in which every word says itself that it has come.
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

#include <algorithm>

#include "cuda/kernels/persistent/item.cuh"
#include "cuda/kernels/persistent/line_share.cuh"
#include "cuda/kernels/persistent/weights.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "scanrnn/dispatch/persistent.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

using dispatch::PersistentShape;
using dispatch::PersistentTile;
inline constexpr int kThreads = 32 * dispatch::kPersistentWarps;

// What a kernel's template arguments say: a warp has kUnitBlocks times 8 units of R, and of the sum
// kChunks pieces of 64 bytes.
template <class C, class T, bool kBackward_, bool kSplit_, bool kRagged_, bool kChain_,
          int kUnitBlocks_, int kChunks_>
struct GridCut {
  using Cell = C;
  using Type = T;
  static constexpr bool kBackward = kBackward_, kSplit = kSplit_, kRagged = kRagged_;
  static constexpr bool kChain = kChain_;
  static constexpr int kUnitBlocks = kUnitBlocks_, kChunks = kChunks_;
  static constexpr int kPerWord = Bits<T>::kPerWord;
  static constexpr int kRows = kChain ? C::kPreactivations : C::kGates;
  static constexpr int kSent = kBackward ? kRows : 1;    // values of an item that others read
  static constexpr int kBlocks = kBackward ? 1 : kRows;  // rows of weights for each unit
  static constexpr int kTiles = (kUnitBlocks * kBlocks + 1) / 2;
  static constexpr int kChains = kTiles >= 4 ? 1 : kTiles >= 2 ? 2 : 4;  // that need not wait
  using Args = CudaDenseArgs<T, float>;
  using Unit = Item<C, T, kBackward, kRagged, kChain>;
  using Part = typename Unit::Part;
  using Weights = std::uint32_t[kChunks][kTiles][2][4];
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

// The pieces of weights of a chunk, whose first word of the sum is `first_word`.
template <class Cut>
__device__ __forceinline__ void load_chunk(const typename Cut::Args& a, const Share& share,
                                           int first_word,
                                           std::uint32_t (&chunk)[Cut::kTiles][2][4]) {
  const bool own = !Cut::kChain || first_word >= share.others;
  const auto weights = WeightRows<typename Cut::Type>::of(a, own);
  if constexpr (Cut::kChain) first_word -= own ? share.others : 0;
#pragma unroll
  for (int tile = 0; tile < Cut::kTiles; ++tile)
    load_fragments(chunk[tile], [&](int half, int i) {
      const int block = 2 * tile + half;  // of 8 rows
      const int local = (share.warp_units * Cut::kUnitBlocks + block / Cut::kBlocks) * 8;
      const int unit = share.first_unit + local + share.row;
      const int word = first_word + share.quad * 4 + i;
      const int sum = Cut::kBackward ? word / share.block_words : block % Cut::kBlocks;
      const int gate = !Cut::kChain        ? sum
                       : sum >= Cut::kRows ? -1
                                           : cell::row_block<typename Cut::Cell>(sum, own);
      const int first = Cut::kBackward ? word % share.block_words : word;
      const bool exists = block < Cut::kUnitBlocks * Cut::kBlocks && local < share.units &&
                          unit < share.head.units && gate >= 0 && gate < Cut::Cell::kGates;
      return load_word<Cut::kBackward>(a, weights, share.head, gate, unit, first * Cut::kPerWord,
                                       exists);
    });
}
template <class Cut>
__device__ __forceinline__ void load_weights(const typename Cut::Args& a, const Share& share,
                                             typename Cut::Weights& weights) {
#pragma unroll
  for (int chunk = 0; chunk < Cut::kChunks; ++chunk) {
    const int first_word = (share.warp_sum * Cut::kChunks + chunk) * 16;
#pragma unroll
    for (int i = 0; i < 8 * Cut::kTiles; ++i) weights[chunk][i / 8][i / 4 % 2][i % 4] = 0;
    // Without a branch around each chunk the compiler would work out the addresses of all of them
    // before it loads the first, in more registers than there are.
    if (first_word < share.words) load_chunk<Cut>(a, share, first_word, weights[chunk]);
  }
  // Float32 is rounded once, not at every use; and not before all loads are on their way.
  using Once = fragment::Operand<Cut::kPerWord == 1 && !Cut::kSplit, false>;
#pragma unroll
  for (auto& chunk : weights)
#pragma unroll
    for (int i = 0; i < 8 * Cut::kTiles; ++i) {
      std::uint32_t& word = chunk[i / 8][i / 4 % 2][i % 4];
      word = Once(word).upper;
    }
}

// sum += pieces of R from chunk `done` on, times the words that were received for them.
template <class Cut, int kFetched>
__device__ __forceinline__ void product(const typename Cut::Weights& weights, int done,
                                        const uint4 (&v)[kFetched], typename Cut::Sums& sum) {
#pragma unroll
  for (int i = 0; i < kFetched; ++i) {
    using B = fragment::Operand<Cut::kPerWord == 1, Cut::kSplit>;
    const B b[4] = {B(v[i].x), B(v[i].y), B(v[i].z), B(v[i].w)};
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int tile = 0; tile < Cut::kTiles; ++tile)
        fragment::multiply<typename Cut::Type, Cut::kSplit>(
            sum[(2 * i + step) % Cut::kChains][tile], weights[done + i][tile][step], b[2 * step],
            b[2 * step + 1]);
  }
}
// The same for a line or two in float32, by multiply-adds, which take less time there than three
// products of tensor cores of which most columns are empty. All lanes of a row of four have the
// words of a line: of the first, or of kTwo in turn.
template <class Cut, bool kTwo, int kFetched>
__device__ __forceinline__ void add_products(const typename Cut::Weights& weights, int done,
                                             const uint4 (&v)[kFetched], typename Cut::Sums& sum) {
#pragma unroll
  for (int i = 0; i < kFetched; ++i) {
    const std::uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float own = __uint_as_float(words[w]);
      const float other = kTwo ? __uint_as_float(__shfl_xor_sync(~0u, words[w], 4)) : 0.0f;
#pragma unroll
      for (int tile = 0; tile < Cut::kTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float weight = __uint_as_float(weights[done + i][tile][w / 2][w % 2 * 2 + half]);
          float (&to)[4] = sum[0][tile];
          to[2 * half] = fmaf(weight, own, to[2 * half]);
          if (kTwo) to[2 * half + 1] = fmaf(weight, other, to[2 * half + 1]);
        }
    }
  }
}
// What four lanes have of a row's sums, as a fragment has the first two columns.
template <class Cut>
__device__ __forceinline__ void join_lanes(const Share& share, bool two, typename Cut::Sums& sum) {
  const bool swapped = two && share.row % 2 == 1;
#pragma unroll
  for (int tile = 0; tile < Cut::kTiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of[i] = sum[0][tile][2 * half + i];
        of[i] += __shfl_xor_sync(~0u, of[i], 1);
        of[i] += __shfl_xor_sync(~0u, of[i], 2);
      }
      sum[0][tile][2 * half] = swapped ? of[1] : of[0];
      sum[0][tile][2 * half + 1] = swapped ? of[0] : of[1];
    }
}
template <class Cut>
__device__ __forceinline__ void join_chains(typename Cut::Sums& sum) {
#pragma unroll
  for (int i = 1; i < Cut::kChains; ++i)
#pragma unroll
    for (int tile = 0; tile < Cut::kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[0][tile][e] += sum[i][tile][e];
}
// Leaves the sums of a lane's two lines where the parts of its first unit are.
template <class Cut>
__device__ __forceinline__ void leave(const typename Cut::Sums& sum, const Share& share,
                                      std::uint32_t to, std::uint32_t line_bytes) {
#pragma unroll
  for (int block = 0; block < Cut::kUnitBlocks; ++block) {
    if ((share.warp_units * Cut::kUnitBlocks + block) * 8 >= share.units) continue;
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      leave_sums<typename Cut::Part, Cut::kBlocks>(
          to + block * 8 * sizeof(typename Cut::Part) + column * line_bytes, sum[0],
          block * Cut::kBlocks, column);
    }
  }
}

// The sums of a unit of a line: those that the warps along the sum have left.
template <class Part>
__device__ __forceinline__ Part add_parts(std::uint32_t at, std::uint32_t apart, int count) {
  Part p[dispatch::kPersistentWarps];
#pragma unroll
  for (int i = 0; i < dispatch::kPersistentWarps; ++i) {
    p[i] = Part();
    if (i < count) load_shared(at, p[i]);
    at += apart;
  }
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

// Where a thread sends the values of an item, to every block of the group.
template <class Cut>
struct Outbox {
  bool sends;
  std::uint32_t* to[Cut::kSent];

  __device__ __forceinline__ void open(const Share& share, std::uint32_t* exchange, int line,
                                       int unit) {
    sends = line < share.own.count && unit % Cut::kPerWord == 0 &&
            unit / Cut::kPerWord < share.block_words;
#pragma unroll
    for (int i = 0; i < Cut::kSent; ++i) {
      const int word = i * share.block_words + unit / Cut::kPerWord;
      to[i] =
          exchange + (Index{word / 16} * share.lines + share.first_line + line) * 16 + word % 16;
    }
  }
  template <class Value>
  __device__ __forceinline__ void send(const Value& value, Index slot) {
#pragma unroll
    for (int i = 0; i < Cut::kSent; ++i) {
      std::uint32_t bits = Bits<typename Cut::Type>::of(value(i));
      if (Cut::kPerWord == 2) bits |= __shfl_xor_sync(~0u, bits, 1) << 16;
      if (sends) persistent::send(to[i], bits);
      to[i] += slot;
    }
  }
};

// The items of this thread, where their partial sums are, and where what they give is sent.
template <class Cut, int kItems>
__device__ __forceinline__ void open_items(const typename Cut::Args& a, const Share& share,
                                           std::uint32_t* exchange, std::uint32_t parts,
                                           std::uint32_t line_bytes,
                                           typename Cut::Unit (&items)[kItems],
                                           Outbox<Cut> (&outboxes)[kItems],
                                           std::uint32_t (&part)[kItems]) {
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int number = static_cast<int>(threadIdx.x) + j * kThreads;
    const int local = number % share.units, unit = share.first_unit + local;
    const int line = number / share.units;
    items[j].open(a, share.own.template line<Cut::kRagged>(line), share.head.first + unit,
                  line < share.own.count && unit < share.head.units);
    outboxes[j].open(share, exchange, line, unit);
    part[j] = parts +
              (line < share.own.count ? line * line_bytes + local * sizeof(typename Cut::Part) : 0);
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
      outboxes[j].send([&](int i) { return items[j].sent(i); }, slot);
    }
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    items[j].store(a);
    if (!Cut::kBackward) items[j].close_at(a, t + 1);
  }
}

// The lines of a group that are still walked. They end one after the other, the last one first, and
// of each the group waits for its words at turns before `end`.
template <class Cut>
struct ActiveLines {
  int count, end;

  __device__ __forceinline__ ActiveLines(const typename Cut::Args& a, const LineShare& own)
      : count(own.count) {
    look(a, own);
  }
  __device__ __forceinline__ void drop_ended(const typename Cut::Args& a, const LineShare& own,
                                             int t) {
    while (count > 0 && end <= t) {
      --count;
      look(a, own);
    }
  }

 private:
  __device__ __forceinline__ void look(const typename Cut::Args& a, const LineShare& own) {
    if (count == 0) return;
    const int steps = static_cast<int>(a.steps_of(own.line<true>(count - 1)));
    end = steps > 0 ? steps + Cut::kBackward : 0;
  }
};

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

template <class C, class T, bool kBackward, bool kSplit, bool kRagged, bool kChain, int kUnitBlocks,
          int kChunks, int kFetched, int kItems>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ LaunchArgs<CudaDenseArgs<T, float>, kChain> args,
           const __grid_constant__ PersistentShape shape, std::uint32_t* const exchange) {
  using Cut = GridCut<C, T, kBackward, kSplit, kRagged, kChain, kUnitBlocks, kChunks>;
  using Part = typename Cut::Part;
  const auto& a = of_block(args);
  extern __shared__ float4 memory[];
  const auto parts = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
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

  typename Cut::Weights weights;
  load_weights<Cut>(a, share, weights);

  const std::uint32_t line_bytes = 4u * shape.line_floats;
  const std::uint32_t warp_bytes = (share.own.count + 1) / 2 * 2 * line_bytes;
  typename Cut::Unit items[kItems];
  Outbox<Cut> outboxes[kItems];
  std::uint32_t part[kItems];
  open_items<Cut>(a, share, sent, parts, line_bytes, items, outboxes, part);
  const bool has_items =
      static_cast<int>(threadIdx.x / 32 * 32) < share.units * share.own.count;  // this warp
  if (has_items) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      outboxes[j].send([&](int) { return kBackward ? 0.0f : items[j].state.h; }, slot);
      items[j].fetch(a, 0);
    }
  }

  const int first_word = share.warp_sum * kChunks * 16 + share.quad * 4;
  const std::uint32_t* words_in =
      read + (Index{share.warp_sum * kChunks} * share.lines + share.first_line + share.row) * 16 +
      share.quad * 4;
  const int chunk_words = share.lines * 16;
  const std::uint32_t own_parts =
      parts + share.warp_sum * warp_bytes + 2 * share.quad * line_bytes +
      (share.warp_units * kUnitBlocks * 8 + share.row) * static_cast<int>(sizeof(Part));
  const std::uint32_t half_bytes = share.warps_along_sum * warp_bytes;
  std::uint32_t half = 0;  // which of two sets of partial sums, so that one barrier is enough
  // Backward ends with a product and no step: the cotangent of the state before the first one.
  const int turns = steps + kBackward;
  [[maybe_unused]] ActiveLines<Cut> active(a, share.own);
  for (int t = 0; t < turns; ++t) {
    int lines = share.own.count;
    if constexpr (kRagged) {
      active.drop_ended(a, share.own, t);
      if (active.count == 0) return;
      lines = active.count;
    }
    const bool few = kSplit && lines <= dispatch::kPersistentFewLines, two = lines > 1;
    for (int first = 0; first < lines; first += 8) {
      const int line = few ? share.row % (two ? 2 : 1) : first + share.row;
      typename Cut::Sums sum = {};
#pragma unroll
      for (int done = 0; done < kChunks; done += kFetched) {
        uint4 v[kFetched];
        bool waits[kFetched];
#pragma unroll
        for (int i = 0; i < kFetched; ++i) {
          const int word = first_word + (done + i) * 16;
          waits[i] = line < lines && word < share.words;
          // After the last step nothing more comes from the layer before.
          if (kChain && kBackward) waits[i] = waits[i] && (t < steps || word >= share.others);
        }
        receive(words_in + (line - share.row) * 16 + Index{done} * chunk_words, chunk_words, waits,
                v);
        if (!few) {
          product<Cut>(weights, done, v, sum);
        } else if (two) {
          add_products<Cut, true>(weights, done, v, sum);
        } else {
          add_products<Cut, false>(weights, done, v, sum);
        }
      }
      if (few) {
        join_lanes<Cut>(share, two, sum);
      } else {
        join_chains<Cut>(sum);
      }
      if (first + 2 * share.quad < lines) {
        leave<Cut>(sum, share, own_parts + half + first * line_bytes, line_bytes);
      }
    }
    __syncthreads();
    words_in += slot;
    if (has_items) {
      Part totals[kItems];
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        totals[j] = add_parts<Part>(part[j] + half, warp_bytes, share.warps_along_sum);
      }
      take_turns<Cut>(a, t, slot, totals, items, outboxes);
#pragma unroll
      for (int j = 0; j < kItems; ++j) items[j].fetch(a, t + 1);
    }
    half = half_bytes - half;
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) items[j].close(a);
}

}  // namespace scanrnn::persistent
