// SPDX-License-Identifier: Apache-2.0
// The stack: which tensor feeds which layer, what is kept for backward, and where it lives.
#include "stack/stack.h"

#include "stack/drops.h"

namespace scanrnn {

TensorView entry(const TensorView& view, Index index) {
  TensorView out = view;
  --out.rank;
  for (std::size_t axis = 0; axis + 1 < kMaxRank; ++axis) {
    out.sizes[axis] = view.sizes[axis + 1];
    out.strides[axis] = view.strides[axis + 1];
  }
  if (view.data) {
    out.data = static_cast<char*>(view.data) +
               index * view.strides[0] * static_cast<Index>(size_of(view.dtype));
  }
  return out;
}

namespace {

// What forward and backward share: the shapes, and memory in the backend's own dtype.
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
    return o_.batch_first && stack_.plan.problem.layout != dispatch::Batch::packed;
  }
  Index features() const { return directions() * o_.hidden_size; }
  bool counting() const { return stack_.workspace.counting(); }
  bool training() const { return stack_.plan.problem.training; }

  // The tensor itself, or a copy of it in the backend's dtype.
  TensorView inner(const TensorView& view) {
    if (!present(view)) return {};
    if (view.dtype == dtype_) return view;
    const TensorView out = like(view);
    if (!counting()) stack_.backend.copy(view, out);
    return out;
  }
  // Memory to write `view` from with outer(); the tensor itself when the dtype is right.
  TensorView target(const TensorView& view) {
    return present(view) && view.dtype != dtype_ ? like(view) : view;
  }
  void outer(const TensorView& from, const TensorView& to) {
    if (present(to) && from.dtype != to.dtype && !counting()) stack_.backend.copy(from, to);
  }

  // [T,B,width] in the layout of the user's tensors.
  TensorView tokens(Arena& arena, Index width) {
    const auto& p = stack_.plan.problem;
    TensorView out =
        dense(arena.take(static_cast<std::size_t>(p.steps * lines() * width) * size_of(dtype_)),
              p.steps, lines(), width, batch_major());
    out.dtype = dtype_;
    return out;
  }

