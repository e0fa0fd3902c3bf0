// SPDX-License-Identifier: Apache-2.0
// The bare recurrence h_t = a_t h_{t-1} + b_t, without a cell.
#pragma once

#include "scanrnn/layer.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// T and N in [T,N]; rows are contiguous, steps may be strided. All tensors have one dtype.
struct ScanArgs {
  TensorView a;           // [T,N]: the decay, or its logarithm in the log form
  TensorView b;           // [T,N]: the input, or the logarithm of its magnitude in the log form
  TensorView sign_b;      // [T,N]: +-1, log form only; absent: positive
  TensorView h0;          // [N]; absent: zeros
  TensorView h;           // out, [T,N]: the states, never logarithms
  bool log_form = false;  // a and b are given as logarithms; the operator is then the log one
  bool reverse = false;   // run time from T-1 down to 0
  Span workspace;
};

// Pure, as Layer's are: what a scan over [steps,rows] asks of the planner, its plan, and the bytes
// of workspace that it needs.
dispatch::Problem linear_scan_problem(std::int64_t steps, std::int64_t rows, Dtype dtype,
                                      bool log_form);
dispatch::Plan linear_scan_plan(const Context& context, std::int64_t steps, std::int64_t rows,
                                Dtype dtype, bool log_form,
                                dispatch::Strategy strategy = dispatch::Strategy::automatic);
std::size_t linear_scan_workspace(const dispatch::Plan& plan);
// Asynchronous as a layer is; the same errors.
void linear_scan(Context& context, const dispatch::Plan& plan, const ScanArgs& args);

}  // namespace scanrnn
#pragma GCC visibility pop
