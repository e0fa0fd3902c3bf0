// SPDX-License-Identifier: Apache-2.0
// The bare recurrence: plan, launch, and copies for a device that works in another dtype. What is
// checked is in api/scan_check.cpp.
#include "scanrnn/linear_scan.h"

#include <utility>
#include <vector>

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

void check_plan(const Context& context, const dispatch::Plan& plan, ScanForm form, Dtype dtype,
                bool training) {
  const dispatch::Problem& p = plan.problem;
  const auto bytes = static_cast<int>(size_of(dtype));
  if (plan.device.processor != context.limits().processor || p.gates != 0 ||
      p.storage_bytes != bytes || (p.storage_bytes > p.compute_bytes) != is_complex(dtype) ||
      p.log_domain != by_logarithms(form) || p.log_states != (form == ScanForm::log_output)) {
    throw value_error("plan: it was made for another dtype, device or form: " +
                      dispatch::explain(plan));
  }
  require(p.training || !training,
          [&] { return "plan: it was not made for training: " + dispatch::explain(plan); });
}

// Tensors in the dtype that the backend works in: inputs are copied there, outputs from there when
// all is done.
class Inner {
 public:
  Inner(Backend& backend, Dtype dtype, Arena& arena)
      : backend_(backend), type_(backend.inner_type(dtype)), arena_(arena) {
    copies_ = type_ != dtype;
  }
  void input(TensorView& view) {
    if (!copies_ || !view) return;
    const TensorView copy = like(view);
    if (!arena_.counting()) backend_.copy(view, copy);
    view = copy;
  }
  void output(TensorView& view) {
    if (!copies_ || !view) return;
    const TensorView copy = like(view);
    outputs_.emplace_back(copy, view);
    view = copy;
  }
  void finish() {
    if (arena_.counting()) return;
    for (const auto& [from, to] : outputs_) backend_.copy(from, to);
  }

 private:
  // Dense, and with the axis innermost that is so in `view`.
  TensorView like(const TensorView& view) {
    TensorView out = view;
    const bool by_time = view.strides[0] == 1 && view.strides[2] != 1 && view.sizes[0] > 1;
    const std::int64_t steps = view.sizes[0], lines = view.sizes[1], rows = view.sizes[2];
    out.strides = {lines * rows, rows, 1};
    if (by_time) out.strides = {1, rows * steps, steps};
    out.dtype = type_;
    out.data = arena_.take(static_cast<std::size_t>(steps * lines * rows) * size_of(type_));
    return out;
  }

  Backend& backend_;
  Dtype type_;
  Arena& arena_;
  bool copies_;
  std::vector<std::pair<TensorView, TensorView>> outputs_;
};

void run(Backend& backend, const dispatch::Plan& plan, ScanArgs args, Arena& arena) {
  Inner inner(backend, args.h.dtype, arena);
  for (TensorView* view : {&args.a, &args.b, &args.sign_b, &args.h0, &args.sign_h0}) {
    inner.input(*view);
  }
  inner.output(args.h);
  inner.output(args.sign_h);
  Arena scratch = arena.rest();
  backend.scan(plan, args, scratch);
  arena.saw(scratch);
  inner.finish();
}

void run(Backend& backend, const dispatch::Plan& plan, ScanBackwardArgs args, Arena& arena) {
  Inner inner(backend, args.dh.dtype, arena);
  for (TensorView* view :
       {&args.a, &args.b, &args.sign_b, &args.h0, &args.sign_h0, &args.h, &args.sign_h, &args.dh}) {
    inner.input(*view);
  }
  for (TensorView* view : {&args.da, &args.db, &args.dh0}) inner.output(*view);
  Arena scratch = arena.rest();
  backend.scan_backward(plan, args, scratch);
  arena.saw(scratch);
  inner.finish();
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
  run(backend, plan, args, forward);
  if (!p.training) return forward.peak();
  ScanBackwardArgs back;
  back.form = form;
  back.a = back.h = back.dh = back.da = back.db = all;
  back.b = back.sign_b = of_logs;
  back.h0 = back.dh0 = one;
  back.sign_h = of_states;
  if (p.log_states) back.sign_h0 = one;
  run(backend, plan, back, backward);
  return std::max(forward.peak(), backward.peak());
}

void linear_scan(Context& context, const dispatch::Plan& plan, const ScanArgs& args) {
  check_plan(context, plan, args.form, args.a.dtype, false);
  const ScanArgs checked = check_scan(context, plan, args);
  check(args.workspace, "workspace", linear_scan_workspace(plan), plan);
  const dispatch::Problem& p = plan.problem;
  if (p.steps == 0 || p.batch == 0 || p.hidden_size == 0) return;
  Arena arena(args.workspace.data);
  run(*context.impl().backend, plan, checked, arena);
}

void linear_scan_backward(Context& context, const dispatch::Plan& plan,
                          const ScanBackwardArgs& args) {
  check_plan(context, plan, args.form, args.a.dtype, true);
  const ScanBackwardArgs checked = check_scan(context, plan, args);
  check(args.workspace, "workspace", linear_scan_workspace(plan), plan);
  const dispatch::Problem& p = plan.problem;
  if (p.batch == 0 || p.hidden_size == 0 || (p.steps == 0 && !args.dh0)) return;
  Arena arena(args.workspace.data);
  run(*context.impl().backend, plan, checked, arena);
}

}  // namespace scanrnn
