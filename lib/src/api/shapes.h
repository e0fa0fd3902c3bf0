// SPDX-License-Identifier: Apache-2.0
// The shapes of a layer's tensors: how they are named in errors, checked, and seen from below.
#pragma once

#include <string>
#include <vector>

#include "api/check.h"
#include "api/parameters.h"
#include "api/ragged_check.h"
#include "api/state_names.h"
#include "scanrnn/layer.h"

namespace scanrnn {

using dispatch::Batch;

// What a layer's arguments must be, for a plan in a context; checked, they are as everything below
// this file sees them.
struct Shapes {
  const Layer& layer;
  const dispatch::Plan& plan;
  const Context& context;
  Device device = context.options().device;

  Expected tokens(const char* name, std::int64_t width, const char* axes, const char* swapped,
                  const char* packed, bool optional) const {
    const auto& p = plan.problem;
    const bool batch_first = layer.options().batch_first;
    if (p.layout == Batch::packed) {
      return {name, {p.steps, width}, packed, layer.options().dtype, device, optional};
    }
    return {name,
            {batch_first ? p.batch : p.steps, batch_first ? p.steps : p.batch, width},
            batch_first ? swapped : axes,
            layer.options().dtype,
            device,
            optional};
  }
  Expected input(const char* name, bool optional = false) const {
    return tokens(name, layer.options().input_size, "(steps, batch, input_size)",
                  "(batch, steps, input_size)", "(tokens, input_size)", optional);
  }
  Expected output(const char* name, bool optional = false) const {
    if (layer.options().proj_size > 0) {
      return tokens(name, layer.directions() * layer.output_size(),
                    "(steps, batch, num_directions * proj_size)",
                    "(batch, steps, num_directions * proj_size)",
                    "(tokens, num_directions * proj_size)", optional);
    }
    return tokens(name, layer.directions() * layer.options().hidden_size,
                  "(steps, batch, num_directions * hidden_size)",
                  "(batch, steps, num_directions * hidden_size)",
                  "(tokens, num_directions * hidden_size)", optional);
  }
  // A tensor with time, as everything below sees it.
  TensorView over_time(const TensorView& view, Expected want, Layout layout = Layout::rows) const {
    want.layout = layout;
    const TensorView checked = check(view, want);
    if (checked.rank == 0) return checked;
    return time_first(checked, layer.options().batch_first, plan.problem.layout);
  }
  // The shape of h, or of another tensor of the state.
  Expected state_of(const char* name, bool of_h) const {
    const LayerOptions& o = layer.options();
    const bool projected = of_h && o.proj_size > 0;
    return {name,
            {o.num_layers * layer.directions(), plan.problem.batch,
             of_h ? layer.output_size() : o.hidden_size},
            projected ? "(num_layers * num_directions, batch, proj_size)"
                      : "(num_layers * num_directions, batch, hidden_size)",
            o.dtype,
            device,
            true};
  }
  StateNames names_of(const char* h) const { return {info(layer.options().cell), h}; }
  State check_state(const char* h, const State& state, Layout layout = Layout::rows) const {
    const StateNames names = names_of(h);
    State out;
    for (std::size_t i = 0; i < names.count(); ++i) {
      const std::string name = names[i];
      Expected want = state_of(name.c_str(), i == 0);
      want.layout = layout;
      out.*kStateTensors[i] = check(state.*kStateTensors[i], want);
    }
    names.check_no_more(state);
    return out;
  }
  // An initial state is absent or whole.
  State check_initial(const char* h, const State& state) const {
    const State out = check_state(h, state);
    if (plan.problem.batch > 0) names_of(h).check_whole(state);
    return out;
  }
  // The pool of states that a step goes on from, of any size.
  State check_pool(const char* h, const ForwardArgs& args) const {
    require(plan.problem.layout == Batch::ragged,
            "state_indices: expected a plan for a ragged batch, got another");
    const StateNames names = names_of(h);
    require(args.h0.h.rank == 3, [&] {
      return names[0] + ": expected a pool of states, 3 axes, with state_indices, got " +
             (args.h0.h.rank == 0 ? "none" : "shape " + args.h0.h.shape());
    });
    for (const auto part : kStateTensors) {
      require(!(args.hn.*part),
              "h_n: expected none with state_indices, the pool is updated in place");
    }
    const std::int64_t states = args.h0.h.sizes[1];
    const LayerOptions& o = layer.options();
    const auto pool = [&] { return names[0] + ": " + std::to_string(states) + " states"; };
    require(states >= 0, [&] {
      return names[0] + ": expected a pool of states, got " + std::to_string(states) + " of them";
    });
    check_countable(pool, {states, o.num_layers, o.hidden_size, 64});
    names.check_no_more(args.h0);
    State out;
    for (std::size_t i = 0; i < names.count(); ++i) {
      const std::string name = names[i];
      Expected want = state_of(name.c_str(), i == 0);
      const bool projected = i == 0 && o.proj_size > 0;
      want.sizes = {o.num_layers, states, projected ? o.proj_size : o.hidden_size};
      want.axes =
          projected ? "(num_layers, states, proj_size)" : "(num_layers, states, hidden_size)";
      want.optional = false;
      want.layout = Layout::output_rows;
      out.*kStateTensors[i] = check(args.h0.*kStateTensors[i], want);
    }
    check_apart(
        names.count(), [&](std::size_t i) -> const TensorView& { return out.*kStateTensors[i]; },
        [&](std::size_t i) { return names[i]; });
    return out;
  }
  // Outputs in memory of their own: y or dx, named `first`, the state, and gradients of parameters.
  void check_outputs(const char* first, const TensorView& tokens, const char* h, const State& state,
                     const std::vector<TensorView>& dparams = {}) const {
    const StateNames names = names_of(h);
    const std::size_t states = names.count();
    check_apart(
        1 + states + dparams.size(),
        [&](std::size_t i) -> const TensorView& {
          return i == 0        ? tokens
                 : i <= states ? state.*kStateTensors[i - 1]
                               : dparams[i - 1 - states];
        },
        [&](std::size_t i) {
          return i == 0        ? first
                 : i <= states ? names[i - 1]
                               : "d" + layer.parameters()[i - 1 - states].name;
        });
  }
  TensorView check_indices(const ForwardArgs& args) const {
    const std::int64_t states = args.h0.h.sizes[1];
    return check_state_indices(args.state_indices, plan.problem.batch, states, context);
  }
  TensorView check_seed(const TensorView& seed) const {
    return check(seed, {"seed_in", {1}, "(1,)", Dtype::int64, device, true});
  }
  void check_params(const char* prefix, std::vector<TensorView>& params,
                    Layout layout = Layout::rows) const {
    const auto& wanted = layer.parameters();
    require(params.size() == wanted.size(), [&] {
      return std::string(prefix) + "params: expected " + std::to_string(wanted.size()) +
             " tensors, got " + std::to_string(params.size());
    });
    for (std::size_t i = 0; i < params.size(); ++i) {
      const char* axes = axes_of(wanted[i], layer.options());
      params[i] = check(params[i], {wanted[i].name.c_str(), wanted[i].sizes, axes,
                                    layer.options().dtype, device, false, prefix, layout});
    }
  }
};

}  // namespace scanrnn
