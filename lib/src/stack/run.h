// SPDX-License-Identifier: Apache-2.0
// What forward and backward of a stack share: the shapes, and memory in the backend's own dtype.
#pragma once

#include "recurrence/dense_layer.h"
#include "stack/drops.h"
#include "stack/stack.h"

namespace scanrnn {

class Run {
 public:
  Run(Stack& stack, const std::vector<TensorView>& params)
      : stack_(stack), o_(stack.options), dtype_(stack.backend.inner_type(o_.dtype)) {
    for (const TensorView& param : params) params_.push_back(inner(param));
  }

  Index directions() const { return o_.bidirectional ? 2 : 1; }
  Index lines() const {
    const auto& p = stack_.plan.problem;
    return p.layout == dispatch::Batch::packed ? 1 : p.batch;
  }
  bool batch_major() const {
    const bool packed = stack_.plan.problem.layout == dispatch::Batch::packed;
    return o_.batch_first && !packed && !has_adjacent_lines();
  }
  // Whether the tokens of a part of time must be adjacent, since layers go on by parts. Where a
  // layer trains, what one pass keeps the other reads, whose plan may be made with other threads or
  // another precision: so that is asked of the problem, and not of the plan.
  bool has_adjacent_lines() const {
    const dispatch::Problem& p = stack_.plan.problem;
    const bool may_go_by_parts = p.chained && p.layout == dispatch::Batch::rectangular;
    return training() ? may_go_by_parts : stack_.plan.part_steps > 0;
  }
  // The features of one direction's output, and of h.
  Index output() const { return o_.proj_size > 0 ? o_.proj_size : o_.hidden_size; }
  Index features() const { return directions() * output(); }
  bool counting() const { return stack_.workspace.counting(); }
  bool training() const { return stack_.plan.problem.training; }

  // The tensor itself, or a copy of it in the backend's dtype and in the order of the walk.
  TensorView inner(const TensorView& view) {
    if (!present(view)) return {};
    if (fits(view)) return view;
    const TensorView out = like(view);
    if (!counting()) stack_.backend.copy(view, out);
    return out;
  }
  // What sequences enter with, or a copy of it where they leave states in the same memory and one
  // may be written before all are read: in ragged batches, where h is projected, and where blocks
  // that share the time of a line all read what it enters with.
  TensorView entering(const TensorView& view, const TensorView& leaving) {
    const TensorView out = inner(view);
    const dispatch::Plan& plan = stack_.plan;
    const bool ragged = plan.problem.layout != dispatch::Batch::rectangular;
    const bool may_be_late = ragged || o_.proj_size > 0 || plan.across_blocks;
    if (!present(out) || !may_be_late) return out;
    const TensorView copy = like(out);  // memory in any case: sizes know no addresses
    if (counting() || out.data != leaving.data) return out;
    stack_.backend.copy(out, copy);
    return copy;
  }
  // Memory to write `view` from with outer(); the tensor itself when it is right.
  TensorView target(const TensorView& view) {
    return present(view) && !fits(view) ? like(view) : view;
  }
  void outer(const TensorView& from, const TensorView& to) {
    if (present(to) && from.data != to.data && !counting()) stack_.backend.copy(from, to);
  }

  // [T,B,width] in the layout of the user's tensors.
  TensorView tokens(Arena& arena, Index width) const {
    const auto& p = stack_.plan.problem;
    TensorView out =
        dense(arena.take(static_cast<std::size_t>(p.steps * lines() * width) * size_of(dtype_)),
              p.steps, lines(), width, batch_major());
    out.dtype = dtype_;
    return out;
  }

  // Before the first layer call of a pass over a ragged batch.
  void prepare(const Ragged& ragged, bool backward) {
    if (stack_.plan.problem.layout == dispatch::Batch::rectangular) return;
    if (!ragged && !counting()) return;
    tables_ = stack_.backend.prepare(stack_.plan, ragged, backward, stack_.workspace);
  }

