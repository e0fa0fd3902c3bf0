// SPDX-License-Identifier: Apache-2.0
// One layer call with the products that stand around its recurrence: SRU reads a projection of x,
// and LSTM gives one of its cell's output q, h = W_hr q. The recurrence of such an LSTM is that of
// q, with R W_hr for R; h_0, which is no q, comes into the first step by R itself.
#pragma once

#include "stack/made.h"

namespace scanrnn {

class Around {
 public:
  Around(Backend& backend, const dispatch::Plan& plan, const Run& run, const Drops& drops,
         const Ragged& ragged)
      : backend_(backend),
        plan_(plan),
        run_(run),
        o_(drops.options),
        made_(run, drops),
        ragged_(ragged) {}

  // Tensors that forward leaves for backward.
  void keep(LayerCall& call, Arena& reserve) const {
    if (o_.projection_size > 0) call.read = run_.tokens(reserve, o_.projection_size);
    if (o_.proj_size > 0) call.given = run_.tokens(reserve, call.hidden);
  }

  void forward(const LayerCall& call, Arena& scratch) const {
    LayerCall inner = made_.forward(call, scratch);
    if (o_.projection_size > 0) {
      inner.x = call.read.rank > 0 ? call.read : run_.tokens(scratch, o_.projection_size);
      run_.project(call.x, call.projection, inner.x, false, false, scratch);
      // Backward's product over tokens reads it.
      if (call.read.rank > 0) run_.clear_padding(inner.x, ragged_);
    }
    if (rescales_input(call)) inner.skip = rescaled(call, scratch);
    if (o_.proj_size > 0) {
      inner.y = call.given.rank > 0 ? call.given : run_.tokens(scratch, call.hidden);
      inner.first = call.h0;
      inner.h0 = inner.hn = {};
    }
    backend_.forward(plan_, inner, scratch);
    if (o_.proj_size == 0) return;
    run_.clear_padding(inner.y, ragged_);
    run_.project(inner.y, call.projection, call.y, false, false, scratch);
    if (!call.hn || run_.counting()) return;
    backend_.take_last(call, call.y, call.hn);
    run_.pass_states(call.h0, call.hn, ragged_);
  }

  void backward(const LayerCall& call, Arena& scratch) const {
    LayerCall inner = made_.with_places(made_.forward(call, scratch), scratch);
    if (o_.projection_size > 0) {
      inner.x = call.read;
      inner.dx = run_.tokens(scratch, o_.projection_size);
      inner.accumulate_dx = false;
    }
    if (rescales_input(call)) inner.skip = rescaled(call, scratch);
    const bool skip_aside = call.carries_input() && (o_.projection_size > 0 || o_.rescale);
    if (skip_aside) {
      inner.dskip = run_.tokens(scratch, call.hidden);
      inner.accumulate_dskip = false;
    }
    TensorView dh;
    if (o_.proj_size > 0) {
      dh = all_of_h(call, scratch);
      give_back(call, dh, inner, scratch);
    }
    backend_.backward(plan_, inner, scratch);
    if (o_.projection_size > 0) {
      if (call.dprojection.rank > 0) {
        run_.weight_cotangent(inner.dx, call.x, call.dprojection, false, scratch);
      }
      if (call.dx.rank > 0) {
        run_.project(inner.dx, call.projection, call.dx, true, call.accumulate_dx, scratch);
      }
    }
    if (skip_aside) {
      const TensorView& to = call.dskip ? call.dskip : call.dx;
      const bool adds = call.dskip ? call.accumulate_dskip : true;
      if (to) run_.scale(inner.dskip, to, made_.highway_scale(), adds);
    }
    if (o_.proj_size > 0) {
      if (call.dprojection.rank > 0) {
        run_.weight_cotangent(dh, inner.y, call.dprojection, false, scratch);
      }
      run_.pass_states(call.dhn, call.dh0, ragged_);
    }
    made_.backward(call, inner, scratch);
  }

 private:
  bool rescales_input(const LayerCall& call) const { return o_.rescale && call.carries_input(); }
  TensorView rescaled(const LayerCall& call, Arena& scratch) const {
    const TensorView out = run_.tokens(scratch, call.hidden);
    run_.scale(call.highway(), out, made_.highway_scale(), false);
    return out;
  }
  // The cotangents of h at all steps, those of the last one among them.
  TensorView all_of_h(const LayerCall& call, Arena& scratch) const {
    const TensorView out = run_.tokens(scratch, o_.proj_size);
    if (run_.counting()) return out;
    if (call.dy) {
      run_.copy(call.dy, out);
    } else {
      run_.clear(TensorView::of(out.data, out.dtype, {call.tokens(), o_.proj_size}), scratch);
    }
    if (call.dhn) backend_.add_to_last(call, call.dhn, out);
    return out;
  }
  // The cotangents of q from those of h.
  void give_back(const LayerCall& call, const TensorView& dh, LayerCall& inner,
                 Arena& scratch) const {
    inner.y = call.given;
    inner.first = call.h0;
    inner.dfirst = call.dh0;
    inner.h0 = inner.dh0 = inner.dhn = {};
    inner.dy = run_.tokens(scratch, call.hidden);
    run_.project(dh, call.projection, inner.dy, true, false, scratch);
  }

  Backend& backend_;
  const dispatch::Plan& plan_;
  const Run& run_;
  const LayerOptions& o_;
  Made made_;
  const Ragged& ragged_;
};

}  // namespace scanrnn
