// SPDX-License-Identifier: Apache-2.0
// A bare scan of random rows, forward.
#pragma once

#include "workload.h"

namespace scanrnn {

class ScanWorkload : public Workload {
 public:
  ScanWorkload(Dtype dtype, Device device, std::int64_t steps, std::int64_t rows, bool log_form)
      : Workload(dtype, device, MatmulPrecision::highest),
        steps_(steps),
        rows_(rows),
        log_form_(log_form) {
    const auto count = static_cast<std::size_t>(steps * rows);
    a_ = random(count, 0, log_form);  // at most 1 in magnitude, and so is what it is the log of
    b_ = random(count, 0);
    output_ = empty(count);
  }

 private:
  dispatch::Plan plan(Strategy strategy) const override {
    return linear_scan_plan(context_, shape(), strategy);
  }
  Sizes sizes(const dispatch::Plan& plan) const override {
    return {linear_scan_workspace(plan), 0};
  }
  void run(const Recorded& recorded) override {
    ScanArgs args;
    args.a = view(a_, {steps_, rows_});
    args.b = view(b_, {steps_, rows_});
    args.h = view(output_, {steps_, rows_});
    args.form = shape().form;
    args.workspace = recorded.workspace.span();
    linear_scan(context_, recorded.plan, args);
  }

  ScanShape shape() const {
    ScanShape out;
    out.steps = steps_;
    out.rows = rows_;
    out.dtype = dtype_;
    out.form = log_form_ ? ScanForm::log : ScanForm::linear;
    return out;
  }

  std::int64_t steps_, rows_;
  bool log_form_;
  Tensor a_, b_;
};

}  // namespace scanrnn