  LayerCall layer_call(int layer, int direction, const Ragged& ragged, const Drops& drops) const {
    const auto& p = stack_.plan.problem;
    const CellInfo& cell = info(o_.cell);
    LayerCall out;
    out.layer = layer;
    out.cell = o_.cell;
    out.variant = o_.variant;
    out.reverse = direction == 1;
    out.batch_major = batch_major();
    out.steps = p.steps;
    out.batch = lines();
    // A ragged batch that is told nothing is a rectangular one.
    out.layout = ragged || counting() ? p.layout : dispatch::Batch::rectangular;
    out.ragged = ragged;
    out.tables = tables_;
    out.sequences = p.batch;
    out.skip_size = layer == 0 ? o_.input_size : features();
    out.input = o_.projection_size > 0 ? o_.projection_size : out.skip_size;
    out.hidden = o_.hidden_size;
    out.gates = cell.gates + (cell.highway && out.skip_size != out.hidden ? 1 : 0);
    out.masks = drops.in_recurrence(out);
    out.resets = !o_.reset_after;
    if (!params_.empty()) {
      const auto own = parameters(params_, layer, direction);
      out.weight = own.weight;
      out.bias = own.bias;
      out.recurrent_weight = own.recurrent_weight;
      out.recurrent_bias = own.recurrent_bias;
      out.vectors = own.vectors;
      out.projection = own.projection;
      out.norms = own.norms;
    }
    return out;
  }

  // work(memory to work in), which a layer call gives up again.
  template <class F>
  void with_scratch(LayerCall& call, F&& work) const {
    Arena scratch = stack_.workspace.rest();
    work(scratch);
    stack_.workspace.saw(scratch);
    if (!counting() || call.layout != dispatch::Batch::ragged) return;
    call.layout = dispatch::Batch::rectangular;  // which it may turn out to be
    with_scratch(call, work);
  }

  // One direction's share of all parameters, or of their cotangents, in Layer's order.
  struct Parameters {
    TensorView weight, recurrent_weight, vectors, bias, recurrent_bias, projection;
    Norms norms;
  };
  Parameters parameters(const std::vector<TensorView>& all, int layer, int direction) const {
    const CellInfo& cell = info(o_.cell);
    const bool dense = cell.recurrence == dispatch::Recurrence::dense, vectors = cell.vectors > 0;
    const bool projects = o_.proj_size > 0 || o_.projection_size > 0;
    const std::size_t norms = o_.layer_norm ? norm_count(cell) : 0;
    const auto calls = static_cast<std::size_t>(o_.num_layers * directions());
    const auto call = static_cast<std::size_t>(layer * directions() + direction);
    const TensorView* own = &all[call * (all.size() / calls)];
    Parameters out;
    out.weight = *own++;
    if (dense) out.recurrent_weight = *own++;
    if (vectors) out.vectors = *own++;
    if (o_.bias) out.bias = *own++;
    if (o_.bias && dense) out.recurrent_bias = *own++;
    for (std::size_t i = 0; i < norms; ++i) out.norms.*kNorms[i] = *own++;
    if (projects) out.projection = *own++;
    return out;
  }

  // Zeros where a sequence has no steps.
  void clear_padding(const TensorView& view, const Ragged& ragged) const {
    if (ragged.lengths && !counting()) stack_.backend.clear_padding(view, ragged.lengths);
  }
  // inner(), with zeros there: a product over tokens must not meet what a caller left.
  TensorView without_padding(const TensorView& view, const Ragged& ragged) {
    if (!present(view)) return {};
    const bool may_have = stack_.plan.problem.layout == dispatch::Batch::ragged;
    if (!(counting() ? may_have : static_cast<bool>(ragged.lengths))) return inner(view);
    const TensorView out = like(view);
    if (!counting()) stack_.backend.copy(view, out);
    clear_padding(out, ragged);
    return out;
  }

  // Memory for a batch's rows of a pool of states; with indices, what is in them.
  TensorView rows_of(const TensorView& pool, const TensorView& indices) {
    if (!present(pool)) return {};
    TensorView out = pool;
    out.sizes[1] = stack_.plan.problem.batch;
    out = like(out);
    if (!counting()) stack_.backend.take_states(pool, indices, out);
    return out;
  }

