// SPDX-License-Identifier: Apache-2.0
// A unit of a walk by whole lines forward: what it reads ahead of its use, its share of a step
// between the exchanges of its line, and what it stores. kNormed: norms of R h, and of c where
// there is one; else h is reset before the last product.
#pragma once

#include "cuda/kernels/persistent/line_item.cuh"

namespace scanrnn::persistent {

template <class C, class T, bool kNormed>
struct LineForward : LineItem<C, T, false> {
  using Base = LineItem<C, T, false>;
  using Base::kGates;
  using typename Base::Args;
  using typename Base::Memory;
  using typename Base::State;
  using typename Base::Sums;
  using typename Base::Unit;
  using Part = float4;

  State state;
  Sums bias, sums;
  float products[kGates];
  std::uint32_t in[kGates];
  typename Base::template Place<const T> projected;
  typename Base::template Place<T> y, kept, cells, raw;

  __device__ __forceinline__ void open(const Args& a, int line, int unit, bool exists, int first) {
    this->open_at(a, line, unit, exists);
    projected.open(a.projected, *this, first);
    y.open(a.y, *this, first);
    kept.open(a.sums, *this, first);
    cells.open(a.cells, *this, first);
    raw.open(a.raw, *this, first);
    bias = Sums::template of_biases<Memory>(a.bias, a.recurrent_bias, this->unit, a.hidden);
    state = State::of([](int) { return 0.0f; });
    if (!this->walks(first)) return;
    state = first > 0 ? this->carried(a)
                      : State::of([&](int i) { return this->read(i == 0 ? a.h0 : a.c0); });
  }
  __device__ __forceinline__ void fetch(const Args& a, int t) {
    if (!this->walks(t)) return;
#pragma unroll
    for (int i = 0; i < kGates; ++i) in[i] = projected.load(i, a);
    projected.next(a.projected, a);
    this->fetch_flag(a, t);
  }
  // The products with R: row blocks [first,end) of them.
  template <int kFirst = 0, int kEnd = kGates>
  __device__ __forceinline__ void take(const Part& total) {
    const float of[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) products[i] = this->cut() ? 0.0f : of[i];
  }
  // What the product with the last row blocks of R reads.
  __device__ __forceinline__ float reset() const {
    const auto own = sums_of([&](int i) { return i < Unit::kInOrder ? products[i] : 0.0f; });
    return C::template reset<float>(own.gates(), this->cut() ? 0.0f : state.h);
  }
  __device__ __forceinline__ void add_products() {
    enter(sums_of([&](int i) { return products[i]; }));
  }
  __device__ __forceinline__ void add_normed(const Moments<float>& norm) {
    enter(sums_of([&](int i) { return this->cut() ? 0.0f : this->scale[i] * norm(products[i]); }));
  }
  __device__ __forceinline__ float remember() const {
    return C::template remember<float>(C::template values<float>(sums.gates()), state.c);
  }
  __device__ __forceinline__ State output(float c, const Moments<float>& norm) const {
    State after;
    after.h = C::template output<float>(C::template values<float>(sums.gates()),
                                        Unit::normed(norm(c), this->c_scale, this->c_bias));
    after.c = c;
    return after;
  }
  __device__ __forceinline__ State step() const {
    return C::template step<float>(Unit::seen(sums, !kNormed), state);
  }
  __device__ __forceinline__ void finish(const Args& a, int t, State after) {
    if (!this->walks(t)) return;
    draw_update<C, Memory>(this->drawn(a, t), this->unit, state, after);
    state = after;
  }
  __device__ __forceinline__ void store_products(const Args& a, int t) {
    if (!this->walks(t) || !a.raw.data) return;
#pragma unroll
    for (int i = 0; i < kGates; ++i) raw.store(i, a, products[i]);
    raw.next(a.raw, a);
  }
  // The step is over, the next one has not been entered.
  __device__ __forceinline__ void store(const Args& a, int t) {
    if (!this->walks(t)) return;
    const bool keeps = a.sums.data;
    const DenseSink<C, Memory> sink{y.data, keeps ? kept.data : nullptr, cells.data, a.hidden};
    sink.store(0, sums, state);
    y.next(a.y, a);
    if (keeps) {
      kept.next(a.sums, a);
      if (C::kStates == 2) cells.next(a.cells, a);
    }
    if (t + 1 != this->own.count) return;
#pragma unroll
    for (int i = 0; i < C::kStates; ++i) {
      const Strided<T>& to = i == 0 ? a.hn : a.cn;
      if (to.data) Memory::write(to.at_line(this->line).data, this->unit, a.hidden, state.at(i));
    }
  }

 private:
  template <class Product>
  __device__ __forceinline__ Sums sums_of(const Product& product) const {
    Sums out = bias;
    out.add_input([&](int i) { return Bits<T>::value(in[i]); });
    out.add_recurrent(product);
    return out;
  }
  __device__ __forceinline__ void enter(const Sums& own) {
    sums = own;
    if (this->cut()) state = fresh_state<C, float>();
  }
};

}  // namespace scanrnn::persistent
