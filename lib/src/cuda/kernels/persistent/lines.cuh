// SPDX-License-Identifier: Apache-2.0
// A walk by whole lines (recurrence/line.h) in one kernel: R and its products are those of
// grid.cuh, and between the products of a step the blocks of a group exchange once more. A step is
//   normed  product -> moments of R h -> sums -> [moments of c ->] step; what comes back through a
//           norm is two means over the line
//   reset   product -> r h, which is sent -> product of it -> step; backward the last row blocks'
//           cotangents are sent before the others, whose r needs what they give
// The lines are the sequences as they are told; who has ended sends on, and leaves nothing.
#pragma once

#include "cuda/kernels/persistent/line_backward.cuh"
#include "cuda/kernels/persistent/line_forward.cuh"
#include "cuda/kernels/persistent/line_totals.cuh"
#include "cuda/kernels/persistent/outbox.cuh"
#include "cuda/kernels/persistent/products.cuh"

namespace scanrnn::persistent {

// What a block does in turn, all of its threads.
template <class Cut, bool kNormed, int kFetched, int kItems>
struct LineTurns {
  using C = typename Cut::Cell;
  using T = typename Cut::Type;
  using Item = typename std::conditional<Cut::kBackward, LineBackward<C, T, kNormed>,
                                         LineForward<C, T, kNormed>>::type;
  using Args = LineArgs<T, float>;
  static constexpr bool kNormsC = kNormed && C::kStates == 2;
  static constexpr int kGates = C::kGates, kInOrder = Item::Unit::kInOrder;

  const Args& a;
  int first_line;  // of the launch
  const Share& share;
  Products<Cut, kFetched>& products;
  LineTotals<kItems>& totals;
  Index slot;  // words of the exchange from one row to the next
  bool has_items;
  Item items[kItems];
  Outbox<Cut> outboxes[kItems];
  std::uint32_t part[kItems];

  __device__ __forceinline__ void open(std::uint32_t* exchange, int t) {
    has_items = share.has_items();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const auto [line, local] = share.item(j);
      const int unit = share.first_unit + local;
      items[j].open(a, first_line + share.own.template line<false>(line), unit,
                    line < share.own.count && unit < share.head.units, t);
      items[j].fetch(a, t);
      outboxes[j].open(share, exchange, line, unit);
      part[j] = products.part(line, local);
    }
  }
  __device__ __forceinline__ void close() {
    if (!has_items) return;
    each([&](Item& item, int) { item.carry(a, item.state); });
  }
  // A product of what lies in the next row, where reads(word) says so; then use() by the warps that
  // have items, to which total(j) is what the product gave.
  template <class Reads, class Use>
  __device__ __forceinline__ void multiply(Reads&& reads, Use&& use) {
    products.multiply(share.own.count, reads);
    __syncthreads();
    products.words += slot;
    if (has_items) use();
    __syncthreads();  // who has no items would ask in vain, and take the others' way to memory
    products.next();
  }
  __device__ __forceinline__ typename Cut::Part total(int j) const {
    return products.total(part[j]);
  }
  // What waits for nobody is done while words are on their way: it is stored late, read early.
  __device__ __forceinline__ void forward(int first, int end) {
    const auto all = [](int) { return true; };
    if (has_items) send_h();
    for (int t = first; t < end; ++t) {
      if constexpr (!kNormed) {
        multiply(all, [&] {
          each([&](Item& item, int j) {
            item.take(total(j));
            const float h = item.reset();
            outboxes[j].send([&](int) { return h; });
            outboxes[j].move(slot);
          });
          store_and_draw(t, first);
        });
      }
      multiply(all, [&] {
        if constexpr (kNormed) {
          sum_up(t, first);
        } else {
          each([&](Item& item, int j) {
            item.template take<kInOrder, kGates>(total(j));
            item.add_products();
          });
        }
        step(t);
        totals.move(slot);
        if (t + 1 < end) {
          send_h();
          if (kNormed) totals.expect();
        }
        if constexpr (!kNormsC) fetch(t + 1);
      });
    }
    if (has_items) store_step(end - 1, first);
  }

  __device__ __forceinline__ void backward(int first, int end) {
    for (int t = end - 1; t >= first; --t) {
      if (has_items) step_back(t);
      if constexpr (!kNormed) {
        multiply([&](int word) { return word >= kInOrder * share.block_words; },
                 [&] {
                   each([&](Item& item, int j) { item.reset_vjp(total(j)); });
                   send<0, kInOrder>(t);
                   each([&](Item& item, int) { item.store_sums(a, t); });
                   store_and_fetch(t);
                 });
      }
      multiply([&](int word) { return kNormed || word < kInOrder * share.block_words; },
               [&] { each([&](Item& item, int j) { item.take(total(j)); }); });
    }
  }

 private:
  // ---- by the warps that have items

