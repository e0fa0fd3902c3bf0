// SPDX-License-Identifier: Apache-2.0
// A dense layer call whose steps are made by whole lines (recurrence/line.h): for each step its
// products with R, and what stands between them. The same walk for every backend.
#pragma once

#include "stack/line_step.h"
#include "stack/run.h"

namespace scanrnn {

class LineWalk {
 public:
  LineWalk(Backend& backend, const dispatch::Plan& plan, const Run& run, const Ragged& ragged)
      : backend_(backend), plan_(plan), run_(run), ragged_(ragged) {}

  // The call's sums as they are kept, [T,B,kept_width()]; absent in inference.
  TensorView kept_sums(const LayerCall& call) const {
    return run_.training() ? kept(call, call.preactivations, call.kept_width()) : TensorView{};
  }

  // `call.projected` holds what W gives.
  void forward(const LayerCall& call, Arena& scratch) const {
    LineStep step(call);
    take(step, call.hidden, scratch);
    step.h0 = call.h0, step.c0 = call.more0[0];
    step.hn = call.hn, step.cn = call.moren[0];
    step.y = call.y;
    step.sums = kept_sums(call);
    if (run_.training() && call.more_states() > 0) {
      step.cells = kept(call, call.states, call.hidden);
    }
    count(step, false, scratch);
    if (run_.counting()) return;
    const Index most = step.lines() > 0 ? backend_.most_steps(plan_, call) : 0;
    const Index looped = steps_of_loop(call, false, most);
    for (step.step = 0; step.step < looped; ++step.step) multiply_and_walk(step, scratch);
    if (looped < most) walk(step, looped, most, false, scratch);
    run_.pass_states(step.h0, step.hn, ragged_);
    run_.pass_states(step.c0, step.cn, ragged_);
  }

  // Leaves the cotangent of all sums in `dsums`, [T,B,kept_width()].
  void backward(const LayerCall& call, const TensorView& dsums, Arena& scratch) const {
    LineStep step(call);
    const Index width = call.width();
    take(step, width, scratch);
    step.h0 = call.h0, step.c0 = call.more0[0];
    step.hn = call.dhn, step.cn = call.dmoren[0];
    step.dh0 = call.dh0, step.dc0 = call.dmore0[0];
    step.y = call.y, step.dy = call.dy;
    step.sums = kept_sums(call);
    if (call.more_states() > 0) step.cells = kept(call, call.states, call.hidden);
    step.dsums = dsums;
    step.before = run_.tokens(scratch, call.hidden);
    if (call.resets) step.reset = run_.tokens(scratch, call.hidden);
    if (normed(call)) {
      step.draw = run_.tokens(scratch, width);
      step.dnorm = run_.tokens(scratch, width);
      if (call.more_states() > 0) step.dnorm_c = run_.tokens(scratch, 2 * call.hidden);
      if (dispatch::is_persistent(plan_, true)) step.moments = moments(call, scratch);
    }
    for (TensorView* tokens :
         {&step.dsums, &step.before, &step.reset, &step.draw, &step.dnorm, &step.dnorm_c}) {
      if (*tokens) run_.clear_padding(*tokens, ragged_);
    }
    count(step, true, scratch);
    const Index most = run_.counting() || step.lines() == 0 ? 0 : backend_.most_steps(plan_, call);
    const Index looped = steps_of_loop(call, true, most);
    if (looped < most) walk(step, looped, most, true, scratch);
    for (Index t = looped; t-- > 0;) {
      step.step = t;
      walk_back(step, scratch);
    }
    if (call.feeds_first()) first_cotangents(step, most > 0, scratch);
    if (step.dh0 && most > 0) run(step, LinePhase::end);
    run_.pass_states(step.hn, step.dh0, ragged_);
    run_.pass_states(step.cn, step.dc0, ragged_);
    parameters(step, scratch);
  }

