// SPDX-License-Identifier: Apache-2.0
// The cotangents of a linear layer's input and parameters on the CPU, from those of its
// pre-activations at all steps.
#pragma once

#include <algorithm>

#include "cpu/gemm.h"
#include "cpu/team.h"
#include "stack/backend.h"

namespace scanrnn {

// Every function is called by all threads of a team.
template <class T>
struct LinearGradients {
  const LayerCall& call;
  T* gates;              // [tokens, width()], of the pre-activations
  T* skip = nullptr;     // [tokens, H], of x by a highway that carries x itself
  T* vectors = nullptr;  // [tokens, vector_values()], of each token

  LinearGradients(const LayerCall& c, Arena& arena)
      : call(c), gates(static_cast<T*>(c.dprojected.data)) {
    if (call.dprojected.rank == 0) gates = take<T>(arena, call.tokens() * call.width());
    if (call.carries_input()) skip = take<T>(arena, call.tokens() * call.hidden);
    if (call.vector_values() > 0) vectors = take<T>(arena, call.tokens() * call.vector_values());
  }

  void of_input(const scan::Team& team) const {
    const Index width = call.width();
    const Matrix<T> weight{static_cast<const T*>(call.weight.data), call.weight.strides[0]};
    for_tokens(call.dx, [&](T* dx, Index spacing, Index first, Index count) {
      gemm<T>(team, count, call.input, width, {gates + first * width, width}, weight, dx, spacing,
              call.accumulate_dx);
      team.barrier();
      if (skip && !call.dskip) put_skip(team, dx, spacing, first, count, true);
    });
  }
  // The highway's share of dx, where that goes elsewhere.
  void of_highway(const scan::Team& team) const {
    for_tokens(call.dskip, [&](T* dx, Index spacing, Index first, Index count) {
      put_skip(team, dx, spacing, first, count, call.accumulate_dskip);
    });
  }
  void of_weight(const scan::Team& team) const {
    const Index width = call.width(), stride = call.dweight.strides[0];
    auto* d = static_cast<T*>(call.dweight.data);
    if (call.tokens() == 0) {
      gemm<T>(team, width, call.input, 0, {gates, width, true}, {gates, 1}, d, stride, false);
    }
    for_tokens(call.x, [&](const T* x, Index spacing, Index first, Index count) {
      for (Index i = 0; i < count; i += kSummedTokens) {
        gemm<T>(team, width, call.input, std::min(kSummedTokens, count - i),
                {gates + (first + i) * width, width, true}, {x + i * spacing, spacing}, d, stride,
                first + i > 0);
      }
    });
  }
  void of_bias(const scan::Team& team) const {
    const auto [first, last] = call.biased();
    kernels_of<T>().column_sums(team, gates + first * call.hidden, call.tokens(), call.width(),
                                (last - first) * call.hidden, static_cast<T*>(call.dbias.data));
  }
  // finish: CpuCellKernels::finish_vectors.
  void of_vectors(const scan::Team& team, void (*finish)(const T*, Index, T*)) const {
    const Index values = call.vector_values();
    auto* sums = static_cast<T*>(call.dvectors.data);
    kernels_of<T>().column_sums(team, vectors, call.tokens(), values, values, sums);
    if (!finish) return;
    team.barrier();
    if (team.rank == 0) finish(static_cast<const T*>(call.vectors.data), values, sums);
  }

 private:
  template <class F>
  void for_tokens(const TensorView& view, F&& use) const {
    for_runs<T>(call, {0, call.steps, 0, call.batch}, view, use);
  }
  void put_skip(const scan::Team& team, T* dx, Index spacing, Index first, Index count,
                bool adds) const {
    const scan::Range mine = team.share(count);
    for (Index i = mine.begin; i < mine.end; ++i) {
      const T* from = skip + (first + i) * call.hidden;
      T* to = dx + i * spacing;
      for (Index j = 0; j < call.hidden; ++j) to[j] = adds ? to[j] + from[j] : from[j];
    }
  }
};

}  // namespace scanrnn