  template <class F>
  __device__ __forceinline__ void each(F&& use) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) use(items[j], j);
  }
  __device__ __forceinline__ void send_h() {
    each([&](Item& item, int j) {
      outboxes[j].send([&](int) { return item.state.h; });
      outboxes[j].move(slot);
    });
  }
  __device__ __forceinline__ void fetch(int t) {
    each([&](Item& item, int) { item.fetch(a, t); });
  }
  __device__ __forceinline__ void store_step(int t, int first) {
    if (t < first) return;
    each([&](Item& item, int) { item.store(a, t); });
  }
  __device__ __forceinline__ void store_and_draw(int t, int first) {
    store_step(t - 1, first);
    each([&](Item& item, int) { item.make_draws(a, t, t == first); });
  }
  // The sums of a normed R h.
  __device__ __forceinline__ void sum_up(int t, int first) {
    each([&](Item& item, int j) {
      item.take(total(j));
      totals.template send_moments<0>(j, item.products);
    });
    store_and_draw(t, first);
    each([&](Item& item, int) { item.store_products(a, t); });
    float2 norm[kItems];
    totals.template receive<0, true, kGates>(norm);
    each([&](Item& item, int j) { item.add_normed({norm[j].x, norm[j].y}); });
  }
  __device__ __forceinline__ void step(int t) {
    if constexpr (kNormsC) {
      float c[kItems][1];
      each([&](Item& item, int j) {
        c[j][0] = item.remember();
        totals.template send_moments<1>(j, c[j]);
      });
      fetch(t + 1);
      float2 norm[kItems];
      totals.template receive<1, true, 1>(norm);
      each([&](Item& item, int j) {
        item.finish(a, t, item.output(c[j][0], {norm[j].x, norm[j].y}));
      });
    } else {
      each([&](Item& item, int) { item.finish(a, t, item.step()); });
    }
  }
  // As far as what the next product reads, which is sent.
  __device__ __forceinline__ void step_back(int t) {
    each([&](Item& item, int) { item.begin(a, t); });
    float2 means[kItems];
    if constexpr (kNormsC) {
      each([&](Item& item, int j) { send_sums<1>(j, t, item.of_c()); });
      each([&](Item& item, int) { item.store_begun(a, t); });
      totals.template receive<1, false, 1>(means);
      each([&](Item& item, int j) { item.remember(means[j]); });
    }
    if constexpr (kNormed) {
      each([&](Item& item, int j) { send_sums<0>(j, t, item.of_products()); });
      each([&](Item& item, int) {
        if (!kNormsC) item.store_begun(a, t);
        item.store_sums(a, t);
      });
      totals.template receive<0, false, kGates>(means);
      each([&](Item& item, int j) { item.multiply_norms(means[j]); });
      totals.move(slot);
      send<0, kGates>(t);
      totals.expect();
      store_and_fetch(t);
    } else {
      send<kInOrder, kGates>(t);
      each([&](Item& item, int) { item.store_begun(a, t); });
    }
  }
  __device__ __forceinline__ void store_and_fetch(int t) {
    each([&](Item& item, int) {
      item.store_products(a, t);
      item.fetch(a, t - 1);
    });
  }
  template <int kWhich>
  __device__ __forceinline__ void send_sums(int j, int t, const float2& own) {
    totals.template send_sums<kWhich>(j, items[j].walks(t) ? own : make_float2(0.0f, 0.0f));
  }
  // Row blocks [first,end) of the cotangents of R h.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void send(int t) {
    each([&](Item& item, int j) {
      outboxes[j].template send<kFirst, kEnd>([&](int i) { return item.sent(t, i); });
      outboxes[j].move(slot);
    });
  }
};

template <class C, class T, bool kBackward, bool kSplit, bool kNormed, int kUnitBlocks, int kChunks,
          int kShared, int kFetched, int kItems>
__global__ void __launch_bounds__(kThreads, 1)
    lines(const __grid_constant__ CudaLineArgs<T, float> args,
          const __grid_constant__ PersistentShape shape, std::uint32_t* const exchange) {
  using Cut = GridCut<C, T, kBackward, kSplit, Lines::whole, false, kUnitBlocks, kChunks, kShared>;
  extern __shared__ float4 memory[];
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const Share share(args, shape, Cut::kSent, false);
  const int first = static_cast<int>(args.first);
  int end = first;  // of the group's longest line
  for (int i = 0; i < share.own.count; ++i) {
    const Index count = args.walk.lines.count(args.first_line + share.own.template line<false>(i));
    end = max(end, static_cast<int>(min(count, args.end)));
  }
  if (end == first) return;

  const Index row = share.row_words();
  LineTotals<kItems> totals(share, exchange + row);
  Products<Cut, kFetched> products(args, share, shape, shared, exchange);
  LineTurns<Cut, kNormed, kFetched, kItems> turns{args.walk, static_cast<int>(args.first_line),
                                                  share,     products,
                                                  totals,    row + (kNormed ? totals.words() : 0)};
  turns.open(exchange, kBackward ? end - 1 : first);
  if constexpr (kBackward) {
    turns.backward(first, end);
  } else {
    turns.forward(first, end);
  }
  turns.close();
}

}  // namespace scanrnn::persistent
