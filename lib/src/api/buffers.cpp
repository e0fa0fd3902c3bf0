// SPDX-License-Identifier: Apache-2.0
// A layer's calls for a caller without an allocator: what they need and give comes from Buffer.
#include "api/check.h"
#include "scanrnn/layer.h"
#include "stack/backend.h"

namespace scanrnn {
namespace {

// Contiguous tensors in one buffer. The shapes are given twice: to count, and to take.
class Outputs {
 public:
  explicit Outputs(Context& context) : context_(context) {}

  template <class F>
  Buffer make(F&& take_all) {
    take_all(*this);
    Buffer buffer(context_, arena_.peak());
    arena_ = Arena(buffer.data());
    take_all(*this);
    return buffer;
  }
  TensorView take(Dtype dtype, const std::vector<std::int64_t>& sizes) {
    TensorView out;
    out.dtype = dtype;
    out.device = context_.options().device;
    out.rank = static_cast<int>(sizes.size());
    std::int64_t count = 1;
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      out.sizes[axis] = sizes[axis];
      out.strides[axis] = count;
      count *= sizes[axis];
    }
    out.data = arena_.take(static_cast<std::size_t>(count) * size_of(dtype));
    return out;
  }

 private:
  Context& context_;
  Arena arena_;
};

State take_state(Outputs& outputs, const Layer& layer, const dispatch::Plan& plan) {
  const LayerOptions& o = layer.options();
  State out;
  for (int i = 0; i < info(o.cell).states; ++i) {
    const std::int64_t width = i == 0 ? layer.output_size() : o.hidden_size;
    out.*kStateTensors[static_cast<std::size_t>(i)] =
        outputs.take(o.dtype, {o.num_layers * layer.directions(), plan.problem.batch, width});
  }
  return out;
}

}  // namespace

ForwardResult Layer::forward(Context& context, const std::vector<TensorView>& params,
                             const TensorView& x, const State& h0, Mode mode,
                             std::uint64_t seed) const {
  require(x.rank == 3, [&] { return "x: expected 3 axes, got shape " + x.shape(); });
  const bool batch_first = options_.batch_first;
  ForwardResult out;
  out.plan = plan(context, x.sizes[batch_first ? 1 : 0], x.sizes[batch_first ? 0 : 1], mode);
  out.seed = seed;
  const Sizes bytes = sizes(out.plan);
  out.memory = Outputs(context).make([&](Outputs& outputs) {
    out.y = outputs.take(options_.dtype, {x.sizes[0], x.sizes[1], directions() * output_size()});
    out.hn = take_state(outputs, *this, out.plan);
  });
  out.reserve = Buffer(context, bytes.reserve);
  const Buffer workspace(context, bytes.workspace);
  ForwardArgs args;
  args.params = params;
  args.x = x;
  args.h0 = h0;
  args.y = out.y;
  args.hn = out.hn;
  args.workspace = workspace.span();
  args.reserve = out.reserve.span();
  args.seed = seed;
  forward(context, out.plan, args);
  return out;
}

BackwardResult Layer::backward(Context& context, const ForwardResult& forward,
                               const std::vector<TensorView>& params, const TensorView& x,
                               const State& h0, const TensorView& dy, const State& dhn) const {
  const dispatch::Problem& p = forward.plan.problem;
  const bool batch_first = options_.batch_first;
  BackwardResult out;
  out.memory = Outputs(context).make([&](Outputs& outputs) {
    out.dx = outputs.take(options_.dtype, {batch_first ? p.batch : p.steps,
                                           batch_first ? p.steps : p.batch, options_.input_size});
    out.dh0 = take_state(outputs, *this, forward.plan);
    out.dparams.clear();
    for (const ParameterInfo& parameter : parameters_) {
      out.dparams.push_back(outputs.take(options_.dtype, parameter.sizes));
    }
  });
  const Buffer workspace(context, sizes(forward.plan).workspace);
  BackwardArgs args;
  args.params = params;
  args.x = x;
  args.h0 = h0;
  args.y = forward.y;
  args.dy = dy;
  args.dhn = dhn;
  args.dx = out.dx;
  args.dh0 = out.dh0;
  args.dparams = out.dparams;
  args.workspace = workspace.span();
  args.reserve = forward.reserve.span();
  args.seed = forward.seed;
  backward(context, forward.plan, args);
  return out;
}

}  // namespace scanrnn
