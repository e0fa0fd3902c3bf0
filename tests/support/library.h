// SPDX-License-Identifier: Apache-2.0
// Runs a case through the public API in watched memory: every buffer is poisoned, guarded and of the
// exact size that the library asked for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "support/case.h"
#include "support/tensor.h"

namespace scanrnn::test {

// [T,B,n] to the layout of the case and back.
inline Values swap_axes(const Values& values, std::int64_t outer, std::int64_t inner) {
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

inline Context make_context(int threads) {
  ContextOptions options;
  options.threads = threads;
  return Context(options);
}

// All tensors of a case.
class Buffers {
 public:
  Buffers(const Case& c, const Data& data, Memory memory = {}) : case_(c), layer_(c.layer) {
    const Dtype dtype = c.layer.dtype;
    const std::int64_t width = c.directions() * c.layer.hidden_size;
    const std::vector<std::int64_t> states{c.layer.num_layers * c.directions(), c.batch,
                                           c.layer.hidden_size};
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
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  ForwardArgs forward_args() {
    ForwardArgs args;
    for (Tensor& parameter : params) args.params.push_back(parameter.view());
    args.x = x.view();
    if (case_.h0) args.h0.h = h0.view();
    args.y = y.view();
    args.hn.h = hn.view();
    return args;
  }
  BackwardArgs backward_args() {
    BackwardArgs args;
    for (Tensor& parameter : params) args.params.push_back(parameter.view());
    for (Tensor& parameter : dparams) args.dparams.push_back(parameter.view());
    args.x = x.view();
    if (case_.h0) args.h0.h = h0.view();
    args.y = y.view();
    args.dy = dy.view();
    args.dhn.h = dhn.view();
    args.dx = dx.view();
    args.dh0.h = dh0.view();
    return args;
  }

  // Runs with exactly the memory asked for. Returns what the planner said.
  std::string forward(Context& context, Mode mode, std::uint64_t seed = 0) {
    const dispatch::Plan plan = plan_for(context, mode);
    const Sizes bytes = layer_.sizes(plan);
    Workspace workspace(bytes.workspace);
    reserve_ = Workspace(mode == Mode::training ? bytes.reserve : 0);
    ForwardArgs args = forward_args();
    args.workspace = workspace.span();
    if (mode == Mode::training) args.reserve = reserve_.span();
    args.seed = seed;
    layer_.forward(context, plan, args);
    EXPECT_TRUE(workspace.intact() && reserve_.intact()) << "memory around the workspace changed";
    expect_intact();
    return explain(plan);
  }
  std::string backward(Context& context, std::uint64_t seed = 0) {
    const dispatch::Plan plan = plan_for(context, Mode::training);
    Workspace workspace(layer_.sizes(plan).workspace);
    BackwardArgs args = backward_args();
    args.workspace = workspace.span();
    args.reserve = reserve_.span();
    args.seed = seed;
    const auto reserve_before = reserve_.contents();
    layer_.backward(context, plan, args);
    EXPECT_TRUE(reserve_.contents() == reserve_before) << "backward changed the reserve";
    EXPECT_TRUE(workspace.intact()) << "memory around the workspace changed";
    expect_intact();
    return explain(plan);
  }
  dispatch::Plan plan_for(const Context& context, Mode mode) const {
    return layer_.plan(context, case_.steps, case_.batch, mode, case_.strategy);
  }

  Result result() const {
    Result out;
    out.y = laid_out_back(y.values());
    out.hn = hn.values();
    out.dx = laid_out_back(dx.values());
    out.dh0 = dh0.values();
    for (const Tensor& parameter : dparams) out.dparams.push_back(parameter.values());
    return out;
  }
  // The bytes of every output, one after the other.
  std::vector<std::uint8_t> bits() const {
    std::vector<std::uint8_t> out;
    const auto add = [&](const Tensor& tensor) {
      const auto more = tensor.bits();
      out.insert(out.end(), more.begin(), more.end());
    };
    for (const Tensor* tensor : {&y, &hn, &dx, &dh0}) add(*tensor);
    for (const Tensor& tensor : dparams) add(tensor);
    return out;
  }
  void poison_outputs() {
    for (Tensor* tensor : {&y, &hn, &dx, &dh0}) tensor->poison();
    for (Tensor& tensor : dparams) tensor.poison();
  }
  bool outputs_untouched() const {
    bool out = y.untouched() && hn.untouched() && dx.untouched() && dh0.untouched();
    for (const Tensor& tensor : dparams) out = out && tensor.untouched();
    return out;
  }

  std::vector<Tensor> params, dparams;
  Tensor x, dx, y, dy, h0, hn, dh0, dhn;

 private:
  std::vector<std::int64_t> sizes(std::int64_t n) const {
    if (case_.layer.batch_first) return {case_.batch, case_.steps, n};
    return {case_.steps, case_.batch, n};
  }
  Values laid_out(const Values& values) const {
    return case_.layer.batch_first ? swap_axes(values, case_.steps, case_.batch) : values;
  }
  Values laid_out_back(const Values& values) const {
    return case_.layer.batch_first ? swap_axes(values, case_.batch, case_.steps) : values;
  }
  void expect_intact() const {
    for (const Tensor* tensor : {&x, &dx, &y, &dy, &h0, &hn, &dh0, &dhn}) {
      EXPECT_TRUE(tensor->intact()) << "memory around a tensor changed";
    }
    for (const auto* tensors : {&params, &dparams}) {
      for (const Tensor& tensor : *tensors) {
        EXPECT_TRUE(tensor.intact()) << "memory around a parameter or its gradient changed";
      }
    }
  }

  Case case_;
  Layer layer_;
  Workspace reserve_{0};
};

// Forward in training mode, then backward.
inline Result library(const Case& c, const Data& data, Memory memory = {}) {
  Context context = make_context(c.threads);
  Buffers buffers(c, data, memory);
  buffers.forward(context, Mode::training);
  buffers.backward(context);
  return buffers.result();
}
inline Result library_inference(const Case& c, const Data& data, Memory memory = {}) {
  Context context = make_context(c.threads);
  Buffers buffers(c, data, memory);
  buffers.forward(context, Mode::inference);
  return buffers.result();
}

}  // namespace scanrnn::test
