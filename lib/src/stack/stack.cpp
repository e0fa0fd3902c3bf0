// SPDX-License-Identifier: Apache-2.0
// The stack: which tensor feeds which layer, what is kept for backward, and where it lives.
#include "stack/stack.h"

#include "stack/around.h"
#include "stack/group.h"

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

void Stack::forward(const ForwardArgs& args) {
  Run run(*this, args.params);
  const Drops drops{options, run.training(), args};
  const bool may_pool = plan.problem.layout == dispatch::Batch::ragged && plan.problem.steps == 1;
  const bool pooled = args.state_indices || (may_pool && run.counting());
  run.prepare(args.ragged, drops);
  const Around around(backend, plan, run, drops, args.ragged);
  const SequenceBounds sequences = run.sequences(args.ragged);
  State h0, hn;
  for (const auto part : kStateTensors) {
    if (!args.state_indices)
      h0.*part = run.inner(args.h0.*part), hn.*part = run.target(args.hn.*part);
    if (pooled) h0.*part = hn.*part = run.rows_of(args.h0.*part, args.state_indices);
  }
  const TensorView y = run.target(args.y);
  TensorView in = run.inner(args.x);
  Group group(backend, plan, workspace);
  std::function<void(const Tile&)> fill_in;  // with what the layer reads of a part
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
      if (run.training()) around.keep(call, reserve);
      call.x = in;
      call.skip = whole;
      call.y = run.columns(out, direction);
      run.give_state(h0, call, call.h0, call.more0);
      run.give_state(hn, call, call.hn, call.moren);
      if (plan.at_once > 1) {
        group.add(call, std::exchange(fill_in, nullptr));
      } else {
        run.with_scratch(call, [&](Arena& scratch) { around.forward(call, scratch); });
      }
    }
    in = out;
    if (drops.after_layers() && !last) in = run.tokens(workspace, run.features());
    const bool full = group.size() == static_cast<std::size_t>(plan.at_once);
    if (group.size() > 0 && (full || last)) group.forward();
    run.clear_padding(out, args.ragged);
    if (!drops.after_layers() || last) continue;
    fill_in = [&run, out, in, drop = drops.behind(layer)](const Tile& part) {
      run.drop_part(out, in, drop, part);
    };
    if (!run.chained()) std::exchange(fill_in, nullptr)({0, plan.problem.steps, 0, run.lines()});
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
  const Drops drops{options, run.training(), args};
  const int layers = options.num_layers;
  run.prepare(args.ragged, drops);
  const Around around(backend, plan, run, drops, args.ragged);
  const SequenceBounds sequences = run.sequences(args.ragged);
  const TensorView x = run.without_padding(args.x, args.ragged);
  const TensorView y = run.inner(args.y);
  State h0, dhn, dh0;
  for (const auto part : kStateTensors) {
    h0.*part = run.inner(args.h0.*part);
    dhn.*part = run.inner(args.dhn.*part), dh0.*part = run.target(args.dh0.*part);
  }
  const TensorView dx = run.target(args.dx);
  // Where h is projected, a product over tokens reads it.
  TensorView dy =
      options.proj_size > 0 ? run.without_padding(args.dy, args.ragged) : run.inner(args.dy);
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
      around.keep(calls.back(), reserve);
    }
  }
  TensorView between[2];  // cotangents of layers' inputs, in turn
  for (int i = 0; i < 2 && i + 1 < layers; ++i) between[i] = run.tokens(workspace, run.features());
  const bool drop_some = drops.after_layers() && layers > 1;
  TensorView dropped;  // of a chain each layer has its own
  if (drop_some && !run.chained()) dropped = run.tokens(workspace, run.features());
  TensorView own_dx;  // of the second of two directions at the same time
  if (plan.at_once > 1 && !run.chained()) {
    own_dx = run.tokens(workspace, std::max(options.input_size, layers > 1 ? run.features() : 0));
  }
  Group group(backend, plan, workspace);

  for (int layer = layers - 1; layer >= 0; --layer) {
    const bool drop_input = drops.after_layers() && layer > 0;
    TensorView in = layer == 0 ? x : outputs[static_cast<std::size_t>(layer - 1)];
    const Drop drop = drops.behind(layer - 1);
    if (drop_input) {
      if (run.chained()) dropped = run.tokens(workspace, run.features());
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
      call.accumulate_dx = call.accumulate_dskip = direction == 1;
      if (!dparams.empty()) {
        const auto own = run.parameters(dparams, layer, direction);
        call.dweight = own.weight;
        call.dbias = own.bias;
        call.drecurrent_weight = own.recurrent_weight;
        call.drecurrent_bias = own.recurrent_bias;
        call.dvectors = own.vectors;
        call.dprojection = own.projection;
        call.dnorms = own.norms;
      }
      if (plan.at_once == 1) {
        run.with_scratch(call, [&](Arena& scratch) { around.backward(call, scratch); });
        continue;
      }
      if (direction == 1 && call.dx.rank > 0) {
        call.dx = run.narrowed(own_dx, call.dx.sizes[2]);
        call.accumulate_dx = false;
      }
      std::function<void(const Tile&)> drop_part;
      if (drop_input && run.chained()) {
        drop_part = [&run, din, drop](const Tile& part) { run.drop_part(din, din, drop, part); };
      }
      group.add(call, std::move(drop_part));
    }
    const bool full = group.size() == static_cast<std::size_t>(plan.at_once);
    if (group.size() > 0 && (full || layer == 0)) group.backward();
    if (plan.at_once > 1 && !run.chained() && dproduct) {
      run.scale(run.narrowed(own_dx, dproduct.sizes[2]), dproduct, 1, true);
    }
    if (drops.from_input() && din) run.drop(dproduct, din, of_input);
    if (drop_input && !run.chained()) run.drop(din, din, drop);
    dy = din;
  }
  run.outer(dx, args.dx);
  for (const auto part : kStateTensors) run.outer(dh0.*part, args.dh0.*part);
  for (std::size_t i = 0; i < dparams.size(); ++i) run.outer(dparams[i], args.dparams[i]);
}

}  // namespace scanrnn