 private:
  static bool normed(const LayerCall& call) { return call.norms.hh.rank > 0; }
  // Tokens as forward keeps them.
  static TensorView kept(const LayerCall& call, void* data, Index width) {
    TensorView out = dense(data, call.steps, call.batch, width, call.batch_major);
    out.dtype = call.y.dtype;
    return out;
  }
  static TensorView columns(TensorView tokens, Index first, Index count) {
    tokens.sizes[2] = count;
    if (tokens.data) {
      tokens.data =
          static_cast<char*>(tokens.data) + first * static_cast<Index>(size_of(tokens.dtype));
    }
    return tokens;
  }
  static TensorView rows(TensorView matrix, Index first, Index count) {
    matrix.sizes[0] = count;
    if (matrix.data) {
      matrix.data =
          static_cast<char*>(matrix.data) + first * (matrix.rank > 1 ? matrix.strides[0] : 1) *
                                                static_cast<Index>(size_of(matrix.dtype));
    }
    return matrix;
  }
  static std::size_t bytes(Index count, Dtype dtype) {
    return static_cast<std::size_t>(count) * size_of(dtype);
  }

  // What is carried and worked in; `next` has rows of so many values.
  void take(LineStep& step, Index next, Arena& scratch) const {
    const LayerCall& call = step.call;
    const Index lines = step.lines();
    const Dtype dtype = call.y.dtype, wide = compute_type(dtype);
    step.h = scratch.take(bytes(lines * call.hidden, wide));
    if (call.more_states() > 0) step.c = scratch.take(bytes(lines * call.hidden, wide));
    step.products = scratch.take(bytes(lines * call.width(), wide));
    if (normed(call) && call.more_states() > 0) {
      step.remembered = scratch.take(bytes(2 * lines * call.hidden, wide));
    }
    step.next = scratch.take(bytes(lines * next, dtype));
  }
  // Mean and scale of each norm of each step, of R h and of c.
  TensorView moments(const LayerCall& call, Arena& scratch) const {
    constexpr Index kValues = 4;
    TensorView out = dense(nullptr, call.steps, call.batch, kValues, call.batch_major);
    out.dtype = compute_type(call.y.dtype);
    out.data = scratch.take(bytes(call.tokens() * kValues, out.dtype));
    return out;
  }
  // What the calls of the backend work in.
  void count(const LineStep& step, bool backward, Arena& scratch) const {
    if (!scratch.counting()) return;
    Arena memory = scratch.rest();
    backend_.product(Dtype::float32, 0, 0, 0, {}, {}, nullptr, 0, false, memory);
    scratch.saw(memory);
    if (dispatch::is_persistent(plan_, backward)) walk(step, 0, 0, backward, scratch);
  }
  // Steps that are walked one by one, the first ones: all, or what is fed with another state than
  // h.
  Index steps_of_loop(const LayerCall& call, bool backward, Index most) const {
    if (!dispatch::is_persistent(plan_, backward)) return most;
    return std::min<Index>(call.feeds_first() ? 1 : 0, most);
  }
  void walk(const LineStep& step, Index first, Index end, bool backward, Arena& scratch) const {
    Arena memory = scratch.rest();
    backend_.walk_lines(plan_, step, first, end, backward, memory);
    scratch.saw(memory);
  }
  void run(LineStep& step, LinePhase phase) const {
    step.phase = phase;
    backend_.line_step(step);
  }
  // to[lines,n] (+)= from[lines,k] b
  void multiply(const LineStep& step, const Factor& from, Index k, const Factor& b, Index n,
                void* to, Index spacing, bool accumulate, Arena& scratch, bool wide = true) const {
    Arena memory = scratch.rest();
    backend_.product(step.call.y.dtype, step.lines(), n, k, from, b, to, spacing, accumulate,
                     memory, wide);
  }
  static void* moved(void* data, Index values, Dtype dtype) {
    return static_cast<char*>(data) + values * static_cast<Index>(size_of(dtype));
  }

