// SPDX-License-Identifier: Apache-2.0
// The bare scan on XLA's buffers: arrays [B,T,N] and states [B,N].
#include <optional>
#include <string>

#include "jax_call.h"

namespace scanrnn {
namespace {

class ScanFrame {
 public:
  explicit ScanFrame(XlaCall& call) : call_(call), given_(" " + call.text("given") + " ") {}

  // The arguments that are there come in the order in which they are asked for.
  TensorView argument(const std::string& name) {
    if (given_.find(" " + name + " ") == std::string::npos) return {};
    const TensorView found = call_.argument();
    if (name == "a") first_ = found;
    return time_first(found);
  }
  TensorView result() { return time_first(call_.result()); }

  template <class Args>
  void read(Args& args) {
    args.form = parse_form(call_.text("form"));
    args.reverse = call_.number("reverse") != 0;
    args.a = argument("a");
    args.b = argument("b");
    args.sign_b = argument("sign_b");
    args.reset = argument("reset");
    args.h0 = argument("h_0");
    args.sign_h0 = argument("sign_h_0");
  }
  PlannedCall plan(const TensorView& a, ScanForm form, bool training) const {
    ScanShape shape;
    shape.steps = a.sizes[0];
    shape.lines = a.sizes[1];
    shape.rows = a.sizes[2];
    shape.dtype = a.dtype;
    shape.form = form;
    shape.training = training;
    shape.time_contiguous = first_.sizes[2] == 1;
    return plan_scan(call_.device(), shape, std::nullopt);
  }

 private:
  // Time becomes the first axis; lines of one row become rows. A reset may be one for all rows.
  TensorView time_first(const TensorView& view) const {
    TensorView out = view;
    const std::int64_t lines = view.sizes[0], rows = first_.sizes[2];
    if (view.rank == 2) {
      if (rows == 1) {
        out.sizes = {1, lines};
        out.strides = {lines, 1};
      }
      return out;
    }
    if (view.rank != 3) throw value_error("expected arrays of two or three axes");
    const std::int64_t steps = view.sizes[1], own = view.sizes[2];
    if (rows == 1) {
      out.sizes = {steps, own, lines};
      out.strides = {1, steps * lines, steps};
      return out;
    }
    const bool spread = own == 1 && view.dtype == Dtype::boolean;
    out.sizes = {steps, lines, spread ? rows : own};
    out.strides = {view.strides[1], view.strides[0], spread ? 0 : 1};
    return out;
  }

  XlaCall& call_;
  std::string given_;
  TensorView first_;
};

}  // namespace

void xla_scan(XlaCall& call) {
  ScanFrame frame(call);
  ScanArgs args;
  frame.read(args);
  args.h = frame.result();
  if (args.form == ScanForm::log_output) args.sign_h = frame.result();
  args.workspace = call.result_bytes();
  const PlannedCall planned = frame.plan(args.a, args.form, false);
  configure(call.device(), call.stream());
  linear_scan(context(call.device()), planned.plan, args);
}

void xla_scan_backward(XlaCall& call) {
  ScanFrame frame(call);
  ScanBackwardArgs args;
  frame.read(args);
  args.h = frame.argument("h");
  args.sign_h = frame.argument("sign_h");
  args.dh = frame.argument("dh");
  args.da = frame.result();
  args.db = frame.result();
  if (args.h0) args.dh0 = frame.result();
  args.workspace = call.result_bytes();
  const PlannedCall planned = frame.plan(args.a, args.form, true);
  configure(call.device(), call.stream());
  linear_scan_backward(context(call.device()), planned.plan, args);
}

}  // namespace scanrnn
