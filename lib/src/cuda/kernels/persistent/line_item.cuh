// SPDX-License-Identifier: Apache-2.0
// One unit of one line on its way through a walk by whole lines (recurrence/line.h) that is one
// kernel: what it reads ahead of its use, its share of a step between the exchanges of its line,
// and what it stores. kNormed: norms of R h, and of c where there is one; else h is reset before
// the last product.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"

namespace scanrnn::persistent {

using fragment::Bits;

// What both directions have.
template <class C, class T, bool kBackward>
struct LineItem {
  using Args = LineArgs<T, float>;
  using Memory = scan::Units<T>;
  using Unit = LineUnit<C, float>;
  using Sums = DenseSums<C, float>;
  using State = DenseState<C, float>;
  static constexpr int kGates = C::kGates;

  // From a step to the one that is walked next.
  template <class V>
  __device__ __forceinline__ static Index along(const Strided<V>& tokens, const Args& a) {
    return a.lines.reverse != kBackward ? -tokens.step : tokens.step;
  }
  // Where the unit has its values of a step, walked with the steps. Where a tensor is absent, or a
  // step, the place is never read.
  template <class U>
  struct Place {
    U* data;

    template <class V>
    __device__ __forceinline__ void open(const Strided<V>& tokens, const LineItem& item, int t) {
      data = tokens.at_line(item.own.line).at(item.own.step(t)) + item.unit;
    }
    template <class V>
    __device__ __forceinline__ void next(const Strided<V>& tokens, const Args& a) {
      data += along(tokens, a);
    }
    __device__ __forceinline__ std::uint32_t load(int block, const Args& a) const {
      return Bits<T>::load(data + block * a.hidden);
    }
    __device__ __forceinline__ void store(int block, const Args& a, float value) const {
      Memory::write(data + block * a.hidden, 0, a.hidden, value);
    }
  };

  SequenceWalk own;
  int line, unit;
  bool exists;
  std::uint8_t flag;
  std::uint32_t stays = 0;  // what is drawn for a step
  float scale[kGates];      // of the norm of R h
  float c_scale, c_bias;    // of that of c

  __device__ __forceinline__ void open_at(const Args& a, int at_line, int at_unit, bool there) {
    exists = there;
    line = exists ? at_line : 0;
    unit = exists ? at_unit : 0;
    own = a.lines.of(line);
    flag = 0;
    const auto read = [&](const T* values, int row) {
      return values ? static_cast<float>(values[row * a.hidden + unit]) : 0.0f;
    };
#pragma unroll
    for (int i = 0; i < kGates; ++i) scale[i] = read(a.norm, i);
    c_scale = read(a.norm_c, 0);
    c_bias = read(a.norm_c_bias, 0);
  }
  __device__ __forceinline__ bool walks(int t) const { return exists && t < own.count; }
  __device__ __forceinline__ bool cut() const { return flag != 0; }
  __device__ __forceinline__ void fetch_flag(const Args& a, int t) {
    if (!a.lines.reset.data) return;
    const std::uint8_t* const at = own.cut_at(t);
    flag = at ? *at : 0;
  }
  __device__ __forceinline__ void make_draws(const Args& a, int t) {
    const DenseDraws of{a.masks,
                        a.masks.token + own.line * a.masks.line + own.step(t) * a.masks.step};
    if (of && walks(t)) stays = MadeDraws::make(of, unit);
  }
  __device__ __forceinline__ MadeDraws drawn(const Args& a) const { return {a.masks, stays}; }
  // The state that one launch leaves for the next, or the loop for it.
  __device__ __forceinline__ State carried(const Args& a) const {
    return State::of([&](int i) { return (i == 0 ? a.h : a.c)[line * a.hidden + unit]; });
  }
  __device__ __forceinline__ void carry(const Args& a, const State& state) const {
    if (!exists) return;
    for (int i = 0; i < C::kStates; ++i) {
      (i == 0 ? a.h : a.c)[line * a.hidden + unit] = state.at(i);
    }
  }
  __device__ __forceinline__ float read(const Strided<T>& state) const {
    return state.data ? static_cast<float>(state.at_line(line).data[unit]) : 0.0f;
  }
};

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
    draw_update<C, Memory>(this->drawn(a), this->unit, state, after);
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

// `state` is the cotangent of the state after the step, then of that before it.
template <class C, class T, bool kNormed>
struct LineBackward : LineItem<C, T, true> {
  using Base = LineItem<C, T, true>;
  using Base::kGates;
  using typename Base::Args;
  using typename Base::Memory;
  using typename Base::State;
  using typename Base::Sums;
  using typename Base::Unit;
  using Part = float;
  static constexpr bool kNormsC = kNormed && C::kStates == 2;
  template <class U>
  using Place = typename Base::template Place<U>;

