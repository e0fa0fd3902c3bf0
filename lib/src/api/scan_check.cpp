// SPDX-License-Identifier: Apache-2.0
// The checks of the bare recurrence and their words.
#include "api/scan_check.h"

#include <string>
#include <utility>
#include <vector>

#include "api/check.h"

namespace scanrnn {
namespace {

// Checks the tensors of one call and puts them into [T,B,N].
class Checker {
 public:
  // Without lines where `a` has none.
  Checker(const Context& context, const dispatch::Plan& plan, ScanForm form, const TensorView& a)
      : p_(plan.problem),
        form_(form),
        dtype_(a.dtype),
        device_(context.options().device),
        flat_(a.rank == 2 && plan.problem.batch == 1) {}

  // Names as the Python module has them.
  const char* of_logs(const char* linear, const char* log) const {
    return form_ == ScanForm::linear ? linear : log;
  }
  const char* of_states(const char* plain, const char* log) const {
    return form_ == ScanForm::log_output ? log : plain;
  }

  TensorView over_time(const TensorView& view, const char* name, Layout layout, bool optional,
                       Dtype dtype) {
    return checked(view, name, layout, optional, true, dtype);
  }
  TensorView at_start(const TensorView& view, const char* name, Layout layout) {
    return checked(view, name, layout, true, false, dtype_);
  }
  // Absent, since another form has it.
  void absent(const TensorView& view, const char* name, const char* form) const {
    require(!view, [&] { return std::string(name) + ": it belongs to " + form; });
  }
  void distinct_outputs() const {
    check_apart(
        outputs_.size(), [&](std::size_t i) -> const TensorView& { return outputs_[i].first; },
        [&](std::size_t i) { return outputs_[i].second; });
  }
  Dtype dtype() const { return dtype_; }

 private:
  TensorView checked(const TensorView& view, const char* name, Layout layout, bool optional,
                     bool has_time, Dtype dtype) {
    const std::int64_t steps = p_.steps, lines = p_.batch, rows = p_.hidden_size;
    const Extents sizes = has_time ? flat_ ? Extents{steps, rows} : Extents{steps, lines, rows}
                          : flat_  ? Extents{rows}
                                   : Extents{lines, rows};
    const char* axes = has_time ? flat_ ? "(steps, rows)" : "(steps, lines, rows)"
                       : flat_  ? "(rows,)"
                                : "(lines, rows)";
    const TensorView found = check(view, {name, sizes, axes, dtype, device_, optional, "", layout});
    if (!found) return found;
    if (layout == Layout::output) outputs_.emplace_back(found, name);
    const auto stride = [&](int axis) { return found.strides[static_cast<std::size_t>(axis)]; };
    TensorView out = found;
    out.rank = 3;
    out.sizes = {has_time ? steps : 1, lines, rows};
    out.strides = {has_time ? stride(0) : 0, flat_ ? 0 : stride(has_time), stride(found.rank - 1)};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (out.sizes[axis] == 1) out.strides[axis] = axis == 2 ? 1 : 0;
    }
    return out;
  }

  const dispatch::Problem& p_;
  ScanForm form_;
  Dtype dtype_;
  Device device_;
  bool flat_;
  std::vector<std::pair<TensorView, const char*>> outputs_;
};

void check_dtype(Dtype dtype, ScanForm form) {
  if (dtype == Dtype::boolean || is_integer(dtype)) {
    throw type_error(std::string("a: expected floating-point numbers, got dtype ") + name(dtype));
  }
  if (is_complex(dtype) && form != ScanForm::linear) {
    throw type_error(std::string("log_a: expected a real dtype, got ") + name(dtype) +
                     ": logarithms are of magnitudes");
  }
}

// What both calls read.
template <class Args>
void check_inputs(Checker& check, const Args& in, Args& out) {
  const bool linear = in.form == ScanForm::linear, logs = in.form == ScanForm::log_output;
  const Dtype dtype = check.dtype();
  out.a = check.over_time(in.a, check.of_logs("a", "log_a"), Layout::input, false, dtype);
  if (linear) check.absent(in.sign_b, "sign_b", "the forms by logarithms");
  out.sign_b = check.over_time(in.sign_b, "sign_b", Layout::input, true, dtype);
  out.reset = check.over_time(in.reset, "reset", Layout::input, true, Dtype::boolean);
  out.h0 = check.at_start(in.h0, check.of_states("h_0", "log_h_0"), Layout::input);
  if (!logs) check.absent(in.sign_h0, "sign_h_0", "the form whose output is logarithms");
  out.sign_h0 = check.at_start(in.sign_h0, "sign_h_0", Layout::input);
  require(!in.sign_h0 || in.h0, "sign_h_0: expected none without log_h_0");
  if (!logs) check.absent(in.sign_h, "sign_h", "the form whose output is logarithms");
}

}  // namespace

void check_shape(const ScanShape& shape) {
  const auto at_least_0 = [](std::int64_t number, const char* name) {
    require(number >= 0, [&] {
      return std::string(name) + ": expected a number >= 0, got " + std::to_string(number);
    });
  };
  at_least_0(shape.steps, "steps");
  at_least_0(shape.lines, "lines");
  at_least_0(shape.rows, "rows");
  check_dtype(shape.dtype, shape.form);
  const auto what = [&] {
    const std::string lines = shape.lines == 1 ? "" : std::to_string(shape.lines) + " lines of ";
    return "steps: " + std::to_string(shape.steps) + " steps of " + lines +
           std::to_string(shape.rows) + " rows";
  };
  check_countable(what, {shape.steps, shape.lines, shape.rows, 64});
}

ScanArgs check_scan(const Context& context, const dispatch::Plan& plan, const ScanArgs& args) {
  check_dtype(args.a.dtype, args.form);
  Checker check(context, plan, args.form, args.a);
  ScanArgs out = args;
  check_inputs(check, args, out);
  const Dtype dtype = check.dtype();
  const bool logs = args.form == ScanForm::log_output;
  out.b = check.over_time(args.b, check.of_logs("b", "log_b"), Layout::input, false, dtype);
  out.h = check.over_time(args.h, check.of_states("h", "log_h"), Layout::output, false, dtype);
  out.sign_h = check.over_time(args.sign_h, "sign_h", Layout::output, !logs, dtype);
  check.distinct_outputs();
  return out;
}

ScanBackwardArgs check_scan(const Context& context, const dispatch::Plan& plan,
                            const ScanBackwardArgs& args) {
  check_dtype(args.a.dtype, args.form);
  Checker check(context, plan, args.form, args.a);
  ScanBackwardArgs out = args;
  check_inputs(check, args, out);
  const Dtype dtype = check.dtype();
  const bool linear = args.form == ScanForm::linear, logs = args.form == ScanForm::log_output;
  out.b = check.over_time(args.b, check.of_logs("b", "log_b"), Layout::input, linear, dtype);
  if (linear) out.b = {};  // it is not read
  out.h = check.over_time(args.h, check.of_states("h", "log_h"), Layout::input, false, dtype);
  out.sign_h = check.over_time(args.sign_h, "sign_h", Layout::input, !logs, dtype);
  out.dh = check.over_time(args.dh, check.of_states("dh", "dlog_h"), Layout::input, false, dtype);
  out.da = check.over_time(args.da, check.of_logs("da", "dlog_a"), Layout::output, true, dtype);
  out.db = check.over_time(args.db, check.of_logs("db", "dlog_b"), Layout::output, true, dtype);
  out.dh0 = check.at_start(args.dh0, check.of_states("dh_0", "dlog_h_0"), Layout::output);
  check.distinct_outputs();
  return out;
}

}  // namespace scanrnn
