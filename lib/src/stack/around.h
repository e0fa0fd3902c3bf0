// SPDX-License-Identifier: Apache-2.0
// One layer call with what stands around its recurrence: SRU reads a projection of x, layer_norm
// makes norms of W x, and LSTM gives a projection of its cell's output q, h = W_hr q. The
// recurrence of such an LSTM is that of q, with R W_hr for R; h_0, which is no q, comes into the
// first step by R itself.
#pragma once

#include "stack/line_walk.h"
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
        lines_(backend, plan, run, ragged),
        ragged_(ragged) {}

  // Whether any option puts something around the recurrence; else a call is the backend's as it is.
  bool is_needed() const {
    return o_.projection_size > 0 || o_.proj_size > 0 || o_.rescale || begins_aside() ||
           made_.is_needed();
  }

  // Tensors that forward leaves for backward.
  void keep(LayerCall& call, Arena& reserve) const {
    if (o_.projection_size > 0) call.read = run_.tokens(reserve, o_.projection_size);
    if (o_.proj_size > 0) call.given = run_.tokens(reserve, call.hidden);
    if (!o_.layer_norm) return;
    call.raw_input = run_.tokens(reserve, call.width());
    if (call.is_dense()) call.raw_product = run_.tokens(reserve, call.width());
  }

  void forward(const LayerCall& call, Arena& scratch) const {
    LayerCall inner = made_.with_weights(call, false, scratch);
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
    if (begins_aside()) begin(inner, scratch);
    if (by_lines()) {
      lines_.forward(inner, scratch);
    } else {
      backend_.forward(plan_, inner, scratch);
    }
    if (o_.proj_size == 0) return;
    run_.clear_padding(inner.y, ragged_);
    run_.project(inner.y, call.projection, call.y, false, false, scratch);
    if (!call.hn || run_.counting()) return;
    backend_.take_last(call, call.y, call.hn);
    run_.pass_states(call.h0, call.hn, ragged_);
  }

  void backward(const LayerCall& call, Arena& scratch) const {
    LayerCall inner = made_.with_places(made_.with_weights(call, true, scratch), scratch);
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
    if (begins_aside()) {
      walk_back(inner, scratch);
    } else {
      backend_.backward(plan_, inner, scratch);
    }
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
  // Whether a step is one of whole lines; whether what the walk begins with is made here.
  bool by_lines() const { return dispatch::by_lines(plan_.problem); }
  bool begins_aside() const { return o_.layer_norm || by_lines(); }
  // W x, or the norm of it, to where training keeps the sums that it adds to. Kernels of a linear
  // cell may want the bias in it.
  void begin(LayerCall& inner, Arena& scratch) const {
    const Index width = inner.width();
    inner.projected = run_.training() ? lines_.kept_sums(inner) : run_.tokens(scratch, width);
    inner.projected.sizes[2] = width;
    inner.preactivations = inner.projected.data;
    if (!o_.layer_norm) {
      run_.project(inner.x, inner.weight, inner.projected, false, false, scratch);
      return;
    }
    const bool keeps = inner.raw_input.rank > 0;
    const TensorView raw = keeps ? inner.raw_input : run_.tokens(scratch, width);
    run_.project(inner.x, inner.weight, raw, false, false, scratch);
    const bool adds_bias = !inner.is_dense();
    if (!run_.counting()) {
      backend_.norm_tokens(raw, inner.norms.ih, adds_bias ? inner.bias : TensorView{},
                           inner.projected);
    }
    if (adds_bias) inner.bias = {};
  }
  // The walk of such a call back, and what goes back through W.
  void walk_back(LayerCall inner, Arena& scratch) const {
    const Index width = inner.width();
    TensorView d = run_.tokens(scratch, inner.kept_width());
    if (by_lines()) {
      lines_.backward(inner, d, scratch);
    } else {
      LayerCall walk = inner;
      walk.dprojected = d;
      walk.bias = walk.dx = walk.dweight = {};
      backend_.backward(plan_, walk, scratch);
    }
    d.sizes[2] = width;
    if (o_.layer_norm) {
      const TensorView draw = run_.tokens(scratch, width), dscale = run_.tokens(scratch, width);
      if (!run_.counting()) {
        backend_.norm_tokens_vjp(inner.raw_input, inner.norms.ih, d, draw, dscale);
      }
      run_.clear_padding(draw, ragged_);
      run_.clear_padding(dscale, ragged_);
      if (inner.dnorms.ih.rank > 0) run_.sum_tokens(dscale, inner.dnorms.ih, scratch);
      d = draw;
    }
    if (inner.dx.rank > 0) {
      run_.project(d, inner.weight, inner.dx, true, inner.accumulate_dx, scratch);
    }
    if (inner.dweight.rank > 0) {
      run_.weight_cotangent(d, inner.x, inner.dweight, false, scratch);
    }
  }
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
  // h_0 as a product over sequences may read it: what a reset keeps away may be infinite.
  TensorView entering(const LayerCall& call, Arena& scratch) const {
    if (!call.is_ragged()) return call.h0;
    const TensorView out = run_.matrix(scratch, call.sequences, o_.proj_size);
    if (!call.h0) return {};
    if (!run_.counting()) backend_.take_entering(call, call.h0, out);
    return out;
  }
  // The cotangents of q from those of h.
  void give_back(const LayerCall& call, const TensorView& dh, LayerCall& inner,
                 Arena& scratch) const {
    inner.y = call.given;
    inner.first = entering(call, scratch);
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
  LineWalk lines_;
  const Ragged& ragged_;
};

}  // namespace scanrnn
