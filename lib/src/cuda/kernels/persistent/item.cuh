// SPDX-License-Identifier: Apache-2.0
// One unit of one line on its way through all steps of a persistent kernel: what it reads ahead of
// its use, its step, and what it stores once others have been sent what they wait for.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/persistent/line_cursor.cuh"
#include "cuda/kernels/persistent/words.cuh"

namespace scanrnn::persistent {

using fragment::Bits;

// A flag of a step may say that it is cut from the one before it. Ragged lines have steps of their
// own, of a sequence or of several that follow one another. kChain: a product gives all sums, W x
// included, of layers that have none in memory; backward what comes from the layer above, too.
template <class C, class T, bool kBackward, Lines kLines, bool kChain = false>
struct Item : LineCursor {
  using Args = CudaDenseArgs<T, float>;
  using Memory = scan::Units<T>;
  // What the products with R give: forward one sum for each gate of the unit, backward one.
  using Part = typename std::conditional<kBackward, float, float4>::type;
  static constexpr int kSums = C::kPreactivations;
  static constexpr int kValues = kBackward ? kSums : C::kGates;  // that a step reads
  static constexpr bool kRagged = kLines == Lines::ragged, kFlags = kLines != Lines::whole;
  static constexpr int kRead = kValues + kFlags;
  static_assert(C::kGates <= 4, "a unit's sums are one float4");

  int unit;
  bool live;            // an item past the last one takes part and leaves nothing
  bool is_cut = false;  // the last step
  int without_flag;     // a turn
  DenseState<C, float> state;
  DenseVectors<C, float> vectors, dvectors;
  std::uint32_t stays = 0;           // what is drawn for the next steps
  DenseSums<C, float> bias, values;  // values: the sums, backward their cotangents
  float direct;
  std::uint32_t in[kRead], before[kBeforeBlocks<C>], dy;
  Strided<const T> sums, from, cotangents;
  Strided<T> kept, y, cells, vectors_to;
  Strided<const std::uint8_t> resets;

