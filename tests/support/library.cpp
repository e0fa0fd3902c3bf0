// SPDX-License-Identifier: Apache-2.0
// The calls of a case, in watched memory.
#include "support/library.h"

#include <algorithm>

namespace scanrnn::test {

Values swap_axes(const Values& values, std::int64_t outer, std::int64_t inner) {
  Values out(values.size());
  const std::int64_t pairs = std::max<std::int64_t>(outer * inner, 1);
  const std::int64_t n = static_cast<std::int64_t>(values.size()) / pairs;
  for (std::int64_t i = 0; i < outer; ++i) {
    for (std::int64_t j = 0; j < inner; ++j) {
      for (std::int64_t k = 0; k < n; ++k) {
        out[static_cast<std::size_t>((j * outer + i) * n + k)] =
            values[static_cast<std::size_t>((i * inner + j) * n + k)];
      }
    }
  }
  return out;
}

template <class Self>
auto Buffers::outputs_of(Self& self) {
  std::vector<decltype(&self.y)> out{&self.y, &self.hn, &self.dx, &self.dh0};
  for (std::size_t i = 0; i < kMore; ++i) {
    out.push_back(&self.moren[i]);
    out.push_back(&self.dmore0[i]);
  }
  return out;
}
std::vector<Tensor*> Buffers::outputs() { return outputs_of(*this); }
std::vector<const Tensor*> Buffers::outputs() const { return outputs_of(*this); }

Buffers::Buffers(const Case& c, const Data& data, Memory memory) : case_(c), layer_(c.layer) {
  const Dtype dtype = c.layer.dtype;
  const std::int64_t width = c.directions() * c.features();
  const auto states_of = [&](std::size_t i) {
    return std::vector<std::int64_t>{c.layer.num_layers * c.directions(), c.batch, c.features(i)};
  };
  const std::vector<std::int64_t> states = states_of(0);
  for (std::size_t i = 0; i < data.params.size(); ++i) {
    params.emplace_back(dtype, layer_.parameters()[i].sizes, data.params[i], memory);
    dparams.emplace_back(dtype, layer_.parameters()[i].sizes, memory);
  }
  x = Tensor(dtype, sizes(c.layer.input_size), laid_out(data.x), memory);
  dx = Tensor(dtype, sizes(c.layer.input_size), memory);
  y = Tensor(dtype, sizes(width), memory);
  dy = Tensor(dtype, sizes(width), laid_out(data.dy), memory);
  if (c.h0) h0 = Tensor(dtype, states, data.h0, memory);
  hn = Tensor(dtype, states, memory);
  dh0 = Tensor(dtype, states, memory);
  dhn = Tensor(dtype, states, data.dhn, memory);
  for (std::size_t i = 0; i < c.more_states(); ++i) {
    const std::vector<std::int64_t> own = states_of(i + 1);
    if (c.h0) more0[i] = Tensor(dtype, own, data.more0[i], memory);
    moren[i] = Tensor(dtype, own, memory);
    dmore0[i] = Tensor(dtype, own, memory);
    dmoren[i] = Tensor(dtype, own, data.dmoren[i], memory);
  }
}

ForwardArgs Buffers::forward_args(Mirror& mirror) {
  ForwardArgs args;
  for (Tensor& parameter : params) args.params.push_back(mirror.view(parameter));
  args.x = mirror.view(x);
  args.h0 = state(mirror, h0, more0, case_.h0);
  args.y = mirror.view(y);
  args.hn = state(mirror, hn, moren);
  return args;
}

BackwardArgs Buffers::backward_args(Mirror& mirror) {
  BackwardArgs args;
  for (Tensor& parameter : params) args.params.push_back(mirror.view(parameter));
  for (Tensor& parameter : dparams) args.dparams.push_back(mirror.view(parameter));
  args.x = mirror.view(x);
  args.h0 = state(mirror, h0, more0, case_.h0);
  args.y = mirror.view(y);
  args.dy = mirror.view(dy);
  args.dhn = state(mirror, dhn, dmoren);
  args.dx = mirror.view(dx);
  args.dh0 = state(mirror, dh0, dmore0);
  return args;
}

void Buffers::forward(Context& context, Mode mode, std::uint64_t seed,
                      const std::function<void(ForwardArgs&)>& change) {
  const dispatch::Plan plan = plan_for(context, mode);
  const Sizes bytes = layer_.sizes(plan);
  Scratch workspace(context, bytes.workspace);
  reserve_ = Workspace(mode == Mode::training ? bytes.reserve : 0);
  Mirror mirror(context);
  ForwardArgs args = forward_args(mirror);
  args.workspace = workspace.span();
  if (mode == Mode::training) args.reserve = mirror.span(reserve_);
  args.seed = seed;
  change(args);
  run(mirror, [&] { layer_.forward(context, plan, args); });
  EXPECT_TRUE(workspace.intact() && reserve_.intact()) << "memory around the workspace changed";
  expect_intact();
}

void Buffers::backward(Context& context, std::uint64_t seed,
                       const std::function<void(BackwardArgs&)>& change) {
  const dispatch::Plan plan = plan_for(context, Mode::training);
  Scratch workspace(context, layer_.sizes(plan).workspace);
  Mirror mirror(context);
  BackwardArgs args = backward_args(mirror);
  args.workspace = workspace.span();
  args.reserve = mirror.span(reserve_);
  args.seed = seed;
  change(args);
  const auto reserve_before = reserve_.contents();
  run(mirror, [&] { layer_.backward(context, plan, args); });
  EXPECT_TRUE(reserve_.contents() == reserve_before) << "backward changed the reserve";
  EXPECT_TRUE(workspace.intact()) << "memory around the workspace changed";
  expect_intact();
}

void Buffers::step_in_place(Context& context) {
  const dispatch::Plan plan = plan_for(context, Mode::inference);
  Scratch workspace(context, layer_.sizes(plan).workspace);
  const auto without_time = [&](TensorView view) {
    const std::size_t batch = case_.layer.batch_first ? 0 : 1;
    view.rank = 2;
    view.sizes = {view.sizes[batch], view.sizes[2], 0};
    view.strides = {view.strides[batch], 1, 0};
    return view;
  };
  Mirror mirror(context);
  ForwardArgs args = forward_args(mirror);
  args.x = without_time(args.x);
  args.y = without_time(args.y);
  args.hn = args.h0;
  args.workspace = workspace.span();
  run(mirror, [&] { layer_.step(context, plan, args); });
  EXPECT_TRUE(workspace.intact()) << "memory around the workspace changed";
  for (const Tensor& tensor : moren) EXPECT_TRUE(tensor.untouched());
  EXPECT_TRUE(hn.untouched());
  expect_intact();
}

dispatch::Plan Buffers::plan_for(const Context& context, Mode mode) const {
  const BatchShape shape{case_.steps, case_.batch, case_.layout, case_.longest};
  return case_.way.splits(layer_.plan(context, shape, mode, case_.way.strategy));
}

Result Buffers::result() const {
  Result out;
  out.y = laid_out_back(y.values());
  out.hn = hn.values();
  out.dx = laid_out_back(dx.values());
  out.dh0 = dh0.values();
  for (std::size_t i = 0; i < moren.size(); ++i) {
    out.moren[i] = moren[i].values();
    out.dmore0[i] = dmore0[i].values();
  }
  for (const Tensor& parameter : dparams) out.dparams.push_back(parameter.values());
  return out;
}

std::vector<std::uint8_t> Buffers::bits() const {
  std::vector<std::uint8_t> out;
  const auto add = [&](const Tensor& tensor) {
    const auto more = tensor.bits();
    out.insert(out.end(), more.begin(), more.end());
  };
  for (const Tensor* tensor : outputs()) add(*tensor);
  for (const Tensor& tensor : dparams) add(tensor);
  return out;
}

bool Buffers::intact() const {
  bool out = true;
  for (const Tensor* tensor : {&x, &dx, &y, &dy, &h0, &hn, &dh0, &dhn}) {
    out = out && tensor->intact();
  }
  for (const auto* tensors : {&more0, &moren, &dmore0, &dmoren}) {
    for (const Tensor& tensor : *tensors) out = out && tensor.intact();
  }
  for (const auto* tensors : {&params, &dparams}) {
    for (const Tensor& tensor : *tensors) out = out && tensor.intact();
  }
  return out;
}

void Buffers::poison_outputs() {
  for (Tensor* tensor : outputs()) tensor->poison();
  for (Tensor& tensor : dparams) tensor.poison();
}

bool Buffers::outputs_untouched() const {
  bool out = true;
  for (const Tensor* tensor : outputs()) out = out && tensor->untouched();
  for (const Tensor& tensor : dparams) out = out && tensor.untouched();
  return out;
}

State Buffers::state(Mirror& mirror, Tensor& h, MoreTensors& more, bool present) const {
  State out;
  if (!present) return out;
  out.h = mirror.view(h);
  for (std::size_t i = 0; i < case_.more_states(); ++i) {
    out.*kStateTensors[i + 1] = mirror.view(more[i]);
  }
  return out;
}

std::vector<std::int64_t> Buffers::sizes(std::int64_t n) const {
  if (case_.packed()) return {case_.steps, n};
  if (case_.layer.batch_first) return {case_.batch, case_.steps, n};
  return {case_.steps, case_.batch, n};
}

Values Buffers::laid_out(const Values& values) const {
  return batch_major() ? swap_axes(values, case_.steps, case_.batch) : values;
}

Values Buffers::laid_out_back(const Values& values) const {
  return batch_major() ? swap_axes(values, case_.batch, case_.steps) : values;
}

void Buffers::run(Mirror& mirror, const std::function<void()>& call) {
  try {
    call();
  } catch (...) {
    mirror.bring_back();
    throw;
  }
  mirror.bring_back();
}

void Buffers::expect_intact() const { EXPECT_TRUE(intact()) << "memory around a tensor changed"; }

Result library(const Case& c, const Data& data, Memory memory) {
  Context& context = shared_context(c.threads);
  Buffers buffers(c, data, memory);
  buffers.forward(context, Mode::training);
  buffers.backward(context);
  return buffers.result();
}

Result library_inference(const Case& c, const Data& data, Memory memory) {
  Context& context = shared_context(c.threads);
  Buffers buffers(c, data, memory);
  buffers.forward(context, Mode::inference);
  return buffers.result();
}

}  // namespace scanrnn::test