  State state, before, d;
  Sums sums;
  DenseCotangent<C, float> back;
  float past[2], output_gate, seen, normed_c, reset;
  float norms[kGates], draw[kGates];  // of R h
  std::uint32_t in[C::kPreactivations], states[C::kStates], raw[kGates], dy;
  float4 moments;
  Place<const T> sums_from, raw_from, dy_from, states_from[C::kStates];
  const float* moments_from;
  Place<T> dsums, draw_to, dnorm, dnorm_c, before_to, reset_to;

  // The last step of a launch comes first.
  __device__ __forceinline__ void open(const Args& a, int line, int unit, bool exists, int last) {
    this->open_at(a, line, unit, exists);
    // A line that ends earlier begins later.
    const int begin = min(last, static_cast<int>(this->own.count) - 1);
    sums_from.open(a.sums, *this, begin);
    raw_from.open(a.raw, *this, begin);
    dy_from.open(a.dy, *this, begin);
#pragma unroll
    for (int i = 0; i < C::kStates; ++i)
      states_from[i].open(i == 0 ? a.y : a.cells, *this, begin - 1);
    moments_from = a.moments.at_line(this->own.line).at(this->own.step(begin));
    dsums.open(a.dsums, *this, begin);
    draw_to.open(a.draw, *this, begin);
    dnorm.open(a.dnorm, *this, begin);
    dnorm_c.open(a.dnorm_c, *this, begin);
    before_to.open(a.before, *this, begin);
    reset_to.open(a.reset, *this, begin);
    state = State::of([](int) { return 0.0f; });
    if (exists && last + 1 < this->own.count) state = this->carried(a);
  }
  __device__ __forceinline__ void fetch(const Args& a, int t) {
    if (t < 0 || !this->walks(t)) return;
#pragma unroll
    for (int i = 0; i < C::kPreactivations; ++i) in[i] = sums_from.load(i, a);
    sums_from.next(a.sums, a);
#pragma unroll
    for (int i = 0; i < C::kStates; ++i) {
      const Strided<T>& initial = i == 0 ? a.h0 : a.c0;
      if (t == 0) {
        states[i] = initial.data ? Bits<T>::load(initial.at_line(this->line).data + this->unit) : 0;
        continue;
      }
      states[i] = states_from[i].load(0, a);
      states_from[i].next(i == 0 ? a.y : a.cells, a);
    }
    dy = a.dy.data ? dy_from.load(0, a) : 0;
    dy_from.next(a.dy, a);
    this->fetch_flag(a, t);
    this->make_draws(a, t);
    if constexpr (kNormed) {
#pragma unroll
      for (int i = 0; i < kGates; ++i) raw[i] = raw_from.load(i, a);
      raw_from.next(a.raw, a);
      moments = *reinterpret_cast<const float4*>(moments_from);
      moments_from += this->along(a.moments, a);
    }
  }
  // The step back as far as the norm of c, or to the products with R.
  __device__ __forceinline__ void begin(const Args& a, int t) {
    if (t + 1 == this->own.count && this->exists) {
      state = State::of([&](int i) { return this->read(i == 0 ? a.hn : a.cn); });
    }
    sums = Sums::of([&](int i) { return Bits<T>::value(in[i]); });
    before = State::of([&](int i) { return this->cut() ? 0.0f : Bits<T>::value(states[i]); });
    d = state;
    d.h += Bits<T>::value(dy);
    const auto kept = draw_update_vjp<C, Memory>(this->drawn(a), this->unit, d);
    past[0] = kept.h;
    past[1] = kept.c;
    if constexpr (kNormed) {
      const Moments<float> norm{moments.x, moments.y};
#pragma unroll
      for (int i = 0; i < kGates; ++i) norms[i] = norm(Bits<T>::value(raw[i]));
    }
    if constexpr (kNormsC) {
      const Moments<float> norm{moments.z, moments.w};
      const auto by = C::template values<float>(sums.gates());
      normed_c = norm(C::template remember<float>(by, before.c));
      const auto out =
          Unit::output_vjp(sums, Unit::normed(normed_c, this->c_scale, this->c_bias), d);
      output_gate = out.s;
      seen = out.c;
    } else {
      back = Unit::step_vjp(sums, before, d, !kNormed);
      pass_on();
    }
  }
  // What the norms' means over the line are of.
  __device__ __forceinline__ float2 of_c() const {
    const float through = seen * this->c_scale;
    return make_float2(through, through * normed_c);
  }
  __device__ __forceinline__ void remember(const float2& means) {
    const Moments<float> norm{moments.z, moments.w};
    const float dc = d.c + norm_back(norm, means.x, means.y, normed_c, seen * this->c_scale);
    back = Unit::remember_vjp(sums, before, dc, output_gate);
    pass_on();
  }
  // The cotangent of row block i of what R's products, or their norms, add to the sums.
  __device__ __forceinline__ float recurrent(int i) const {
    return this->cut() ? 0.0f : back.sums.recurrent(i);
  }
  __device__ __forceinline__ float2 of_products() const {
    float2 out = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kGates; ++i) {
      const float through = recurrent(i) * this->scale[i];
      out.x += through;
      out.y = fmaf(through, norms[i], out.y);
    }
    return out;
  }
  __device__ __forceinline__ void multiply_norms(const float2& means) {
    const Moments<float> norm{moments.x, moments.y};
#pragma unroll
    for (int i = 0; i < kGates; ++i) {
      draw[i] = norm_back(norm, means.x, means.y, norms[i], recurrent(i) * this->scale[i]);
    }
  }
  // From the cotangent of what the last row blocks of R multiplied.
  __device__ __forceinline__ void reset_vjp(float total) {
    const auto gates = sums.gates();
    const auto own = C::template reset_vjp<float>(gates, before.h, this->cut() ? 0.0f : total);
    reset = C::template reset<float>(gates, before.h);
    // The reset gate is the one whose cotangent the step has left out.
    C::template scatter<float>(own.gates, [&](int i, float value) {
      if (i == 0) back.sums.value[0] = value;
    });
    state.h += own.before.h;
  }
  // What the next product reads.
  __device__ __forceinline__ float sent(int t, int i) const {
    return !this->walks(t) ? 0.0f : kNormed ? draw[i] : recurrent(i);
  }
  // What is known once begin(), remember() and all of the step is done.
  __device__ __forceinline__ void store_begun(const Args& a, int t) {
    if (!this->walks(t)) return;
    before_to.store(0, a, before.h);
    before_to.next(a.before, a);
    if constexpr (kNormsC) {
      dnorm_c.store(0, a, seen * normed_c);
      dnorm_c.store(1, a, seen);
      dnorm_c.next(a.dnorm_c, a);
    }
  }
  __device__ __forceinline__ void store_sums(const Args& a, int t) {
    if (!this->walks(t)) return;
    back.sums.template write<Memory>(dsums.data, 0, a.hidden);
    dsums.next(a.dsums, a);
    if constexpr (kNormed) {
#pragma unroll
      for (int i = 0; i < kGates; ++i) dnorm.store(i, a, recurrent(i) * norms[i]);
      dnorm.next(a.dnorm, a);
    }
    if constexpr (C::kStates == 2) {
      if (t > 0 || !a.dc0.data) return;
      Memory::write(a.dc0.at_line(this->line).data, this->unit, a.hidden, state.c);
    }
  }
  __device__ __forceinline__ void store_products(const Args& a, int t) {
    if (!this->walks(t)) return;
    if constexpr (!kNormed) {
      reset_to.store(0, a, reset);
      reset_to.next(a.reset, a);
    } else {
#pragma unroll
      for (int i = 0; i < kGates; ++i) draw_to.store(i, a, draw[i]);
      draw_to.next(a.draw, a);
    }
  }
  // The products with R: what they add to the cotangent of the state before the step.
  __device__ __forceinline__ void take(float total) { state.h += total; }

 private:
  // To the state before, but for what comes through R.
  __device__ __forceinline__ void pass_on() {
    state = State::of([&](int i) { return this->cut() ? 0.0f : back.before.at(i) + past[i]; });
  }
};

}  // namespace scanrnn::persistent
