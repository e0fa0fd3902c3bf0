// SPDX-License-Identifier: Apache-2.0
// The cotangents of a dense layer's parameters on the CPU, from those of its sums at all steps.
#pragma once

#include <algorithm>

#include "cpu/gemm.h"
#include "cpu/team.h"
#include "stack/layer_call.h"

namespace scanrnn {

// How many row blocks of R h have sums of their own.
inline Index own_blocks(const LayerCall& call) {
  return info(call.cell).preactivations - call.gates;
}

inline TensorView steps_of(TensorView view, Index first, Index count) {
  view.data = static_cast<char*>(view.data) +
              first * view.strides[0] * static_cast<Index>(size_of(view.dtype));
  view.sizes[0] = count;
  return view;
}

// Every function is called by all threads of the team.
template <class T>
struct DenseGradients {
  const scan::Team& team;
  const LayerCall& call;
  TensorView dsums;  // [T,B,kept_width()]

  Index own() const { return own_blocks(call) * call.hidden; }
  Index in_order() const { return call.width() - own(); }
  T* values() const { return static_cast<T*>(dsums.data); }

  // d += dsums^T from, for the rows of d that add to the sums from `first` on.
  void add(const TensorView& d_of, Index first, Index rows, const TensorView& from, T* d,
           Index stride) const {
    for_pairs<const T, const T>(
        call, d_of, from,
        [&](const T* a, Index a_spacing, const T* b, Index b_spacing, Index count) {
          for (Index i = 0; i < count; i += kSummedTokens) {
            gemm<T>(team, SplitBy::rows, rows, from.sizes[2], std::min(kSummedTokens, count - i),
                    {a + first + i * a_spacing, a_spacing, true}, {b + i * b_spacing, b_spacing}, d,
                    stride, true);
          }
        });
  }
  void clear(const TensorView& d) const {
    gemm<T>(team, SplitBy::rows, d.sizes[0], d.sizes[1], 0, {values(), 1}, {values(), 1},
            static_cast<T*>(d.data), d.strides[0], false);
  }

  void of_weight() const {
    clear(call.dweight);
    add(dsums, 0, call.width(), call.x, static_cast<T*>(call.dweight.data),
        call.dweight.strides[0]);
  }
  // Each step's cotangents with the state before it.
  void of_recurrent_weight() const {
    const Index stride = call.drecurrent_weight.strides[0], rest = call.steps - 1;
    auto* d = static_cast<T*>(call.drecurrent_weight.data);
    clear(call.drecurrent_weight);
    team.barrier();  // its parts below are split otherwise
    const auto add_steps = [&](Index step, Index count, const TensorView& before) {
      const TensorView d_of = steps_of(dsums, step, count);
      add(d_of, 0, in_order(), before, d, stride);
      if (own() > 0) add(d_of, call.width(), own(), before, d + in_order() * stride, stride);
    };
    const Index second = call.reverse ? 0 : 1;
    if (rest > 0) add_steps(second, rest, steps_of(call.y, 1 - second, rest));
    if (!call.h0 || call.steps == 0) return;
    TensorView start = call.h0;  // [B,H] as [1,B,H]
    start.rank = 3;
    start.sizes = {1, call.batch, call.hidden};
    start.strides = {call.batch * call.h0.strides[0], call.h0.strides[0], 1};
    add_steps(call.reverse ? rest : 0, 1, start);
  }
  void of_biases() const {
    const auto sums = kernels_of<T>().column_sums;
    auto* d = static_cast<T*>(call.dbias.data);
    auto* recurrent = static_cast<T*>(call.drecurrent_bias.data);
    sums(team, values(), call.tokens(), call.kept_width(), call.width(), d);
    sums(team, values() + call.width(), call.tokens(), call.kept_width(), own(),
         recurrent + in_order());
    team.barrier();
    const scan::Range mine = team.share(in_order());
    std::copy(d + mine.begin, d + mine.end, recurrent + mine.begin);
  }
};

}  // namespace scanrnn
