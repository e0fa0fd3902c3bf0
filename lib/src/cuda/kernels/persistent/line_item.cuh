// SPDX-License-Identifier: Apache-2.0
// One unit of one line on its way through a walk by whole lines (recurrence/line.h) that is one
// kernel: what both directions have of it.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"

namespace scanrnn::persistent {

using fragment::Bits;

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
  std::uint32_t stays = 0;  // what is drawn for some steps
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
  // They are made for as many steps as have one number here, at the first of them that is walked.
  __device__ __forceinline__ static int place(int t) {
    const int place = t % MadeDraws::kSteps;
    return kBackward ? MadeDraws::kSteps - 1 - place : place;
  }
  __device__ __forceinline__ void make_draws(const Args& a, int t, bool begins) {
    if (place(t) != 0 && !begins) return;
    const Index first = own.step(kBackward ? t + place(t) : t - place(t));
    const DenseDraws of{a.masks, a.masks.token + own.line * a.masks.line + first * a.masks.step,
                        a.lines.reverse != kBackward ? -a.masks.step : a.masks.step};
    if (of && exists) stays = MadeDraws::make(of, unit);
  }
  __device__ __forceinline__ MadeDraws drawn(const Args& a, int t) const {
    return {a.masks, stays >> place(t)};
  }
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

}  // namespace scanrnn::persistent
