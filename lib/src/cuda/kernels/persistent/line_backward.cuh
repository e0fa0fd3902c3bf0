// SPDX-License-Identifier: Apache-2.0
// The same backward: see line_forward.cuh.
#pragma once

#include "cuda/kernels/persistent/line_item.cuh"

namespace scanrnn::persistent {

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
    this->make_draws(a, last, true);
    state = State::of([](int) { return 0.0f; });
    if (exists && last + 1 < this->own.count) state = this->carried(a);
  }
  __device__ __forceinline__ void fetch(const Args& a, int t) {
    if (t < 0) return;
    this->make_draws(a, t, false);
    if (!this->walks(t)) return;
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
    const auto kept = draw_update_vjp<C, Memory>(this->drawn(a, t), this->unit, d);
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
    if (!this->cut()) state.h += own.before.h;  // zero times a gate that is no number would be none
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