  // What forward leaves for backward.
  void keep(LayerCall& call) {
    if (!training()) return;
    const auto values = static_cast<std::size_t>(call.tokens()) * size_of(dtype_);
    call.preactivations = stack_.reserve.take(values * static_cast<std::size_t>(call.kept_width()));
    const int tensors = call.is_dense() ? call.more_states() : info(call.cell).readout;
    if (tensors > 0) {
      call.states = stack_.reserve.take(values * static_cast<std::size_t>(tensors * call.hidden));
    }
  }

  // Whether any step reads what a step of this call gives; not where a sequence is decoded.
  bool feeds_back(const LayerCall& call) const {
    const bool by_steps = stack_.plan.strategy == dispatch::Strategy::step_loop;
    return counting() || training() || call.is_ragged() || call.steps != 1 || !by_steps;
  }
  // Whether a pass's kernel takes heads one beside the other, so that R stays as it is.
  bool walks_heads(bool backward) const { return dispatch::is_persistent(stack_.plan, backward); }
  SequenceBounds sequences(const Ragged& ragged) const {
    const auto& p = stack_.plan.problem;
    return {ragged, p.steps, p.batch, p.layout == dispatch::Batch::packed};
  }
  void drop(const TensorView& from, const TensorView& to, const Drop& drop) const {
    if (!counting()) stack_.backend.dropout(from, to, drop);
  }
  // The same at some of the steps.
  void drop_part(const TensorView& from, const TensorView& to, Drop drop, const Tile& part) const {
    drop.first_step = part.first_step;
    const auto own = [&](const TensorView& v) { return steps_of(v, part.first_step, part.steps); };
    this->drop(own(from), own(to), drop);
  }
  // to = from times a number, or that added to it; [T,B,.].
  void scale(const TensorView& from, const TensorView& to, double times, bool adds) const {
    drop(from, to, {{}, adds, nullptr, times});
  }
  void copy(const TensorView& from, const TensorView& to) const {
    if (!counting()) stack_.backend.copy(from, to);
  }
  void spread_heads(const TensorView& from, const TensorView& to, bool back) const {
    if (!counting()) stack_.backend.spread_heads(from, to, back);
  }
  void pass_states(const TensorView& from, const TensorView& to, const Ragged& ragged) const {
    if (to && !counting()) stack_.backend.pass_states(sequences(ragged), from, to);
  }
  // Sums over tokens, [T,B,.] as they lie in memory of an arena.
  void sum_tokens(const TensorView& tokens, const TensorView& sums, Arena& scratch) const {
    Arena memory = scratch.rest();
    stack_.backend.sum_tokens(tokens, sums, memory);
    scratch.saw(memory);
  }
  // A matrix in memory of the arena.
  TensorView matrix(Arena& arena, Index rows, Index columns) const {
    TensorView out = TensorView::of(nullptr, dtype_, {rows, columns});
    out.data = arena.take(static_cast<std::size_t>(rows * columns) * size_of(dtype_));
    return out;
  }
  // c = a b, or the product of their transposes, or that added to it; matrices.
  void product(const TensorView& a, bool a_transposed, const TensorView& b, bool b_transposed,
               const TensorView& c, bool accumulate, Arena& scratch) const {
    Arena memory = scratch.rest();
    stack_.backend.product(dtype_, c.sizes[0], c.sizes[1], a.sizes[a_transposed ? 0 : 1],
                           {a.data, a.strides[0], a_transposed},
                           {b.data, b.strides[0], b_transposed}, c.data, c.strides[0], accumulate,
                           memory);
    scratch.saw(memory);
  }
  // y = x W^T, or with `back` y (+)= x W, for all tokens, [T,B,.].
  void project(const TensorView& x, const TensorView& weight, const TensorView& y, bool back,
               bool accumulate, Arena& scratch) const {
    over_tokens(x, y, scratch,
                [&](auto* from, Index from_line, auto* to, Index to_line, Index count, bool,
                    Arena& memory) {
                  stack_.backend.product(dtype_, count, y.sizes[2], x.sizes[2], {from, from_line},
                                         {weight.data, weight.strides[0], !back}, to, to_line,
                                         accumulate, memory);
                });
  }
  // dW (+)= dy^T x over all tokens.
  void weight_cotangent(const TensorView& dy, const TensorView& x, const TensorView& dweight,
                        bool accumulate, Arena& scratch) const {
    if (dy.sizes[0] * dy.sizes[1] == 0 && !accumulate) clear(dweight, scratch);
    over_tokens(dy, x, scratch,
                [&](auto* d, Index d_line, auto* from, Index from_line, Index count, bool first,
                    Arena& memory) {
                  stack_.backend.product(dtype_, dy.sizes[2], x.sizes[2], count, {d, d_line, true},
                                         {from, from_line}, dweight.data, dweight.strides[0],
                                         accumulate || !first, memory);
                });
  }
  void clear(const TensorView& weight, Arena& scratch) const {
    Arena memory = scratch.rest();
    stack_.backend.product(dtype_, weight.sizes[0], weight.sizes[1], 0, {weight.data, 1},
                           {weight.data, 1}, weight.data, weight.strides[0], false, memory);
    scratch.saw(memory);
  }

