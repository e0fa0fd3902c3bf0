// SPDX-License-Identifier: Apache-2.0
// The stack: which tensor feeds which layer, what is kept for backward, and where it lives.
#include "stack/stack.h"

#include "scanrnn/dispatch/stack_step.h"
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
  // A step that is one launch; not where it is told lengths, or may be.
  const bool step_as_one = dispatch::steps_as_one(plan);
  const bool as_one = step_as_one && !args.ragged && !(may_pool && run.counting());
  const bool pooled = (args.state_indices && !as_one) || (may_pool && run.counting());
  run.prepare(args.ragged, false);
  const Around around(backend, plan, run, drops, args.ragged);
  const SequenceBounds sequences = run.sequences(args.ragged);
  State h0, hn;
  for (const auto part : kStateTensors) {
    if (!args.state_indices)
      h0.*part = run.entering(args.h0.*part, args.hn.*part), hn.*part = run.target(args.hn.*part);
    if (args.state_indices && as_one) h0.*part = hn.*part = args.h0.*part;
    if (pooled) h0.*part = hn.*part = run.rows_of(args.h0.*part, args.state_indices);
  }
  const TensorView y = run.target(args.y);
  TensorView in = run.inner(args.x);
  Group group(backend, plan, workspace);
  std::vector<LayerCall> step;               // as one
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
      if (as_one) {
        step.push_back(call);
      } else if (plan.at_once > 1 && !step_as_one) {
        group.add(call, std::exchange(fill_in, nullptr));
      } else {
        run.with_scratch(call, [&](Arena& scratch) {
          around.is_needed() ? around.forward(call, scratch) : backend.forward(plan, call, scratch);
        });
      }
    }
    in = out;
    if (drops.after_layers() && !last) in = run.tokens(workspace, run.features());
    const bool full = group.size() == static_cast<std::size_t>(plan.at_once);
    if (group.size() > 0 && (full || last)) group.forward();
    if (step.size() == static_cast<std::size_t>(plan.at_once) || (last && !step.empty())) {
      if (!run.counting()) backend.step_stack(plan, step, args.state_indices);
      step.clear();
    }
    run.clear_padding(out, args.ragged);
    if (!drops.after_layers() || last) continue;
    fill_in = [&run, out, in, drop = drops.behind(layer)](const Tile& part) {
      run.drop_part(out, in, drop, part);
    };
    if (plan.part_steps == 0) {
      std::exchange(fill_in, nullptr)({0, plan.problem.steps, 0, run.lines()});
    }
  }
  if (args.state_indices && !as_one) {
    backend.clear_skipped(y, args.state_indices, args.h0.h.sizes[1]);
    for (const auto part : kStateTensors) {
      if (hn.*part) backend.put_states(hn.*part, args.state_indices, args.h0.*part);
    }
  }
  run.outer(y, args.y);
  for (const auto part : kStateTensors) run.outer(hn.*part, args.hn.*part);
}

namespace {

// The way back through a stack, layer by layer from the last one.
class WayBack {
 public:
  WayBack(Stack& stack, const BackwardArgs& args)
      : o_(stack.options),
        backend_(stack.backend),
        plan_(stack.plan),
        workspace_(stack.workspace),
        args_(args),
        run_(stack, args.params),
        drops_(o_, run_.training(), args),
        around_(stack.backend, plan_, run_, drops_, args_.ragged),
        group_(stack.backend, plan_, workspace_),
        sequences_(run_.sequences(args.ragged)) {
    run_.prepare(args.ragged, true);
    x_ = run_.without_padding(args.x, args.ragged);
    const TensorView y = run_.inner(args.y);
    for (const auto part : kStateTensors) {
      h0_.*part = run_.inner(args.h0.*part);
      dhn_.*part = run_.entering(args.dhn.*part, args.dh0.*part);
      dh0_.*part = run_.target(args.dh0.*part);
    }
    dx_ = run_.target(args.dx);
    // Where h is projected, a product over tokens reads it.
    dy_ = o_.proj_size > 0 ? run_.without_padding(args.dy, args.ragged) : run_.inner(args.dy);
    for (const TensorView& d : args.dparams) dparams_.push_back(run_.target(d));
    walk_reserve(stack.reserve, y);
    const int layers = o_.num_layers;
    for (int i = 0; i < 2 && i + 1 < layers; ++i) between_[i] = tokens(run_.features());
    if (drops_.after_layers() && layers > 1 && !goes_by_parts_) dropped_ = tokens(run_.features());
    if (!apart()) return;
    own_dx_ = tokens(std::max(o_.input_size, layers > 1 ? run_.features() : 0));
  }

