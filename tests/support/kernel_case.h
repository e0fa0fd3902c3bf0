// SPDX-License-Identifier: Apache-2.0
// A small case for a kernel of the library: what `make sanitize-cuda` and the run of PTX take.
// Outputs and workspace are memory that nobody has set, so that initcheck sees what is read before
// it is written.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/conform.h"
#include "support/cuda.h"
#include "support/ragged_case.h"
#include "support/unset.h"

namespace scanrnn::test {

// Forward in training mode and backward, by a plan that may differ from the planner's.
inline Result run(const Case& c, const Data& data, Context& context, const dispatch::Plan& plan,
                  const Ragged& ragged = {}) {
  const Layer layer(c.layer);
  const Dtype dtype = c.layer.dtype;
  const std::int64_t hidden = c.layer.hidden_size, width = c.directions() * hidden;
  const std::vector<std::int64_t> states{c.layer.num_layers * c.directions(), c.batch, hidden};
  const auto of_tokens = [&](std::int64_t size) {
    if (c.packed()) return std::vector<std::int64_t>{c.steps, size};
    return std::vector<std::int64_t>{c.steps, c.batch, size};
  };
  const std::vector<std::int64_t> inputs = of_tokens(c.layer.input_size),
                                  outputs = of_tokens(width);
  Unset memory(context);
  const auto given_state = [&](const Values& h, const MoreValues& more) {
    State out{memory.given(dtype, states, h)};
    for (std::size_t i = 0; i < c.more_states(); ++i) {
      out.*kStateTensors[i + 1] = memory.given(dtype, states, more[i]);
    }
    return out;
  };
  const auto unset_state = [&] {
    State out;
    for (std::size_t i = 0; i <= c.more_states(); ++i) {
      out.*kStateTensors[i] = memory.unset(dtype, states);
    }
    return out;
  };
  BackwardArgs backward;
  for (std::size_t i = 0; i < data.params.size(); ++i) {
    const auto& sizes = layer.parameters()[i].sizes;
    backward.params.push_back(memory.given(dtype, sizes, data.params[i]));
    backward.dparams.push_back(memory.unset(dtype, sizes));
  }
  backward.x = memory.given(dtype, inputs, data.x);
  backward.h0 = given_state(data.h0, data.more0);
  backward.y = memory.unset(dtype, outputs);
  backward.dy = memory.given(dtype, outputs, data.dy);
  backward.dhn = given_state(data.dhn, data.dmoren);
  backward.dx = memory.unset(dtype, inputs);
  backward.dh0 = unset_state();
  const Sizes sizes = layer.sizes(plan);
  backward.workspace = memory.span(sizes.workspace);
  backward.reserve = memory.span(sizes.reserve);
  backward.seed = 5;
  backward.ragged = ragged;
  ForwardArgs forward;
  forward.params = backward.params;
  forward.x = backward.x;
  forward.h0 = backward.h0;
  forward.y = backward.y;
  forward.hn = unset_state();
  forward.workspace = backward.workspace;
  forward.reserve = backward.reserve;
  forward.seed = backward.seed;
  forward.ragged = ragged;
  layer.forward(context, plan, forward);
  layer.backward(context, plan, backward);

  Result out;
  out.y = memory.values(backward.y);
  out.hn = memory.values(forward.hn.h);
  out.dx = memory.values(backward.dx);
  out.dh0 = memory.values(backward.dh0.h);
  for (std::size_t i = 0; i < c.more_states(); ++i) {
    out.moren[i] = memory.values(forward.hn.*kStateTensors[i + 1]);
    out.dmore0[i] = memory.values(backward.dh0.*kStateTensors[i + 1]);
  }
  for (const TensorView& gradient : backward.dparams)
    out.dparams.push_back(memory.values(gradient));
  return out;
}

// A case, and what its plan has to be so that the kernel of its name runs.
struct Small {
  std::string kernel;
  Case c;
  std::function<void(dispatch::Plan&)> change = [](dispatch::Plan&) {};
  MatmulPrecision precision = MatmulPrecision::highest;
  std::vector<std::int64_t> lengths = {};  // of a ragged batch, which is reset here and there, too

