// SPDX-License-Identifier: Apache-2.0
// The bare recurrence h_t = a_t h_{t-1} + b_t, without a cell, and its adjoint (docs/maths.md).
//
// T steps of B lines of N rows, each row a recurrence of its own. Tensors are [T,B,N] and [B,N], or
// without lines [T,N] and [N]; any strides of at least 0 will do, in elements: inputs may repeat
// (stride 0), elements of an output may not overlap, nor may outputs overlap one another or an
// input. All have one dtype, but for `reset`.
#pragma once

#include "scanrnn/context.h"
#include "scanrnn/tensor.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// What is given and what comes back.
enum class ScanForm : std::uint8_t {
  linear,     // a, b -> h
  log,        // log a, log|b|, sign b -> h
  log_output  // the same -> log|h|, sign h: the states may leave the range of the dtype
};

struct ScanArgs {
  ScanForm form = ScanForm::linear;
  bool reverse = false;  // run time from T-1 down to 0
  TensorView a;          // [T,B,N]: the decay, or its logarithm
  TensorView b;          // [T,B,N]: the input, or the logarithm of its magnitude
  TensorView sign_b;     // [T,B,N]: +-1, not in the linear form; absent: positive
  // [T,B,N] of Dtype::boolean; absent: nowhere. Where it is true the state before that step is
  // zero, and a is not looked at. h0 counts for the first segment.
  TensorView reset;
  TensorView h0;       // [B,N]; absent: zeros. log_output: log|h_0|
  TensorView sign_h0;  // [B,N]: +-1, log_output alone; absent: positive
  TensorView h;        // out, [T,B,N]: the states; log_output: log|h|, -inf where the state is zero
  TensorView sign_h;   // out, [T,B,N], log_output alone: +-1, +1 where the state is zero
  Span workspace;
};

// The adjoint, in one pass over memory: lambda_t = dh_t + conj(a_{t+1}) lambda_{t+1};
// da_t = lambda_t conj(h_{t-1}), db_t = lambda_t, dh_0 = conj(a_1) lambda_1, which is torch's
// convention for complex ones. By logarithms da and db are those of log a and log|b|, and where a
// state is zero log_output has no gradient; signs have none. Nothing crosses a reset.
struct ScanBackwardArgs {
  ScanForm form = ScanForm::linear;
  bool reverse = false;
  // As forward had them and, of h and sign_h, left them. The linear form does not read b, and
  // log_output reads h and sign_h of all steps but the last.
  TensorView a, b, sign_b, reset, h0, sign_h0, h, sign_h;
  TensorView dh;   // [T,B,N]; log_output: of log|h|
  TensorView da;   // out, [T,B,N]; may be absent
  TensorView db;   // out, [T,B,N]; may be absent
  TensorView dh0;  // out, [B,N]; may be absent. log_output: of log|h_0|
  Span workspace;
};

// What is asked of the planner. `lines` is B, `rows` N.
struct ScanShape {
  std::int64_t steps = 0, lines = 1, rows = 0;
  Dtype dtype = Dtype::float32;
  ScanForm form = ScanForm::linear;
  bool training = false;         // backward will follow
  bool time_contiguous = false;  // steps are adjacent in memory, rows are not; it may be wrong
};

// Pure, as Layer's are; errors name the argument.
dispatch::Problem linear_scan_problem(const ScanShape& shape);
dispatch::Plan linear_scan_plan(const Context& context, const ScanShape& shape,
                                dispatch::Strategy strategy = dispatch::Strategy::automatic);
// Bytes that are enough for forward and, of a plan for training, backward, whatever the strides.
std::size_t linear_scan_workspace(const dispatch::Plan& plan);

// Asynchronous as a layer is. The plan is one for the form, the sizes and the size of the dtype.
// Throws value_error or type_error naming the argument, and cuda_error.
void linear_scan(Context& context, const dispatch::Plan& plan, const ScanArgs& args);
// With a plan for training, and the tensors of a forward pass.
void linear_scan_backward(Context& context, const dispatch::Plan& plan,
                          const ScanBackwardArgs& args);

}  // namespace scanrnn
#pragma GCC visibility pop