  void layer(int layer) {
    const bool drop_input = drops_.after_layers() && layer > 0;
    TensorView in = layer == 0 ? x_ : outputs_[static_cast<std::size_t>(layer - 1)];
    const Drop drop = drops_.behind(layer - 1);
    if (drop_input) {
      if (goes_by_parts_) dropped_ = tokens(run_.features());
      run_.drop(in, dropped_, drop);
      in = dropped_;
    }
    const TensorView din = layer == 0 ? dx_ : between_[(layer - 1) % 2];
    const TensorView whole = in;
    TensorView dproduct = din;  // what a masked input gets from products, before the mask
    Drop of_input = drops_.of_input(layer, sequences_);
    if (drops_.from_input()) {
      in = tokens(whole.sizes[2]);
      run_.drop(whole, in, of_input);
      if (din || run_.counting()) dproduct = tokens(whole.sizes[2]);
    }
    std::function<void(const Tile&)> drop_part;
    if (drop_input && goes_by_parts_) {
      drop_part = [this, din, drop](const Tile& part) { run_.drop_part(din, din, drop, part); };
    }
    for (int direction = 0; direction < run_.directions(); ++direction) {
      LayerCall call = call_of(layer, direction);
      call.x = in;
      call.skip = whole;
      call.dx = dproduct;
      if (drops_.from_input() && call.carries_input()) {
        call.dskip = din;
        of_input.adds = true;
      }
      go_back(call, drop_part);
    }
    const bool full = group_.size() == static_cast<std::size_t>(plan_.at_once_vjp);
    if (group_.size() > 0 && (full || layer == 0)) group_.backward();
    if (apart() && dproduct) {
      run_.scale(run_.narrowed(own_dx_, dproduct.sizes[2]), dproduct, 1, true);
    }
    if (drops_.from_input() && din) run_.drop(dproduct, din, of_input);
    if (drop_input && !goes_by_parts_) run_.drop(din, din, drop);
    dy_ = din;
  }

  void finish() {
    run_.outer(dx_, args_.dx);
    for (const auto part : kStateTensors) run_.outer(dh0_.*part, args_.dh0.*part);
    for (std::size_t i = 0; i < dparams_.size(); ++i) run_.outer(dparams_[i], args_.dparams[i]);
  }

 private:
  // Two directions at the same time, of which the second adds its share of dx later.
  bool apart() const { return plan_.at_once_vjp > 1 && !plan_.problem.chained; }
  TensorView tokens(Index width) { return run_.tokens(workspace_, width); }

  // In the order in which forward filled it.
  void walk_reserve(Arena& reserve, const TensorView& y) {
    for (int layer = 0; layer < o_.num_layers; ++layer) {
      const bool last = layer + 1 == o_.num_layers;
      outputs_.push_back(last ? y : run_.tokens(reserve, run_.features()));
      for (int direction = 0; direction < run_.directions(); ++direction) {
        calls_.push_back(run_.layer_call(layer, direction, args_.ragged, drops_));
        run_.keep(calls_.back());
        around_.keep(calls_.back(), reserve);
      }
    }
  }
  // A layer call with all that does not depend on its input.
  LayerCall call_of(int layer, int direction) const {
    LayerCall call = calls_[static_cast<std::size_t>(layer * run_.directions() + direction)];
    call.y = run_.columns(outputs_[static_cast<std::size_t>(layer)], direction);
    call.dy = run_.columns(dy_, direction);
    run_.give_state(h0_, call, call.h0, call.more0);
    run_.give_state(dhn_, call, call.dhn, call.dmoren);
    run_.give_state(dh0_, call, call.dh0, call.dmore0);
    call.accumulate_dx = call.accumulate_dskip = direction == 1;
    if (dparams_.empty()) return call;
    const auto own = run_.parameters(dparams_, layer, direction);
    call.dweight = own.weight;
    call.dbias = own.bias;
    call.drecurrent_weight = own.recurrent_weight;
    call.drecurrent_bias = own.recurrent_bias;
    call.dvectors = own.vectors;
    call.dprojection = own.projection;
    call.dnorms = own.norms;
    return call;
  }
  // Now, or with its group.
  void go_back(LayerCall& call, const std::function<void(const Tile&)>& drop_part) {
    if (plan_.at_once_vjp == 1) {
      run_.with_scratch(call, [&](Arena& scratch) {
        around_.is_needed() ? around_.backward(call, scratch)
                            : backend_.backward(plan_, call, scratch);
      });
      return;
    }
    if (call.accumulate_dx && call.dx.rank > 0) {
      call.dx = run_.narrowed(own_dx_, call.dx.sizes[2]);
      call.accumulate_dx = false;
    }
    group_.add(call, drop_part);
  }

  const LayerOptions& o_;
  Backend& backend_;
  const dispatch::Plan& plan_;
  Arena& workspace_;
  const BackwardArgs& args_;
  Run run_;
  const Drops drops_;
  const Around around_;
  Group group_;
  const SequenceBounds sequences_;
  const bool goes_by_parts_ = plan_.part_steps_vjp > 0;
  TensorView x_, dx_, dy_;  // dy_: of the layer that is next
  State h0_, dhn_, dh0_;
  std::vector<TensorView> dparams_, outputs_;
  std::vector<LayerCall> calls_;
  TensorView between_[2];  // cotangents of layers' inputs, in turn
  TensorView dropped_;     // of a chain each layer has its own
  TensorView own_dx_;      // of the second of two directions at the same time
};

}  // namespace

void Stack::backward(const BackwardArgs& args) {
  WayBack back(*this, args);
  for (int layer = options.num_layers - 1; layer >= 0; --layer) back.layer(layer);
  back.finish();
}

}  // namespace scanrnn
