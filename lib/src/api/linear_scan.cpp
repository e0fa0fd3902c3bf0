// SPDX-License-Identifier: Apache-2.0
// The bare recurrence: checks, plan, launch.
#include "scanrnn/linear_scan.h"

#include "api/check.h"
#include "stack/backend.h"

namespace scanrnn {

dispatch::Problem linear_scan_problem(std::int64_t steps, std::int64_t rows, Dtype dtype,
                                      bool log_form) {
  require(steps >= 0,
          [&] { return "steps: expected a number >= 0, got " + std::to_string(steps); });
  require(rows >= 0, [&] { return "rows: expected a number >= 0, got " + std::to_string(rows); });
  const auto what = [&] {
    return "steps: " + std::to_string(steps) + " steps of " + std::to_string(rows) + " rows";
  };
  check_countable(what, {steps, rows, 64});
  dispatch::Problem problem;
  problem.batch = 1;
  problem.steps = steps;
  problem.input_size = problem.hidden_size = rows;
  problem.gates = 0;  // nothing is projected
  problem.storage_bytes = static_cast<int>(size_of(dtype));
  problem.compute_bytes = static_cast<int>(size_of(compute_type(dtype)));
  problem.log_domain = log_form;
  return problem;
}
dispatch::Plan linear_scan_plan(const Context& context, std::int64_t steps, std::int64_t rows,
                                Dtype dtype, bool log_form, dispatch::Strategy strategy) {
  dispatch::Problem problem = linear_scan_problem(steps, rows, dtype, log_form);
  problem.forced = strategy;
  check_strategy(problem, context.limits());
  return dispatch::plan(problem, context.limits(), context.profile());
}

std::size_t linear_scan_workspace(const dispatch::Plan& plan) {
  const dispatch::Problem& p = plan.problem;
  ScanArgs args;
  args.log_form = p.log_domain;
  // Types of one size take the same memory.
  args.h.dtype = p.compute_bytes == 8   ? Dtype::float64
                 : p.storage_bytes == 2 ? Dtype::float16
                                        : Dtype::float32;
  Backend& backend = counting_backend(plan.device.processor);
  // A dtype that is computed in another one needs copies of all five tensors.
  Arena arena;
  const Dtype inner_type = backend.inner_type(args.h.dtype);
  const auto count = static_cast<std::size_t>(p.steps * p.hidden_size);
  const bool copies = inner_type != args.h.dtype;
  for (int tensor = 0; copies && tensor < 5; ++tensor) arena.take(count * size_of(inner_type));
  args.h.dtype = inner_type;
  Arena scratch = arena.rest();
  backend.scan(plan, args, scratch);
  arena.saw(scratch);
  return arena.peak();
}

void linear_scan(Context& context, const dispatch::Plan& plan, const ScanArgs& args) {
  const std::int64_t steps = plan.problem.steps, rows = plan.problem.hidden_size;
  const Dtype dtype = args.a.dtype;
  const Device device = context.options().device;
  const char* axes = "(steps, rows)";
  if (plan.device.processor != context.limits().processor ||
      plan.problem.storage_bytes != static_cast<int>(size_of(dtype)) ||
      plan.problem.log_domain != args.log_form) {
    throw value_error("plan: it was made for another dtype, device or form: " +
                      dispatch::explain(plan));
  }
  check(args.a, {args.log_form ? "log_a" : "a", {steps, rows}, axes, dtype, device});
  check(args.b, {args.log_form ? "log_b" : "b", {steps, rows}, axes, dtype, device});
  check(args.sign_b, {"sign_b", {steps, rows}, axes, dtype, device, true});
  require(args.log_form || !args.sign_b, "sign_b: it belongs to the log form only");
  check(args.h0, {"h_0", {rows}, "(rows,)", dtype, device, true});
  check(args.h, {"h", {steps, rows}, axes, dtype, device});
  check(args.workspace, "workspace", linear_scan_workspace(plan), plan);
  if (steps == 0 || rows == 0) return;

  Backend& backend = *context.impl().backend;
  const Dtype inner_type = backend.inner_type(dtype);
  Arena arena(args.workspace.data);
  const auto like = [&](const TensorView& view) {
    TensorView out = view;
    out.dtype = inner_type;
    out.strides = {view.rank == 1 ? 1 : rows, 1};
    out.data = arena.take(static_cast<std::size_t>(view.rank == 1 ? rows : steps * rows) *
                          size_of(inner_type));
    return out;
  };
  const auto inner = [&](const TensorView& view) {
    if (!view || dtype == inner_type) return view;
    const TensorView out = like(view);
    backend.copy(view, out);
    return out;
  };
  ScanArgs in = args;
  in.a = inner(args.a);
  in.b = inner(args.b);
  in.sign_b = inner(args.sign_b);
  in.h0 = inner(args.h0);
  if (dtype != inner_type) in.h = like(args.h);
  Arena scratch = arena.rest();
  backend.scan(plan, in, scratch);
  if (dtype != inner_type) backend.copy(in.h, args.h);
}

}  // namespace scanrnn