  // The memory of a [T,B,.] tensor as one with fewer columns.
  TensorView narrowed(const TensorView& view, Index width) const {
    const auto& p = stack_.plan.problem;
    TensorView out = dense(view.data, p.steps, lines(), width, batch_major());
    out.dtype = view.dtype;
    return out;
  }
  // This direction's columns of a [T,B,D*H] tensor.
  TensorView columns(const TensorView& view, int direction) const {
    TensorView out = view;
    out.sizes[2] = output();
    if (view.data) {
      out.data = static_cast<char*>(view.data) +
                 direction * output() * static_cast<Index>(size_of(view.dtype));
    }
    return out;
  }
  // A layer call's share of a state.
  void give_state(const State& states, const LayerCall& call, TensorView& h,
                  MoreStates& more) const {
    const Index row = call.layer * directions() + call.reverse;
    const auto own = [&](const TensorView& all) { return all ? entry(all, row) : TensorView{}; };
    h = own(states.h);
    for (std::size_t i = 0; i < more.size(); ++i) more[i] = own(states.*kStateTensors[i + 1]);
  }

 private:
  // use(a, spacing, b, spacing, tokens, whether they are the first, memory to work in) for runs of
  // tokens of two tensors.
  template <class F>
  void over_tokens(const TensorView& a, const TensorView& b, Arena& scratch, F&& use) const {
    Arena memory = scratch.rest();
    if (counting()) {
      stack_.backend.product(dtype_, 0, 0, 0, {}, {}, nullptr, 0, false, memory);
      return scratch.saw(memory);
    }
    LayerCall order;
    order.batch_major = batch_major();
    bool first = true;
    const auto run = [&](auto type) {
      using T = decltype(type);
      for_pairs<T, T>(order, a, b, [&](T* x, Index x_line, T* y, Index y_line, Index count) {
        Arena own = scratch.rest();
        use(x, x_line, y, y_line, count, first, own);
        first = false;
      });
    };
    size_of(dtype_) == 8 ? run(double()) : size_of(dtype_) == 4 ? run(float()) : run(char16_t());
  }
  bool fits(const TensorView& view) const {
    if (view.dtype != dtype_) return false;
    const auto& p = stack_.plan.problem;
    const bool tokens = view.rank == 3 && view.sizes[0] == p.steps && view.sizes[1] == p.batch;
    if (!has_adjacent_lines() || !o_.batch_first || !tokens) return true;
    return !counting() && view.strides[0] >= view.strides[1];
  }
  // While counting, a tensor is present when it has a rank.
  bool present(const TensorView& view) const { return view.data || (counting() && view.rank > 0); }

  TensorView like(const TensorView& view) {
    TensorView out = view;
    out.dtype = dtype_;
    Index count = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      out.strides[static_cast<std::size_t>(axis)] = count;
      count *= view.sizes[static_cast<std::size_t>(axis)];
    }
    if (view.rank == 3 && batch_major() && view.sizes[0] == stack_.plan.problem.steps) {
      out.strides = {view.sizes[2], view.sizes[0] * view.sizes[2], 1};
    }
    out.data = stack_.workspace.take(static_cast<std::size_t>(count) * size_of(dtype_));
    return out;
  }

  Stack& stack_;
  const LayerOptions& o_;
  Dtype dtype_;
  std::vector<TensorView> params_;
  RaggedTables tables_;
};

}  // namespace scanrnn