  std::string name() const {
    return kernel + "_" + info(c.layer.cell).name + "_" + scanrnn::name(c.layer.dtype);
  }
};
inline std::ostream& operator<<(std::ostream& out, const Small& small) {
  return out << small.name();
}

// The first of a pass's cuts that is wanted, whatever the planner would rather do.
template <class F>
void cut_as(dispatch::Plan& plan, bool backward, F&& wanted) {
  for (const auto& shape : dispatch::persistent_shapes(plan.problem, plan.device, backward)) {
    if (!wanted(shape)) continue;
    (backward ? plan.persistent_vjp : plan.persistent) = shape;
    return;
  }
  ADD_FAILURE() << "no cut is as wanted";
}

inline Case small_case(const CellInfo& cell, Dtype dtype, dispatch::Strategy strategy,
                       std::int64_t steps, std::int64_t batch, std::int64_t hidden = 40) {
  Case c;
  c.layer.cell = cell.cell;
  c.layer.dtype = dtype;
  c.layer.input_size = 24;
  c.layer.hidden_size = hidden;
  fit(c.layer);
  c.steps = steps;
  c.batch = batch;
  c.way = strategy;
  return c;
}

// The options of a layer in a case's sizes and dtype.
inline void take_options(Case& c, LayerOptions options) {
  options.dtype = c.layer.dtype;
  options.input_size = c.layer.input_size;
  options.hidden_size = c.layer.hidden_size;
  c.layer = options;
  fit(c.layer);
}

// In 16 bits and with rows of whole 16 bytes, cuBLASLt's products use the bulk copy engine, which
// two of the sanitizer's tools do not follow. These rows are a little longer.
inline std::vector<Small> without_bulk_copies(std::vector<Small> out) {
  for (Small& small : out) {
    for (std::int64_t* size : {&small.c.layer.input_size, &small.c.layer.hidden_size}) {
      if (*size % 8 == 0) *size += 2;
    }
  }
  return out;
}

// Runs a case, and holds it to the oracle where that knows what the case draws and which steps it
// has; what those give is other tests' subject.
inline void expect_right(const Small& small) {
  const Case& c = small.c;
  Random random(31);
  const Data data = random_data(c, random);
  ContextOptions options;
  options.device = test_device();
  options.matmul_precision = small.precision;
  std::optional<Context> own;
  if (small.precision != MatmulPrecision::highest) own.emplace(options);
  Context& context = own ? *own : shared_context(1);
  const BatchShape shape{c.steps, c.batch, c.layout, c.longest};
  dispatch::Plan plan = Layer(c.layer).plan(context, shape, Mode::training, c.way.strategy);
  small.change(plan);
  RaggedCase ragged{c, small.lengths, {}};
  std::optional<Arguments> told;
  if (!small.lengths.empty()) {
    reset_some(ragged, 0.2, random);
    told.emplace(ragged, false, context);
  }
  const Result got = run(c, data, context, plan, told ? told->ragged() : Ragged{});
  const LayerOptions& layer = c.layer;
  const bool draws = layer.dropout + layer.zoneout + layer.zoneout_cell + layer.dropconnect +
                         layer.input_dropout + layer.state_dropout >
                     0;
  if (!draws && !told && small.precision == MatmulPrecision::highest) {
    expect_conforms(c, got, oracle::run(c, data));
    return;
  }
  const auto expect_finite = [](const Values& values) {
    for (double value : values) ASSERT_TRUE(std::isfinite(value));
  };
  for (const Values* values : {&got.y, &got.hn, &got.dx, &got.dh0}) expect_finite(*values);
  for (const MoreValues* more : {&got.moren, &got.dmore0}) {
    for (const Values& values : *more) expect_finite(values);
  }
}

}  // namespace scanrnn::test
