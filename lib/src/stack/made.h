// SPDX-License-Identifier: Apache-2.0
// What a layer call multiplies by, made of its parameters by options: elements of R dropped, heads
// spread into a block-diagonal matrix but for kernels that walk each by itself, R W_hr where h is a
// projection, SRU's rescaled highway. And the parameters' cotangents, made of those that the call
// gives.
#pragma once

#include "scanrnn/cells/sru.h"
#include "stack/run.h"

namespace scanrnn {

class Made {
 public:
  Made(const Run& run, const Drops& drops) : run_(run), o_(drops.options), drops_(drops) {}

  // Whether R is another matrix than the parameter, or may be: a kernel can walk heads by itself.
  bool is_needed() const { return makes_matrix() || drops_.from_matrix(); }

  // What SRU's highway carries is multiplied by this.
  double highway_scale() const { return o_.rescale ? cell::highway_scale(o_.highway_bias) : 1; }

  // The call with what a pass of it multiplies by, in memory of `scratch`.
  LayerCall with_weights(LayerCall call, bool backward, Arena& scratch) const {
    if (rescales_weight(call)) {
      const TensorView whole = run_.matrix(scratch, call.weight.sizes[0], call.weight.sizes[1]);
      run_.copy(call.weight, whole);
      rescale(call, whole);
      call.weight = whole;
    }
    TensorView& r = call.recurrent_weight;
    if (drops_.from_matrix()) {
      const TensorView some = run_.matrix(scratch, r.sizes[0], r.sizes[1]);
      run_.drop(as_rows(r), as_rows(some), drops_.of_matrix(call));
      r = some;
    }
    if (o_.num_heads > 1 && !run_.walks_heads(backward)) {
      const TensorView whole = run_.matrix(scratch, r.sizes[0], call.hidden);
      run_.spread_heads(r, whole, false);
      r = whole;
    }
    if (o_.proj_size > 0) {
      call.first_weight = r;
      const TensorView whole = run_.matrix(scratch, r.sizes[0], call.hidden);
      if (run_.feeds_back(call)) {
        run_.product(r, false, call.projection, false, whole, false, scratch);
      }
      r = whole;
    }
    return call;
  }

  // The made call with places for the cotangents of what was made, in memory of `scratch`.
  LayerCall with_places(LayerCall made, Arena& scratch) const {
    if (!makes_matrix() || made.drecurrent_weight.rank == 0) return made;
    if (o_.proj_size > 0) made.dfirst_weight = made.drecurrent_weight;
    made.drecurrent_weight = run_.matrix(scratch, made.recurrent_weight.sizes[0], made.hidden);
    return made;
  }
  // The parameters' cotangents in the places of `call`, from those of the made call.
  void backward(const LayerCall& call, const LayerCall& made, Arena& scratch) const {
    if (rescales_weight(call) && call.dweight) rescale(call, call.dweight);
    const TensorView& d = call.drecurrent_weight;
    if (d.rank == 0) return;
    if (o_.num_heads > 1) run_.spread_heads(made.drecurrent_weight, d, true);
    if (o_.proj_size > 0) {
      run_.product(made.drecurrent_weight, false, call.projection, true, d, true, scratch);
      run_.product(made.first_weight, true, made.drecurrent_weight, false, call.dprojection, true,
                   scratch);
    }
    if (drops_.from_matrix()) run_.drop(as_rows(d), as_rows(d), drops_.of_matrix(call));
  }

 private:
  bool makes_matrix() const { return o_.num_heads > 1 || o_.proj_size > 0; }
  bool rescales_weight(const LayerCall& call) const {
    return o_.rescale && call.highway_projection();
  }
  // The rows that project what the highway carries.
  void rescale(const LayerCall& call, const TensorView& weight) const {
    TensorView rows = as_rows(weight);
    rows.sizes[0] = call.hidden;
    if (rows.data) {
      rows.data = static_cast<char*>(rows.data) + (call.gates - 1) * call.hidden *
                                                      weight.strides[0] *
                                                      static_cast<Index>(size_of(weight.dtype));
    }
    run_.scale(rows, rows, highway_scale(), false);
  }

  const Run& run_;
  const LayerOptions& o_;
  const Drops& drops_;
};

}  // namespace scanrnn
