// SPDX-License-Identifier: Apache-2.0
// The bare recurrence: plan and launch. What is checked is in api/scan_check.cpp.
#include "scanrnn/linear_scan.h"

#include <algorithm>

#include "api/check.h"
#include "api/scan_check.h"
#include "stack/backend.h"

namespace scanrnn {
namespace {

bool by_logarithms(ScanForm form) { return form != ScanForm::linear; }

// A dtype of what the plan was made for; types of one size take the same memory.
Dtype dtype_of(const dispatch::Problem& p) {
  if (p.storage_bytes > p.compute_bytes) {
    return p.compute_bytes == 8 ? Dtype::complex128 : Dtype::complex64;
  }
  return p.compute_bytes == 8   ? Dtype::float64
         : p.storage_bytes == 2 ? Dtype::float16
                                : Dtype::float32;
}

const char* name(ScanForm form) {
  return form == ScanForm::linear ? "linear" : form == ScanForm::log ? "log" : "log_output";
}

// Whether there is an `a` is looked at elsewhere.
void check_plan(const Context& context, const dispatch::Plan& plan, ScanForm form,
                const TensorView& a, bool training) {
  const dispatch::Problem& p = plan.problem;
  const Dtype dtype = is_absent(a) ? dtype_of(p) : a.dtype;
  const auto bytes = static_cast<int>(size_of(dtype));
  if (plan.device.processor != context.limits().processor || p.gates != 0 ||
      p.storage_bytes != bytes || (p.storage_bytes > p.compute_bytes) != is_complex(dtype) ||
      p.log_domain != by_logarithms(form) || p.log_states != (form == ScanForm::log_output)) {
    throw value_error(std::string("plan: it was made for another dtype, form or device than ") +
                      name(dtype) + ", " + name(form) + " and " + name(context.options().device) +
                      ": " + dispatch::explain(plan));
  }
  require(p.training || !training,
          [&] { return "plan: it was not made for training: " + dispatch::explain(plan); });
}

}  // namespace

dispatch::Problem linear_scan_problem(const ScanShape& shape) {
  check_shape(shape);
  dispatch::Problem problem;
  problem.batch = shape.lines;
  problem.steps = shape.steps;
  problem.input_size = problem.hidden_size = shape.rows;
  problem.gates = 0;  // nothing is projected
  problem.storage_bytes = static_cast<int>(size_of(shape.dtype));
  problem.compute_bytes =
      static_cast<int>(size_of(compute_type(shape.dtype)) / (is_complex(shape.dtype) ? 2 : 1));
  problem.training = shape.training;
  problem.log_domain = by_logarithms(shape.form);
  problem.log_states = shape.form == ScanForm::log_output;
  problem.time_contiguous = shape.time_contiguous && shape.steps > 1;  // one step adjoins none
  return problem;
}
dispatch::Plan linear_scan_plan(const Context& context, const ScanShape& shape,
                                dispatch::Strategy strategy) {
  dispatch::Problem problem = linear_scan_problem(shape);
  problem.forced = strategy;
  check_strategy(problem, context.limits());
  return dispatch::plan(problem, context.limits(), context.profile());
}

std::size_t linear_scan_workspace(const dispatch::Plan& plan) {
  const dispatch::Problem& p = plan.problem;
  Backend& backend = counting_backend(plan.device.processor);
  static char nowhere;  // nobody reads or writes it
  TensorView all = TensorView::of(&nowhere, dtype_of(p), {p.steps, p.batch, p.hidden_size});
  TensorView one = TensorView::of(&nowhere, dtype_of(p), {1, p.batch, p.hidden_size});
  const ScanForm form = !p.log_domain  ? ScanForm::linear
                        : p.log_states ? ScanForm::log_output
                                       : ScanForm::log;
  const TensorView of_logs = p.log_domain ? all : TensorView{};
  const TensorView of_states = p.log_states ? all : TensorView{};
  Arena forward, backward;
  ScanArgs args;
  args.form = form;
  args.a = args.b = args.h = all;
  args.sign_b = of_logs;
  args.h0 = one;
  args.sign_h = of_states;
  if (p.log_states) args.sign_h0 = one;
  backend.scan(plan, args, forward);
  if (!p.training) return forward.peak();
  ScanBackwardArgs back;
  back.form = form;
  back.a = back.h = back.dh = back.da = back.db = all;
  back.b = back.sign_b = of_logs;
  back.h0 = back.dh0 = one;
  back.sign_h = of_states;
  if (p.log_states) back.sign_h0 = one;
  backend.scan_backward(plan, back, backward);
  return std::max(forward.peak(), backward.peak());
}

void linear_scan(Context& context, const dispatch::Plan& plan, const ScanArgs& args) {
  check_plan(context, plan, args.form, args.a, false);
  const ScanArgs checked = check_scan(context, plan, args);
  check(args.workspace, "workspace", linear_scan_workspace(plan), plan);
  const dispatch::Problem& p = plan.problem;
  if (p.steps == 0 || p.batch == 0 || p.hidden_size == 0) return;
  Arena arena(args.workspace.data);
  context.impl().backend->scan(plan, checked, arena);
}

void linear_scan_backward(Context& context, const dispatch::Plan& plan,
                          const ScanBackwardArgs& args) {
  check_plan(context, plan, args.form, args.a, true);
  const ScanBackwardArgs checked = check_scan(context, plan, args);
  check(args.workspace, "workspace", linear_scan_workspace(plan), plan);
  const dispatch::Problem& p = plan.problem;
  if (p.batch == 0 || p.hidden_size == 0 || (p.steps == 0 && !args.dh0)) return;
  Arena arena(args.workspace.data);
  context.impl().backend->scan_backward(plan, checked, arena);
}

}  // namespace scanrnn