  void multiply_and_walk(LineStep& step, Arena& scratch) const {
    const LayerCall& call = step.call;
    const bool initial = step.step == 0, first = initial && call.feeds_first();
    const TensorView& state = first ? call.first : call.h0;
    const TensorView& weight = first ? call.first_weight : call.recurrent_weight;
    const Index fed_back = first ? weight.sizes[1] : call.hidden;
    const Factor own{step.next, call.hidden};
    const Factor from = initial ? Factor{state.data, state.strides[0]} : own;
    step.fed = !initial || state;
    const auto [in_order, behind] = recurrent_rows(call);
    const Dtype wide = compute_type(call.y.dtype);
    const auto product = [&](const Factor& by, Index first_row, Index count) {
      const TensorView r = rows(weight, first_row, count);
      multiply(step, by, fed_back, {r.data, r.strides[0], true}, count,
               moved(step.products, first_row, wide), call.width(), false, scratch);
    };
    if (step.fed && call.resets) {
      product(from, 0, in_order);
      run(step, LinePhase::reset);
      product(own, in_order, behind);
    } else if (step.fed) {
      product(from, 0, call.width());
    }
    run(step, LinePhase::forward);
  }

  void walk_back(LineStep& step, Arena& scratch) const {
    const LayerCall& call = step.call;
    const Index width = call.width();
    const auto [in_order, behind] = recurrent_rows(call);
    run(step, LinePhase::backward);
    if (step.step == 0 && call.feeds_first()) return;
    const auto back = [&](Index first, Index count, void* to, bool accumulate) {
      const TensorView r = rows(call.recurrent_weight, first, count);
      const Factor from{moved(step.next, first, call.y.dtype), width};
      multiply(step, from, count, {r.data, r.strides[0]}, call.hidden, to, call.hidden, accumulate,
               scratch);
    };
    if (call.resets) {
      back(in_order, behind, step.products, false);
      run(step, LinePhase::reset_vjp);
    }
    if (step.step == 0 && !step.dh0) return;  // nobody asks for it
    back(0, call.resets ? in_order : width, step.h, true);
  }

  // What the first steps were fed with, and by what.
  void first_cotangents(const LineStep& step, bool walked, Arena& scratch) const {
    const LayerCall& call = step.call;
    const Index width = call.width();
    const TensorView& weight = call.first_weight;
    const TensorView d = TensorView::of(step.next, call.y.dtype, {step.lines(), width});
    if (call.dfirst && walked) {
      multiply(step, {step.next, width}, width, {weight.data, weight.strides[0]}, weight.sizes[1],
               call.dfirst.data, call.dfirst.strides[0], false, scratch, false);
    }
    if (call.dfirst_weight.rank == 0) return;
    if (run_.counting() || (walked && call.first)) {
      run_.product(d, true, call.first, false, call.dfirst_weight, false, scratch);
    } else {
      run_.clear(call.dfirst_weight, scratch);
    }
  }

  void parameters(const LineStep& step, Arena& scratch) const {
    const LayerCall& call = step.call;
    const auto [in_order, behind] = recurrent_rows(call);
    const Index width = call.width();
    const TensorView &dsums = step.dsums, &dr = call.drecurrent_weight;
    if (dr.rank > 0 && normed(call)) {
      run_.weight_cotangent(step.draw, step.before, dr, false, scratch);
    } else if (dr.rank > 0) {
      run_.weight_cotangent(columns(dsums, 0, in_order), step.before, rows(dr, 0, in_order), false,
                            scratch);
      run_.weight_cotangent(columns(dsums, width, behind), step.reset, rows(dr, in_order, behind),
                            false, scratch);
    }
    const auto sum = [&](const TensorView& tokens, Index first, const TensorView& to) {
      if (to.rank > 0) run_.sum_tokens(columns(tokens, first, to.sizes[0]), to, scratch);
    };
    sum(dsums, 0, call.dbias);
    if (call.drecurrent_bias.rank > 0) {
      sum(dsums, 0, rows(call.drecurrent_bias, 0, in_order));
      if (behind > 0) sum(dsums, width, rows(call.drecurrent_bias, in_order, behind));
    }
    sum(step.dnorm, 0, call.dnorms.hh);
    sum(step.dnorm_c, 0, call.dnorms.c);
    sum(step.dnorm_c, call.hidden, call.dnorms.c_bias);
  }

  Backend& backend_;
  const dispatch::Plan& plan_;
  const Run& run_;
  const Ragged& ragged_;
};

}  // namespace scanrnn
