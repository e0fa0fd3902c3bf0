// SPDX-License-Identifier: Apache-2.0
// What a device does for the stack of layers: run one layer in one direction, and convert tensors.
// Everything here works on tensors that are checked already, in [T,B,.] order whatever the layout.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "scanrnn/context.h"
#include "scanrnn/linear_scan.h"
#include "stack/layer_call.h"

namespace scanrnn {

// Hands out parts of a workspace, which may be null where it is empty; or only counts.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  Arena() = default;  // counts
  explicit Arena(void* base) : base_(static_cast<char*>(base)), counting_(false) {}
  void* take(std::size_t bytes) {
    const std::size_t offset = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    return base_ ? base_ + offset : nullptr;
  }
  bool counting() const { return counting_; }
  std::size_t peak() const { return peak_; }

  // Memory behind what is taken, to be used for a while and given up; saw() counts it.
  Arena rest() const { return counting_ ? Arena() : Arena(base_ ? base_ + used_ : nullptr); }
  void saw(const Arena& rest) { peak_ = std::max(peak_, used_ + rest.peak_); }

 private:
  char* base_ = nullptr;
  bool counting_ = true;
  std::size_t used_ = 0, peak_ = 0;
};

// So many values of memory to work in.
template <class T>
T* take(Arena& arena, Index count) {
  return static_cast<T*>(arena.take(static_cast<std::size_t>(count) * sizeof(T)));
}

// A row-major matrix of a product, or its transpose.
struct Factor {
  const void* data;
  Index stride;  // between rows as they lie in memory
  bool transposed = false;
};

struct LineStep;  // stack/line_step.h

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const dispatch::DeviceLimits& limits() const = 0;
  virtual const dispatch::Profile& default_profile() const = 0;
  // The dtype that layer calls are given: the layer's own, or its compute type.
  virtual Dtype inner_type(Dtype dtype) const = 0;
  virtual void set_matmul_precision(MatmulPrecision /*precision*/) {}
  virtual void set_stream(void* /*stream*/) {}

  // With an arena that only counts, these take the memory that they would and do nothing else.
  virtual void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) = 0;
  virtual void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) = 0;
  // run(call, part) for all parts of so many layer calls, at the same time where the backend can:
  // parts of one call in their order, those of a chain after the same part of the call before.
  virtual void at_once(int calls, Index parts, bool chained,
                       const std::function<void(int, Index)>& run) = 0;
  // Layer calls of which each reads what the one before it in the walk leaves of a step, as one
  // (dispatch::run_as_one): forward y, backward dx, which then nobody else reads.
  virtual void chain(const dispatch::Plan& plan, const std::vector<LayerCall>& calls, bool backward,
                     Arena& workspace) = 0;
  // A step of layers one behind the other as one call, where the plan says that it is one. It needs
  // no memory to work in. With indices h_0 and h_n are the same pool of states, [S,H], and a line
  // goes on from the row that its index says, or is skipped, and its y is zeros.
  virtual void step_stack(const dispatch::Plan& plan, const std::vector<LayerCall>& calls,
                          const TensorView& indices) = 0;
  // Tensors of the bare recurrence are [T,B,N], those without time [1,B,N], with any strides.
  virtual void scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& workspace) = 0;
  virtual void scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args,
                             Arena& workspace) = 0;

  // to = from, elementwise, between a dtype and its compute type; equal shapes, any strides.
  virtual void copy(const TensorView& from, const TensorView& to) = 0;
  // to = from with elements dropped; [T,B,.], and `to` may be `from`.
  virtual void dropout(const TensorView& from, const TensorView& to, const Drop& drop) = 0;

  // c[m,n] = a[m,k] b[k,n] + (accumulate ? c : 0); c is of the dtype or, `wide`, of its compute
  // type.
  virtual void product(Dtype dtype, Index m, Index n, Index k, const Factor& a, const Factor& b,
                       void* c, Index c_stride, bool accumulate, Arena& workspace,
                       bool wide = false) = 0;
  // Sums over all tokens, [T,B,.] in rows of even spacing, to [.].
  virtual void sum_tokens(const TensorView& tokens, const TensorView& sums, Arena& workspace) = 0;
  // to = scale * norm of each token's row + bias, which may be absent (recurrence/norm.h), and its
  // adjoint; [T,B,.].
  virtual void norm_tokens(const TensorView& from, const TensorView& scale, const TensorView& bias,
                           const TensorView& to) = 0;
  virtual void norm_tokens_vjp(const TensorView& from, const TensorView& scale, const TensorView& d,
                               const TensorView& dfrom, const TensorView& dscale) = 0;
  // One phase of a step of all lines (stack/line_step.h).
  virtual void line_step(const LineStep& step) = 0;
  // Steps [first,end) of all lines in the order of the walk, or back, as one call, where the plan
  // says that it is one: what their phases would do, products included.
  virtual void walk_lines(const dispatch::Plan& plan, const LineStep& step, Index first, Index end,
                          bool backward, Arena& workspace) = 0;
  // As many steps as any sequence of the call has, or more where a device alone knows.
  virtual Index most_steps(const dispatch::Plan& plan, const LayerCall& call) const = 0;
  // The block-diagonal matrix [G*H,H] of the weights of heads, [G*H,H/heads]; or, with `back`, the
  // other way round.
  virtual void spread_heads(const TensorView& from, const TensorView& to, bool back) = 0;
  // Rows of each sequence, [N,.], added to the last of its steps in the walk, of [T,B,.]; and the
  // last steps, where there are any, to the rows.
  virtual void add_to_last(const LayerCall& call, const TensorView& rows,
                           const TensorView& tokens) = 0;
  virtual void take_last(const LayerCall& call, const TensorView& tokens,
                         const TensorView& rows) = 0;
  // Rows are the initial states, [N,.], or zeros where none comes into a step.
  virtual void take_entering(const LayerCall& call, const TensorView& states,
                             const TensorView& rows) = 0;
  // Rows of `to` are those of `from`, or zeros where that is absent, for sequences without a step.
  virtual void pass_states(const SequenceBounds& sequences, const TensorView& from,
                           const TensorView& to) = 0;

  // Ragged batches. What layer calls of one pass share, in memory of the workspace.
  virtual RaggedTables prepare(const dispatch::Plan& /*plan*/, const Ragged& /*ragged*/,
                               bool /*backward*/, Arena& /*workspace*/) {
    return {};
  }
  // [T,B,.]: zeros at the steps of a line from its length on.
  virtual void clear_padding(const TensorView& view, const TensorView& lengths) = 0;
  // [1,B,.]: zeros at the lines whose index is none of a pool of so many states.
  virtual void clear_skipped(const TensorView& view, const TensorView& indices, Index states) = 0;
  // States of a pool [L*D,S,.] to rows [L*D,B,.], zeros for the index -1; and back, but for those.
  virtual void take_states(const TensorView& pool, const TensorView& indices,
                           const TensorView& rows) = 0;
  virtual void put_states(const TensorView& rows, const TensorView& indices,
                          const TensorView& pool) = 0;
};

// One that needs no device and runs nothing: how sizes(plan) counts.
Backend& counting_backend(dispatch::Processor processor);

class Runtime;  // stack/runtime.h

struct Context::Impl {
  ContextOptions options;
  const Runtime* runtime = nullptr;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const dispatch::Profile> profile;
};

}  // namespace scanrnn
