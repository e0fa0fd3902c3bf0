// SPDX-License-Identifier: Apache-2.0
// The public layer: checks its arguments, asks for a plan, and runs the stack.
#include "scanrnn/layer.h"

#include <algorithm>

#include "api/parameters.h"
#include "api/shapes.h"
#include "scanrnn/counted_plan.h"
#include "stack/stack.h"

namespace scanrnn {
namespace {

// Whether what a step does depends on lots; the mean of zoneout is one.
bool draws(const LayerOptions& o, bool training) {
  return o.zoneout > 0 || o.zoneout_cell > 0 || (training && o.draws && o.state_dropout > 0);
}

// Layer calls that need not wait for one another's end: of dense cells, which cannot fill a machine
// with few sequences, and where nothing is made around a call.
int at_once(const LayerOptions& o, const dispatch::Problem& problem) {
  const bool dense = problem.recurrence == dispatch::Recurrence::dense;
  const bool made = o.proj_size > 0 || o.num_heads > 1 || o.dropconnect > 0;
  if (!dense || made || dispatch::by_lines(problem)) return 1;
  if (o.bidirectional) return 2;
  // A step that goes on from a pool of states has a plan for a ragged batch.
  const bool step = problem.layout == Batch::ragged && problem.steps == 1;
  const bool chain = problem.layout == Batch::rectangular || step;
  return chain && o.input_dropout == 0 ? o.num_layers : 1;
}

void check_plan(const Layer& layer, const Context& context, const dispatch::Plan& plan,
                bool training) {
  const auto& p = plan.problem;
  if (p.layer != number_of(layer.options()) ||
      plan.device.processor != context.limits().processor) {
    throw value_error("plan: it was made for another layer or device: " + dispatch::explain(plan));
  }
  require(!training || p.training, "plan: backward needs a plan of training mode");
  const bool inside = plan.strategy == dispatch::Strategy::parallel_scan && !plan.across_blocks;
  const bool splits = plan.device.processor == dispatch::Processor::cpu || !inside ||
                      dispatch::splits_inside_blocks(p);
  require(splits, [&] {
    return "plan: expected one that splits time over blocks, the only way of a ragged batch and of "
           "draws, got " +
           dispatch::explain(plan);
  });
}

// The sizes of a plan that comes without them, once what must fit it was checked.
Sizes sizes_of(const Layer& layer, const dispatch::Plan& plan, const Sizes* counted) {
  return counted ? *counted : layer.sizes(plan);
}

// `h` names the initial state in errors.
void run_forward(const Layer& layer, Context& context, const dispatch::Plan& plan,
                 const Sizes* counted, const ForwardArgs& args, const char* h) {
  check_plan(layer, context, plan, false);
  const Shapes shapes{layer, plan, context};
  const LayerOptions& o = layer.options();
  ForwardArgs inner = args;
  shapes.check_params("", inner.params);
  inner.x = shapes.over_time(args.x, shapes.input("x"));
  const bool pooled = !is_absent(args.state_indices);
  inner.h0 = pooled ? shapes.check_pool(h, args) : shapes.check_initial(h, args.h0);
  if (pooled) inner.state_indices = shapes.check_indices(args);
  inner.y = shapes.over_time(args.y, shapes.output("y"), Layout::output_rows);
  inner.hn = shapes.check_state("h_n", args.hn, Layout::output_rows);
  shapes.check_outputs("y", inner.y, "h_n", inner.hn);
  inner.ragged = check_ragged(args.ragged, plan.problem, o.batch_first, context);
  inner.seed_in = shapes.check_seed(args.seed_in);
  const Sizes need = sizes_of(layer, plan, counted);
  check(args.workspace, "workspace", need.workspace, plan);
  if (plan.problem.training) check(args.reserve, "reserve", need.reserve, plan);

  Arena workspace(args.workspace.data), reserve(args.reserve.data);
  Stack{o, plan, *context.impl().backend, workspace, reserve}.forward(inner);
}

void run_sequence(const Layer& layer, Context& context, const dispatch::Plan& plan,
                  const Sizes* counted, const ForwardArgs& args) {
  require(is_absent(args.state_indices), "state_indices: expected none, a step alone takes them");
  run_forward(layer, context, plan, counted, args, "h_0");
}

void run_backward(const Layer& layer, Context& context, const dispatch::Plan& plan,
                  const Sizes* counted, const BackwardArgs& args) {
  check_plan(layer, context, plan, true);
  const Shapes shapes{layer, plan, context};
  const LayerOptions& o = layer.options();
  BackwardArgs inner = args;
  shapes.check_params("", inner.params);
  inner.x = shapes.over_time(args.x, shapes.input("x"));
  inner.h0 = shapes.check_initial("h_0", args.h0);
  inner.y = shapes.over_time(args.y, shapes.output("y"));
  inner.dy = shapes.over_time(args.dy, shapes.output("dy", true));
  inner.dhn = shapes.check_state("dh_n", args.dhn);
  inner.dx = shapes.over_time(args.dx, shapes.input("dx", true), Layout::output_rows);
  inner.dh0 = shapes.check_state("dh_0", args.dh0, Layout::output_rows);
  if (!inner.dparams.empty()) shapes.check_params("d", inner.dparams, Layout::output_rows);
  shapes.check_outputs("dx", inner.dx, "dh_0", inner.dh0, inner.dparams);
  inner.ragged = check_ragged(args.ragged, plan.problem, o.batch_first, context);
  inner.seed_in = shapes.check_seed(args.seed_in);
  const Sizes need = sizes_of(layer, plan, counted);
  check(args.workspace, "workspace", need.workspace, plan);
  check(args.reserve, "reserve", need.reserve, plan);

  Arena workspace(args.workspace.data), reserve(args.reserve.data);
  Stack{o, plan, *context.impl().backend, workspace, reserve}.backward(inner);
}

void run_step(const Layer& layer, Context& context, const dispatch::Plan& plan,
              const Sizes* counted, const ForwardArgs& args) {
  const LayerOptions& o = layer.options();
  require(!o.bidirectional,
          "step: a bidirectional layer needs the whole sequence, so it cannot step");
  require(plan.problem.steps == 1, [&] {
    return "plan: step needs a plan for one step, got " + std::to_string(plan.problem.steps) +
           " steps";
  });
  const std::int64_t batch_size = plan.problem.batch;
  require(plan.problem.layout != Batch::packed,
          "plan: expected one of a batch of lines, of which a step is, got one of packed tokens");
  const auto as_sequence = [&](const char* name, const TensorView& view, std::int64_t width,
                               const char* axes) {
    const TensorView row =
        check(view, {name, {batch_size, width}, axes, o.dtype, context.options().device});
    TensorView out = row;
    out.rank = 3;
    const std::size_t batch = o.batch_first ? 0 : 1;
    out.sizes = {1, 1, width};
    out.strides = {row.strides[0], row.strides[0], row.strides[1]};
    out.sizes[batch] = batch_size;
    return out;
  };
  ForwardArgs sequence = args;
  sequence.x = as_sequence("x_t", args.x, o.input_size, "(batch, input_size)");
  sequence.y = as_sequence("y", args.y, layer.output_size(),
                           o.proj_size > 0 ? "(batch, proj_size)" : "(batch, hidden_size)");
  run_forward(layer, context, plan, counted, sequence, "h");
}

}  // namespace

Layer::Layer(const LayerOptions& options)
    : options_(options), parameters_(parameters_of(options, check_options(options))) {}

dispatch::Problem Layer::problem(const BatchShape& shape, Mode mode, MatmulPrecision precision,
                                 dispatch::Strategy strategy) const {
  const std::int64_t steps = shape.steps, batch = shape.batch;
  require(steps >= 0,
          [&] { return "steps: expected a number >= 0, got " + std::to_string(steps); });
  require(batch >= 0,
          [&] { return "batch: expected a number >= 0, got " + std::to_string(batch); });
  require(shape.longest >= 0 && shape.longest <= steps, [&] {
    return "longest: expected a number in [0, " + std::to_string(steps) + "], got " +
           std::to_string(shape.longest);
  });
  const auto what = [&] {
    return "steps: " + std::to_string(steps) + " steps of a batch of " + std::to_string(batch);
  };
  // All that is kept or worked in is a few numbers of 8 bytes a unit, a token and a layer.
  const std::int64_t lines = shape.layout == Batch::packed ? 1 : batch;
  const std::int64_t widest = std::max(
      {options_.input_size, options_.projection_size, directions() * options_.hidden_size});
  check_countable(what, {steps, lines, widest, options_.num_layers, 128});
  check_countable(what, {batch, widest, options_.num_layers, 128});
  dispatch::Problem problem;
  problem.layer = number_of(options_);
  problem.recurrence = info(options_.cell).recurrence;
  problem.batch = batch;
  problem.steps = steps;
  problem.layout = shape.layout;
  problem.longest = shape.longest;
  problem.input_size = options_.input_size;
  problem.hidden_size = options_.hidden_size;
  problem.gates = info(options_.cell).gates;
  problem.sums = info(options_.cell).preactivations;
  problem.readout = info(options_.cell).readout;
  problem.highway = info(options_.cell).highway;
  problem.normed = options_.layer_norm;
  problem.resets = !options_.reset_after;
  problem.draws = draws(options_, mode == Mode::training);
  problem.heads = options_.num_heads;
  problem.storage_bytes = static_cast<int>(size_of(options_.dtype));
  problem.compute_bytes = static_cast<int>(size_of(compute_type(options_.dtype)));
  problem.training = mode == Mode::training;
  problem.log_domain = options_.domain == Domain::log;
  problem.split_products =
      options_.dtype == Dtype::float32 && precision == MatmulPrecision::highest;
  problem.at_once = at_once(options_, problem);
  problem.chained = problem.at_once > 1 && !options_.bidirectional;
  problem.linked = problem.chained && problem.layout == Batch::rectangular &&
                   (options_.dropout == 0 || !problem.training);
  problem.forced = strategy;
  return problem;
}

dispatch::Plan Layer::plan(const Context& context, const BatchShape& shape, Mode mode,
                           dispatch::Strategy strategy) const {
  const auto asked = problem(shape, mode, context.options().matmul_precision, strategy);
  check_strategy(asked, context.limits());
  return dispatch::plan(asked, context.limits(), context.profile());
}

Sizes Layer::sizes(const dispatch::Plan& plan) const {
  const auto& p = plan.problem;
  const Shapes shapes{*this, plan, {}};
  const auto phantom = [&](const Expected& want) {
    TensorView view = TensorView::of(nullptr, want.dtype, {});
    for (std::int64_t size : want.sizes) view.sizes[static_cast<std::size_t>(view.rank++)] = size;
    return view;
  };
  const auto over_time = [&](const Expected& want) {
    return time_first(phantom(want), options_.batch_first, p.layout);
  };
  const auto state = [&](bool of_h) { return phantom(shapes.state_of("", of_h)); };
  std::vector<TensorView> params;
  for (const ParameterInfo& info : parameters_) {
    params.push_back(phantom({"", info.sizes, "", options_.dtype, {}}));
  }
  Backend& backend = counting_backend(plan.device.processor);
  Arena forward_space, forward_reserve, backward_space, backward_reserve;
  ForwardArgs forward;
  forward.params = params;
  forward.x = over_time(shapes.input(""));
  forward.y = over_time(shapes.output(""));
  for (std::size_t i = 0; i < shapes.names_of("h").count(); ++i) {
    forward.h0.*kStateTensors[i] = forward.hn.*kStateTensors[i] = state(i == 0);
  }
  Stack{options_, plan, backend, forward_space, forward_reserve}.forward(forward);
  if (p.training) {
    BackwardArgs backward;
    backward.params = backward.dparams = params;
    backward.x = backward.dx = forward.x;
    backward.y = backward.dy = forward.y;
    backward.h0 = backward.dhn = backward.dh0 = forward.h0;
    Stack{options_, plan, backend, backward_space, backward_reserve}.backward(backward);
  }
  return {std::max(forward_space.peak(), backward_space.peak()), forward_reserve.peak()};
}

void Layer::forward(Context& context, const dispatch::Plan& plan, const ForwardArgs& args) const {
  run_sequence(*this, context, plan, nullptr, args);
}
void Layer::backward(Context& context, const dispatch::Plan& plan, const BackwardArgs& args) const {
  run_backward(*this, context, plan, nullptr, args);
}
void Layer::step(Context& context, const dispatch::Plan& plan, const ForwardArgs& args) const {
  run_step(*this, context, plan, nullptr, args);
}

void forward(const Layer& layer, Context& context, const CountedPlan& counted,
             const ForwardArgs& args) {
  run_sequence(layer, context, counted.plan, &counted.sizes, args);
}
void backward(const Layer& layer, Context& context, const CountedPlan& counted,
              const BackwardArgs& args) {
  run_backward(layer, context, counted.plan, &counted.sizes, args);
}
void step(const Layer& layer, Context& context, const CountedPlan& counted,
          const ForwardArgs& args) {
  run_step(layer, context, counted.plan, &counted.sizes, args);
}

}  // namespace scanrnn