  template <class U>
  __device__ __forceinline__ Strided<U> own(const Args& a, const Strided<U>& tensor) const {
    if constexpr (kRagged) return a.walked_at(tensor, line, -min(start, 0)).from(unit, 0);
    return tensor.at_line(line).from(unit, 0);
  }
  __device__ __forceinline__ int opened() const { return kRagged ? LineCursor::opened() : 0; }
  __device__ __forceinline__ void open(const Args& a, int at_line, int at_unit, bool exists) {
    line = kRagged && !exists ? 0 : at_line;
    unit = at_unit;
    live = exists;
    if constexpr (kRagged) live = LineCursor::open(a, line) && exists;
    open_walk(a);
    vectors = read_vectors<C, Memory>(a.vectors, live ? unit : 0, a.hidden);
    direct = 0.0f;
    if constexpr (!kBackward) {
      bias = DenseSums<C, float>::template of_biases<Memory>(a.bias, a.recurrent_bias,
                                                             live ? unit : 0, a.hidden);
    }
  }
  // The state and the tokens of the line, or of its sequence.
  __device__ __forceinline__ void open_walk(const Args& a) {
    sums = own(a, a.sums);
    kept = own(a, a.kept);
    y = own(a, a.y);
    cells = own(a, a.cells);
    from = own(a, a.before);
    cotangents = own(a, a.dy);
    if constexpr (kRagged) {
      resets = a.resets_at(line, -min(start, 0));
      without_flag = a.turn_without_flag(start, end);
    } else if constexpr (kFlags) {
      resets = a.reset.at_line(line);
      const auto first = static_cast<int>(a.first_step);
      without_flag = a.turn_without_flag(-first, static_cast<int>(a.all_steps) - first);
    }
    state = DenseState<C, float>::of([&](int i) {
      const auto absent = static_cast<float>(kBackward ? 0 : C::fresh(i));
      return live ? a.from[i].read(line, unit, absent) : 0.0f;
    });
    if constexpr (kBackward && C::kVectors > 0) vectors_to = own(a, a.dvectors);
  }
  __device__ __forceinline__ int steps(const Args& a) const {
    return kRagged ? own_steps(a) : static_cast<int>(a.steps);
  }
  // What step t reads; its sums by themselves, for who reads them further ahead.
  __device__ __forceinline__ void fetch_sums(const Args& a, int t, std::uint32_t (&to)[kRead]) {
    if (!live || t >= steps(a)) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      to[i] = kChain && !sums.data ? 0 : Bits<T>::load(sums.data + i * a.hidden);
    }
    if (kChain && !sums.data) return;
    sums.next();
    if constexpr (kFlags) {
      // Without a branch, and as it is: to compare it here would be to wait for it. A step without
      // a flag reads a byte that is there in any case, and step() drops it.
      const auto* const other = reinterpret_cast<const std::uint8_t*>(a.weight);
      to[kValues] = *(has_flag(a, t) ? resets.data : other);
      resets.next();
    }
    // A step forward is shorter than the way from memory to here, not than that from the second
    // level cache.
    constexpr int kAhead = 3;
    if (kBackward || t + kAhead >= steps(a)) return;
    const T* const later = sums.at(kAhead - 1);
#pragma unroll
    for (int i = 0; i < kValues; ++i) expect(later + i * a.hidden);
  }
  __device__ __forceinline__ void fetch_draws(const Args& a, int t) {
    if ((t - opened()) % MadeDraws::kSteps != 0) return;
    const auto draws = kRagged ? a.draws_at(line, at(t)) : a.draws(line, t);
    if (draws && live && t < steps(a)) stays = MadeDraws::make(draws, unit);
  }
  __device__ __forceinline__ MadeDraws drawn(const Args& a, int t) const {
    return {a.masks, stays >> (t - opened()) % MadeDraws::kSteps};
  }
  __device__ __forceinline__ bool has_flag(const Args& a, int t) const {
    return a.reset.data && t != without_flag;
  }
  __device__ __forceinline__ void fetch(const Args& a, int t) {
    fetch_sums(a, t, in);
    fetch_draws(a, t);
    if (!kBackward || !live || t >= steps(a)) return;
    dy = cotangents.data ? Bits<T>::load(cotangents.data) : 0;
    if (cotangents.data) cotangents.next();
    if constexpr (kRagged) {
      // The sequence's, not this launch's.
      const bool first = t + 1 == end;
      if (first) from = a.initial.at_line(a.lines[line].sequence).from(unit, 0);
      fetch_before(a);
      if (!first) from.next();
      return;
    }
    if (t + 1 == steps(a)) from = a.initial.at_line(line).from(unit, 0);
    fetch_before(a);
    if (t + 1 < steps(a)) from.next();
  }
  // Asks for what a step some way behind t reads, where backward's steps are as short as forward's.
  __device__ __forceinline__ void expect_later(const Args& a, int t) const {
    constexpr int kAhead = 3;
    if (!live || t + kAhead + 1 >= steps(a)) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) expect(sums.at(kAhead - 1) + i * a.hidden);
    if (cotangents.data) expect(cotangents.at(kAhead - 1));
    if (!from.data) return;
#pragma unroll
    for (int i = 0; i < kBeforeBlocks<C>; ++i) expect(from.at(kAhead - 1) + i * a.hidden);
  }
  __device__ __forceinline__ void fetch_before(const Args& a) {
    constexpr int kFirst = C::kStates - kBeforeBlocks<C>;
#pragma unroll
    for (int i = 0; i < kBeforeBlocks<C>; ++i) {
      before[i] = from.data ? Bits<T>::load(from.data + i * a.hidden)
                            : Bits<T>::of(static_cast<float>(C::fresh(kFirst + i)));
    }
  }
  __device__ __forceinline__ void step(const Args& a, int t, const Part& total) {
    if constexpr (kFlags) is_cut = has_flag(a, t) && in[kRead - 1] != 0;
    if constexpr (!kBackward) {
      const float products[4] = {total.x, total.y, total.z, total.w};
      values = bias;
      values.add_input([&](int i) { return Bits<T>::value(in[i]); });
      if constexpr (kChain) {
        values = DenseSums<C, float>::of([&](int i) { return values.value[i] + products[i]; });
      } else {
        values.add_recurrent([&](int i) { return is_cut ? 0.0f : products[i]; });
      }
      if (is_cut) state = fresh_state<C, float>();
      const auto after = dense_step<C, Memory>(values, vectors, state, drawn(a, t), unit);
      state = DenseState<C, float>::of([&](int i) { return live ? after.at(i) : 0.0f; });
    } else {
      const auto sums = DenseSums<C, float>::of([&](int i) { return Bits<T>::value(in[i]); });
      auto after = state;
      if constexpr (kChain) {
        after.h = Bits<T>::value(dy) + (total + (t == opened() ? state.h : direct));
      } else {
        after.h = Bits<T>::value(dy) + (t == opened() ? state.h : total + direct);
      }
      const auto from_before =
          state_before<C, float>(!is_cut, [&](int i) { return Bits<T>::value(before[i]); });
      const auto d =
          dense_step_vjp<C, Memory>(sums, vectors, from_before, after, drawn(a, t), unit);
      direct = is_cut ? 0.0f : d.before.h;
#pragma unroll
      for (int i = 1; i < C::kStates; ++i) state.at(i) = is_cut ? 0.0f : d.before.at(i);
      values = DenseSums<C, float>::of([&](int i) { return live ? d.sums.value[i] : 0.0f; });
      dvectors = d.vectors;
    }
  }
  // What the next product reads of the step: h, backward the cotangents of R h, or of all sums.
  __device__ __forceinline__ float sent(int i) const {
    if (!kBackward) return state.h;
    if (kChain) return values.value[i];
    return is_cut ? 0.0f : values.recurrent(i);
  }
  __device__ __forceinline__ void store(const Args& a) {
    if (!live) return;
    if constexpr (kBackward) {
      values.template write<Memory>(kept.data, 0, a.hidden);
      if constexpr (C::kVectors > 0) {
        write_vectors<C, Memory>(dvectors, vectors_to.data, 0, a.hidden);
        vectors_to.next();
      }
    } else {
      const DenseSink<C, Memory> sink{y.data, kept.data, cells.data, a.hidden};
      sink.store(0, values, state);
      y.next();
      if (!kept.data) return;
      if (C::kStates > 1) cells.next();
    }
    kept.next();
  }
  // Backward, the product after the last step: the cotangent of the state before it.
  __device__ __forceinline__ void finish(const Part& total) {
    if constexpr (kBackward) state.h = total + direct;
  }
  __device__ __forceinline__ void close(const Args& a) const {
    if (!live) return;
#pragma unroll
    for (int i = 0; i < C::kStates; ++i) a.to[i].write(line, unit, state.at(i));
  }
  // A ragged line, before close_at(a, made): whether its sequence ends there and another follows in
  // this launch; then the product behind that step reads of it, forward, this h.
  __device__ __forceinline__ bool passes_on(const Args& a, int made) const {
    return kRagged && live && made == own_steps(a) && LineCursor::passes_on(a, made);
  }
  __device__ __forceinline__ float entering(const Args& a) const {
    return a.from[0].read(next_line(a), unit, static_cast<float>(C::fresh(0)));
  }
  // A ragged sequence's end, once so many turns are made: the line goes on with the next one, or
  // nothing is left of it.
  __device__ __forceinline__ void close_at(const Args& a, int made) {
    if (!kRagged || made != own_steps(a) || !live) return;
    close(a);
    live = passes_on(a, made);
    if (!live) return;
    live = pass_on(a, made);
    open_walk(a);
    if (kBackward) fetch(a, made);  // which waited for the product that ends the sequence before
  }
};

}  // namespace scanrnn::persistent
