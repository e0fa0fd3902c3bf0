// SPDX-License-Identifier: Apache-2.0
// One unit of one line on its way through all steps of a persistent kernel: what it reads ahead of
// its use, its step, and what it stores once others have been sent what they wait for.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"

namespace scanrnn::persistent {

using fragment::Bits;

template <class C, class T, bool kBackward>
struct Item {
  using Args = CudaDenseArgs<T, float>;
  // Of the products with R: forward those of the unit's gates, backward one.
  using Part = typename std::conditional<kBackward, float, float4>::type;
  static constexpr int kSums = C::kPreactivations;
  static constexpr int kRead = kBackward ? kSums : C::kGates;
  static_assert(C::kGates <= 4, "a unit's sums are one float4");

  int line, unit;
  bool live;  // an item past the last one takes part and leaves nothing
  float h, c;
  float bias[kBackward ? 1 : kSums], direct;
  float values[kSums];  // the sums, backward their cotangents
  std::uint32_t in[kRead], before, dy;
  Strided<const T> sums, from, cotangents;
  Strided<T> kept, y, cells;

  __device__ __forceinline__ void open(const Args& a, int at_line, int at_unit, bool exists) {
    line = at_line;
    unit = at_unit;
    live = exists;
    sums = a.sums.at_line(line).from(unit, 0);
    kept = a.kept.at_line(line).from(unit, 0);
    y = a.y.at_line(line).from(unit, 0);
    cells = a.cells.at_line(line).from(unit, 0);
    from = a.before.at_line(line).from(unit, 0);
    cotangents = a.dy.at_line(line).from(unit, 0);
    h = live ? a.h_from.read(line, unit) : 0.0f;
    c = live && C::kPair ? a.c_from.read(line, unit) : 0.0f;
    direct = 0.0f;
    if constexpr (!kBackward) load_biases<C>(a, live ? unit : 0, bias);
  }
  // What step t reads; its sums by themselves, for who reads them further ahead.
  __device__ __forceinline__ void fetch_sums(const Args& a, int t, std::uint32_t (&to)[kRead]) {
    if (!live || t >= static_cast<int>(a.steps)) return;
#pragma unroll
    for (int i = 0; i < kRead; ++i) to[i] = Bits<T>::load(sums.data + i * a.hidden);
    sums.next();
  }
  __device__ __forceinline__ void fetch(const Args& a, int t) {
    const int steps = static_cast<int>(a.steps);
    fetch_sums(a, t, in);
    if (!kBackward || !live || t >= steps) return;
    dy = cotangents.data ? Bits<T>::load(cotangents.data) : 0;
    if (cotangents.data) cotangents.next();
    if (t + 1 == steps) from = a.initial.at_line(line).from(unit, 0);
    before = from.data ? Bits<T>::load(from.data) : 0;
    if (t + 1 < steps) from.next();
  }
  __device__ __forceinline__ void step(int t, const Part& total) {
    if constexpr (!kBackward) {
      const float products[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        values[i] = bias[i];
        if (i < C::kGates) values[i] += Bits<T>::value(in[i]);
      }
#pragma unroll
      for (int i = 0; i < C::kGates; ++i) values[cell::recurrent_sum<C>(i)] += products[i];
      const auto gates = C::template gather<float>([&](int i) { return values[i]; });
      const auto after = C::template step<float>(gates, {h, c});
      h = live ? after.h : 0.0f;
      c = live ? after.c : 0.0f;
    } else {
      const auto gates = C::template gather<float>([&](int i) { return Bits<T>::value(in[i]); });
      const float dh = Bits<T>::value(dy) + (t == 0 ? h : total + direct);
      const float b = Bits<T>::value(before);
      const auto d =
          C::template step_vjp<float>(gates, {C::kPair ? 0.0f : b, C::kPair ? b : 0.0f}, {dh, c});
      direct = d.before.h;
      c = d.before.c;
      C::template scatter<float>(d.gates,
                                 [&](int i, float value) { values[i] = live ? value : 0.0f; });
    }
  }
  // What the next product reads of the step: h, backward the cotangents of R h.
  __device__ __forceinline__ float sent(int i) const {
    return kBackward ? values[cell::recurrent_sum<C>(i)] : h;
  }
  __device__ __forceinline__ void store(const Args& a) {
    if (!live) return;
    if constexpr (!kBackward) {
      *y.data = static_cast<T>(h);
      y.next();
      if (!kept.data) return;
      if (C::kPair) *cells.data = static_cast<T>(c);
      if (C::kPair) cells.next();
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) kept.data[i * a.hidden] = static_cast<T>(values[i]);
    kept.next();
  }
  // Backward, the product after the last step: the cotangent of the state before it.
  __device__ __forceinline__ void finish(const Part& total) {
    if constexpr (kBackward) h = total + direct;
  }
  __device__ __forceinline__ void close(const Args& a) const {
    if (!live) return;
    a.h_to.write(line, unit, h);
    if (C::kPair) a.c_to.write(line, unit, c);
  }
};

}  // namespace scanrnn::persistent