  // Before the first layer call of a ragged batch, or of a linear cell with draws in its
  // recurrence.
  void prepare(const Ragged& ragged, const Drops& drops) {
    if (info(o_.cell).recurrence == dispatch::Recurrence::dense || !drops.in_recurrence()) {
      if (stack_.plan.problem.layout == dispatch::Batch::rectangular) return;
      if (!ragged && !counting()) return;
    }
    tables_ = stack_.backend.prepare(stack_.plan, ragged, stack_.workspace);
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
    out.input = layer == 0 ? o_.input_size : features();
    out.hidden = o_.hidden_size;
    out.gates = cell.gates + (cell.highway && out.input != out.hidden ? 1 : 0);
    out.masks = drops.in_recurrence(out);
    if (!params_.empty()) {
      const auto own = parameters(params_, layer, direction);
      out.weight = own.weight;
      out.bias = own.bias;
      out.recurrent_weight = own.recurrent_weight;
      out.recurrent_bias = own.recurrent_bias;
      out.vectors = own.vectors;
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
    TensorView weight, recurrent_weight, vectors, bias, recurrent_bias;
  };
  Parameters parameters(const std::vector<TensorView>& all, int layer, int direction) const {
    const CellInfo& cell = info(o_.cell);
    const bool dense = cell.recurrence == dispatch::Recurrence::dense, vectors = cell.vectors > 0;
    const Index each = 1 + dense + vectors + (o_.bias ? 1 + dense : 0);
    const TensorView* own =
        &all[static_cast<std::size_t>((layer * directions() + direction) * each)];
    Parameters out;
    out.weight = *own++;
    if (dense) out.recurrent_weight = *own++;
    if (vectors) out.vectors = *own++;
    if (o_.bias) out.bias = *own++;
    if (o_.bias && dense) out.recurrent_bias = *own++;
    return out;
  }

  // Zeros where a sequence has no steps.
  void clear_padding(const TensorView& view, const Ragged& ragged) {
    if (ragged.lengths && !counting()) stack_.backend.clear_padding(view, ragged.lengths);
  }
  // inner(), with zeros there: a product over tokens must not meet what a caller left.
  TensorView without_padding(const TensorView& view, const Ragged& ragged) {
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

  SequenceBounds sequences(const Ragged& ragged) const {
    const auto& p = stack_.plan.problem;
    return {ragged, p.steps, p.batch, p.layout == dispatch::Batch::packed};
  }
  void drop(const TensorView& from, const TensorView& to, const Drop& drop) {
    if (!counting()) stack_.backend.dropout(from, to, drop);
  }
  // The call with some of R dropped, in memory of `scratch`.
  LayerCall without_some(LayerCall call, const Drops& drops, Arena& scratch) {
    if (!drops.from_matrix()) return call;
    TensorView& weight = call.recurrent_weight;
    const TensorView whole = as_rows(weight);
    weight.strides[0] = weight.sizes[1];
    weight.data =
        scratch.take(static_cast<std::size_t>(weight.sizes[0] * weight.sizes[1]) * size_of(dtype_));
    drop(whole, as_rows(weight), drops.of_matrix(call));
    return call;
  }

  // This direction's columns of a [T,B,D*H] tensor.
  TensorView columns(const TensorView& view, int direction) const {
    TensorView out = view;
    out.sizes[2] = o_.hidden_size;
    if (view.data) {
      out.data = static_cast<char*>(view.data) +
                 direction * o_.hidden_size * static_cast<Index>(size_of(view.dtype));
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

}  // namespace

void Stack::forward(const ForwardArgs& args) {
  Run run(*this, args.params);
  const Drops drops{options, run.training(), args.seed};
  const bool may_pool = plan.problem.layout == dispatch::Batch::ragged && plan.problem.steps == 1;
  const bool pooled = args.state_indices || (may_pool && run.counting());
  run.prepare(args.ragged, drops);
  const SequenceBounds sequences = run.sequences(args.ragged);
  State h0, hn;
  for (const auto part : kStateTensors) {
    if (!args.state_indices)
      h0.*part = run.inner(args.h0.*part), hn.*part = run.target(args.hn.*part);
    if (pooled) h0.*part = hn.*part = run.rows_of(args.h0.*part, args.state_indices);
  }
  const TensorView y = run.target(args.y);
  TensorView in = run.inner(args.x);
  for (int layer = 0; layer < options.num_layers; ++layer) {
    const bool last = layer + 1 == options.num_layers;
    const TensorView out =
        last ? y : run.tokens(run.training() ? reserve : workspace, run.features());
    const TensorView whole = in;
    if (drops.from_input()) {
      in = run.tokens(workspace, in.sizes[2]);
      run.drop(whole, in, drops.of_input(layer, sequences));
    }
    for (int direction = 0; direction < run.directions(); ++direction) {
      LayerCall call = run.layer_call(layer, direction, args.ragged, drops);
      run.keep(call);
      call.x = in;
      call.skip = whole;
      call.y = run.columns(out, direction);
      run.give_state(h0, call, call.h0, call.more0);
      run.give_state(hn, call, call.hn, call.moren);
      run.with_scratch(call, [&](Arena& scratch) {
        backend.forward(plan, run.without_some(call, drops, scratch), scratch);
      });
    }
    run.clear_padding(out, args.ragged);
    in = out;
    if (drops.after_layers() && !last) {
      in = run.tokens(workspace, run.features());
      run.drop(out, in, drops.behind(layer));
    }
  }
  if (args.state_indices) {
    backend.clear_skipped(y, args.state_indices, args.h0.h.sizes[1]);
    for (const auto part : kStateTensors) {
      if (hn.*part) backend.put_states(hn.*part, args.state_indices, args.h0.*part);
    }
  }
  run.outer(y, args.y);
  for (const auto part : kStateTensors) run.outer(hn.*part, args.hn.*part);
}

void Stack::backward(const BackwardArgs& args) {
  Run run(*this, args.params);
  const Drops drops{options, run.training(), args.seed};
  const int layers = options.num_layers;
  run.prepare(args.ragged, drops);
  const SequenceBounds sequences = run.sequences(args.ragged);
  const TensorView x = run.without_padding(args.x, args.ragged);
  const TensorView y = run.inner(args.y);
  State h0, dhn, dh0;
  for (const auto part : kStateTensors) {
    h0.*part = run.inner(args.h0.*part);
    dhn.*part = run.inner(args.dhn.*part), dh0.*part = run.target(args.dh0.*part);
  }
  const TensorView dx = run.target(args.dx);
  TensorView dy = run.inner(args.dy);
  std::vector<TensorView> dparams;
  for (const TensorView& d : args.dparams) dparams.push_back(run.target(d));

  // Walk the reserve in the order in which forward filled it.
  std::vector<TensorView> outputs;
  std::vector<LayerCall> calls;
  for (int layer = 0; layer < layers; ++layer) {
    outputs.push_back(layer + 1 == layers ? y : run.tokens(reserve, run.features()));
    for (int direction = 0; direction < run.directions(); ++direction) {
      calls.push_back(run.layer_call(layer, direction, args.ragged, drops));
      run.keep(calls.back());
    }
  }
  TensorView between[2];  // cotangents of layers' inputs, in turn
  for (int i = 0; i < 2 && i + 1 < layers; ++i) between[i] = run.tokens(workspace, run.features());
  const TensorView dropped =
      drops.after_layers() && layers > 1 ? run.tokens(workspace, run.features()) : TensorView{};

  for (int layer = layers - 1; layer >= 0; --layer) {
    const bool drop_input = drops.after_layers() && layer > 0;
    TensorView in = layer == 0 ? x : outputs[static_cast<std::size_t>(layer - 1)];
    const Drop drop = drops.behind(layer - 1);
    if (drop_input) {
      run.drop(in, dropped, drop);
      in = dropped;
    }
    const TensorView din = layer == 0 ? dx : between[(layer - 1) % 2];
    const TensorView whole = in;
    TensorView dproduct = din;  // what a masked input gets from products, before the mask
    Drop of_input = drops.of_input(layer, sequences);
    if (drops.from_input()) {
      in = run.tokens(workspace, whole.sizes[2]);
      run.drop(whole, in, of_input);
      if (din || run.counting()) dproduct = run.tokens(workspace, whole.sizes[2]);
    }
    for (int direction = 0; direction < run.directions(); ++direction) {
      LayerCall call = calls[static_cast<std::size_t>(layer * run.directions() + direction)];
      call.x = in;
      call.skip = whole;
      call.y = run.columns(outputs[static_cast<std::size_t>(layer)], direction);
      call.dy = run.columns(dy, direction);
      run.give_state(h0, call, call.h0, call.more0);
      run.give_state(dhn, call, call.dhn, call.dmoren);
      run.give_state(dh0, call, call.dh0, call.dmore0);
      call.dx = dproduct;
      if (drops.from_input() && call.carries_input()) {
        call.dskip = din;
        of_input.adds = true;
      }
      call.accumulate_dx = direction == 1;
      if (!dparams.empty()) {
        const auto own = run.parameters(dparams, layer, direction);
        call.dweight = own.weight;
        call.dbias = own.bias;
        call.drecurrent_weight = own.recurrent_weight;
        call.drecurrent_bias = own.recurrent_bias;
        call.dvectors = own.vectors;
      }
      run.with_scratch(call, [&](Arena& scratch) {
        backend.backward(plan, run.without_some(call, drops, scratch), scratch);
      });
      const TensorView dmatrix = as_rows(call.drecurrent_weight);
      if (drops.from_matrix() && dmatrix) {
        run.drop(dmatrix, dmatrix, drops.of_matrix(call));
      }
    }
    if (drops.from_input() && din) run.drop(dproduct, din, of_input);
    if (drop_input) run.drop(din, din, drop);
    dy = din;
  }
  run.outer(dx, args.dx);
  for (const auto part : kStateTensors) run.outer(dh0.*part, args.dh0.*part);
  for (std::size_t i = 0; i < dparams.size(); ++i) run.outer(dparams[i], args.dparams[i]);
}

}  // namespace scanrnn
