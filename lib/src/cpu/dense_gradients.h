// SPDX-License-Identifier: Apache-2.0
// The cotangents of a dense layer's parameters on the CPU, from those of its sums at all steps.
#pragma once

#include <algorithm>

#include "cpu/gemm.h"
#include "cpu/team.h"
#include "recurrence/dense_layer.h"

namespace scanrnn {

// Every function is called by all threads of the team.
template <class T>
struct DenseGradients {
  const scan::Team& team;
  const LayerCall& call;
  TensorView dsums;   // [T,B,kept_width()]
  TensorView before;  // of a ragged batch: the h before each step, [T,B,H]
  RecurrentRows rows = recurrent_rows(call);

  T* values() const { return static_cast<T*>(dsums.data); }

  // d += dsums^T from, for the rows of d that add to the sums from `first` on.
  void add(const TensorView& d_of, Index first, Index rows, const TensorView& from, T* d,
           Index stride) const {
    for_pairs<const T, const T>(
        call, d_of, from,
        [&](const T* a, Index a_spacing, const T* b, Index b_spacing, Index count) {
          for (Index i = 0; i < count; i += kSummedTokens) {
            gemm<T>(team, rows, from.sizes[2], std::min(kSummedTokens, count - i),
                    {a + first + i * a_spacing, a_spacing, true}, {b + i * b_spacing, b_spacing}, d,
                    stride, true);
          }
        });
  }
  void clear(const TensorView& d) const {
    gemm<T>(team, d.sizes[0], d.sizes[1], 0, {values(), 1}, {values(), 1}, static_cast<T*>(d.data),
            d.strides[0], false);
  }

  void of_weight() const {
    clear(call.dweight);
    add(dsums, 0, call.width(), call.x, static_cast<T*>(call.dweight.data),
        call.dweight.strides[0]);
  }
  // Each step's cotangents with the state before it.
  void of_recurrent_weight() const {
    const Index stride = call.drecurrent_weight.strides[0];
    auto* d = static_cast<T*>(call.drecurrent_weight.data);
    clear(call.drecurrent_weight);
    team.barrier();  // its parts below are split otherwise
    if (call.steps == 0) return;
    const auto add_steps = [&](const TensorView& d_of, const TensorView& before) {
      add(d_of, 0, rows.in_order, before, d, stride);
      if (rows.own > 0)
        add(d_of, call.width(), rows.own, before, d + rows.in_order * stride, stride);
    };
    if (before) return add_steps(dsums, before);
    const RecurrentPairs pairs = recurrent_pairs(call, dsums);
    if (call.steps > 1) add_steps(pairs.d_rest, pairs.h_rest);
    if (pairs.h_first) add_steps(pairs.d_first, pairs.h_first);
  }
  // What the first step of each sequence was fed with and by, from the cotangents of its sums.
  void of_first(const T* rows, Index sequences) const {
    const Index features = call.first_weight.sizes[1];
    const auto matrix = [](const TensorView& of) {
      return Matrix<T>{static_cast<const T*>(of.data), of.strides[0]};
    };
    if (call.dfirst) {
      gemm<T>(team, sequences, features, call.width(), {rows, call.width()},
              matrix(call.first_weight), static_cast<T*>(call.dfirst.data), call.dfirst.strides[0],
              false);
    }
    if (call.dfirst_weight) {
      const bool fed = static_cast<bool>(call.first);
      gemm<T>(team, call.width(), features, fed ? sequences : 0, {rows, call.width(), true},
              fed ? matrix(call.first) : Matrix<T>{rows, features},
              static_cast<T*>(call.dfirst_weight.data), call.dfirst_weight.strides[0], false);
    }
  }
  // From dvectors, [T,B,kVectors * H].
  void of_vectors(const T* dvectors) const {
    const Index values = call.vector_values();
    kernels_of<T>().column_sums(team, dvectors, call.tokens(), values, values,
                                static_cast<T*>(call.dvectors.data));
  }
  void of_biases() const {
    const auto sums = kernels_of<T>().column_sums;
    auto* d = static_cast<T*>(call.dbias.data);
    auto* recurrent = static_cast<T*>(call.drecurrent_bias.data);
    sums(team, values(), call.tokens(), call.kept_width(), call.width(), d);
    sums(team, values() + call.width(), call.tokens(), call.kept_width(), rows.own,
         recurrent + rows.in_order);
    team.barrier();
    const scan::Range mine = team.share(rows.in_order);
    std::copy(d + mine.begin, d + mine.end, recurrent + mine.begin);
  }
};

}  // namespace scanrnn
