// SPDX-License-Identifier: Apache-2.0
// One unit of one line on its way through all steps of a persistent kernel: what it reads ahead of
// its use, its step, and what it stores once others have been sent what they wait for.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"

namespace scanrnn::persistent {

using fragment::Bits;

// kRagged: lines have steps of their own, and a flag of each says whether it is cut from the step
// before it.
template <class C, class T, bool kBackward, bool kRagged>
struct Item {
  using Args = CudaDenseArgs<T, float>;
  using Memory = scan::Units<T>;
  // What the products with R give: forward one sum for each gate of the unit, backward one.
  using Part = typename std::conditional<kBackward, float, float4>::type;
  static constexpr int kSums = C::kPreactivations;
  static constexpr int kValues = kBackward ? kSums : C::kGates;  // that a step reads
  static constexpr int kRead = kValues + kRagged;
  static_assert(C::kGates <= 4, "a unit's sums are one float4");

  int line, unit;
  int own_steps;  // of a ragged line
  bool live;      // an item past the last one takes part and leaves nothing
  float h, c;
  DenseSums<C, float> bias, values;  // values: the sums, backward their cotangents
  float direct;
  std::uint32_t in[kRead], before, dy;
  Strided<const T> sums, from, cotangents;
  Strided<T> kept, y, cells;
  Strided<const std::uint8_t> resets;

  template <class U>
  __device__ __forceinline__ Strided<U> own(const Args& a, const Strided<U>& tensor) const {
    if constexpr (kRagged) return a.walked(tensor, line).from(unit, 0);
    return tensor.at_line(line).from(unit, 0);
  }
  __device__ __forceinline__ void open(const Args& a, int at_line, int at_unit, bool exists) {
    line = kRagged && !exists ? 0 : at_line;
    unit = at_unit;
    if constexpr (kRagged) own_steps = static_cast<int>(a.steps_of(line));
    live = exists && (!kRagged || own_steps > 0);
    sums = own(a, a.sums);
    kept = own(a, a.kept);
    y = own(a, a.y);
    cells = own(a, a.cells);
    from = own(a, a.before);
    cotangents = own(a, a.dy);
    if constexpr (kRagged) resets = a.resets(line);
    h = live ? a.h_from.read(line, unit) : 0.0f;
    c = live && C::kPair ? a.c_from.read(line, unit) : 0.0f;
    direct = 0.0f;
    if constexpr (!kBackward) {
      bias = DenseSums<C, float>::template of_biases<Memory>(a.bias, a.recurrent_bias,
                                                             live ? unit : 0, a.hidden);
    }
  }
  __device__ __forceinline__ int steps(const Args& a) const {
    return kRagged ? own_steps : static_cast<int>(a.steps);
  }
  // What step t reads; its sums by themselves, for who reads them further ahead.
  __device__ __forceinline__ void fetch_sums(const Args& a, int t, std::uint32_t (&to)[kRead]) {
    if (!live || t >= steps(a)) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) to[i] = Bits<T>::load(sums.data + i * a.hidden);
    sums.next();
    if constexpr (kRagged) {
      // As it is: to compare it here would be to wait for it.
      to[kValues] = 0;
      if (a.may_reset(line, t)) to[kValues] = *resets.data;
      resets.next();
    }
  }
  __device__ __forceinline__ bool cut() const { return kRagged && in[kRead - 1] != 0; }
  __device__ __forceinline__ void fetch(const Args& a, int t) {
    fetch_sums(a, t, in);
    if (!kBackward || !live || t >= steps(a)) return;
    dy = cotangents.data ? Bits<T>::load(cotangents.data) : 0;
    if (cotangents.data) cotangents.next();
    if constexpr (kRagged) {
      const bool first = t + 1 == own_steps && a.ends(line);  // of the sequence
      if (first) from = a.initial.at_line(a.lines[line].sequence).from(unit, 0);
      before = from.data ? Bits<T>::load(from.data) : 0;
      if (!first) from.next();
      return;
    }
    if (t + 1 == steps(a)) from = a.initial.at_line(line).from(unit, 0);
    before = from.data ? Bits<T>::load(from.data) : 0;
    if (t + 1 < steps(a)) from.next();
  }
  __device__ __forceinline__ void step(const Args& a, int t, const Part& total) {
    if constexpr (!kBackward) {
      const float products[4] = {total.x, total.y, total.z, total.w};
      values = bias;
      values.add_input([&](int i) { return Bits<T>::value(in[i]); });
      values.add_recurrent([&](int i) { return cut() ? 0.0f : products[i]; });
      if (cut()) h = c = 0.0f;
      const auto after = dense_step<C, Memory>(values, {h, c}, a.draws(line, t), unit);
      h = live ? after.h : 0.0f;
      c = live ? after.c : 0.0f;
    } else {
      const auto sums = DenseSums<C, float>::of([&](int i) { return Bits<T>::value(in[i]); });
      const float dh = Bits<T>::value(dy) + (t == 0 ? h : total + direct);
      const float from_before = cut() ? 0.0f : Bits<T>::value(before);
      const auto d = dense_step_vjp<C, Memory>(sums, from_before, {dh, c}, a.draws(line, t), unit);
      direct = d.before.h;
      c = d.before.c;
      values = DenseSums<C, float>::of([&](int i) { return live ? d.sums.value[i] : 0.0f; });
      if (cut()) direct = c = 0.0f;
    }
  }
  // What the next product reads of the step: h, backward the cotangents of R h.
  __device__ __forceinline__ float sent(int i) const {
    if (!kBackward) return h;
    return cut() ? 0.0f : values.recurrent(i);
  }
  __device__ __forceinline__ void store(const Args& a) {
    if (!live) return;
    if constexpr (kBackward) {
      values.template write<Memory>(kept.data, 0, a.hidden);
    } else {
      const DenseSink<C, Memory> sink{y.data, kept.data, cells.data, a.hidden};
      sink.store(0, values, {h, c});
      y.next();
      if (!kept.data) return;
      if (C::kPair) cells.next();
    }
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
  // A ragged line's end, once it has made so many steps: nothing is left of it.
  __device__ __forceinline__ void close_at(const Args& a, int made) {
    if (!kRagged || made != own_steps) return;
    close(a);
    live = false;
  }
};

}  // namespace scanrnn::persistent
