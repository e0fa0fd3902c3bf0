// SPDX-License-Identifier: Apache-2.0
// What a dense layer's products with R are made of, once for both processors.
#pragma once

#include "stack/layer_call.h"

namespace scanrnn {

// Rows of R: the first add to the sums in order, the others to sums of their own behind all others
// (step_cell.h).
struct RecurrentRows {
  Index in_order, own;
};
inline RecurrentRows recurrent_rows(const LayerCall& call) {
  const Index own = call.kept_width() - call.width();
  return {call.width() - own, own};
}

// `count` steps of a [T,B,.] tensor from step `first` on.
inline TensorView steps_of(TensorView view, Index first, Index count) {
  view.data = static_cast<char*>(view.data) +
              first * view.strides[0] * static_cast<Index>(size_of(view.dtype));
  view.sizes[0] = count;
  return view;
}

// dR is a sum over tokens of d(R h)^T and the h before: of the first step with h_0, and of the
// others with y of the step before. All are [T,B,.] in the order of memory; h_first is absent where
// h_0 is zero. There is at least one step.
struct RecurrentPairs {
  TensorView d_first, h_first, d_rest, h_rest;
};
inline RecurrentPairs recurrent_pairs(const LayerCall& call, const TensorView& dsums) {
  const Index rest = call.steps - 1, second = call.reverse ? 0 : 1;
  RecurrentPairs out{steps_of(dsums, call.reverse ? rest : 0, 1),
                     {},
                     steps_of(dsums, second, rest),
                     steps_of(call.y, 1 - second, rest)};
  if (call.h0) {
    out.h_first = call.h0;  // [B,H] as [1,B,H]
    out.h_first.rank = 3;
    out.h_first.sizes = {1, call.batch, call.hidden};
    out.h_first.strides = {call.batch * call.h0.strides[0], call.h0.strides[0], 1};
  }
  return out;
}

}  // namespace scanrnn
