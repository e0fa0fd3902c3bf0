// SPDX-License-Identifier: Apache-2.0
// The shapes of a layer's tensors: how they are named in errors, checked, and seen from below.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/parameters.h"
#include "api/ragged_check.h"
#include "api/state_names.h"
#include "scanrnn/layer.h"

namespace scanrnn {

using dispatch::Batch;

// A user's [B,T,.] as the [T,B,.] that everything below this file sees, and packed tokens, [T,.],
// as those of one line, [T,1,.].
inline TensorView time_first(TensorView view, bool batch_first, Batch layout) {
  if (layout == Batch::packed) {
    for (int axis = view.rank; axis > 1; --axis) {
      view.sizes[static_cast<std::size_t>(axis)] = view.sizes[static_cast<std::size_t>(axis - 1)];
      view.strides[static_cast<std::size_t>(axis)] =
          view.strides[static_cast<std::size_t>(axis - 1)];
    }
    view.sizes[1] = 1;
    view.strides[1] = 0;
    ++view.rank;
  } else if (batch_first) {
    std::swap(view.sizes[0], view.sizes[1]);
    std::swap(view.strides[0], view.strides[1]);
  }
  return view;
}

// What a layer's arguments must be, for a plan in a context; checked, they are as everything below
// this file sees them.
struct Shapes {
  const Layer& layer;
  const dispatch::Plan& plan;
  const Context& context;
  Device device = context.options().device;

  Expected tokens(const char* name, std::int64_t width, const char* axes, const char* swapped,
                  const char* packed, bool optional = false) const {
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
  TensorView over_time(const TensorView& view, const Expected& want) const {
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
  State check_state(const char* h, const State& state) const {
    const StateNames names = names_of(h);
    State out;
    for (std::size_t i = 0; i < names.count(); ++i) {
      const std::string name = names[i];
      out.*kStateTensors[i] = check(state.*kStateTensors[i], state_of(name.c_str(), i == 0));
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
    require(args.h0.h.rank == 3, "state_indices: expected a pool of states as h, got none");
    for (const auto part : kStateTensors) {
      require(!(args.hn.*part),
              "h_n: expected none with state_indices, the pool is updated in place");
    }
    const StateNames names = names_of(h);
    const std::int64_t states = args.h0.h.sizes[1];
    names.check_no_more(args.h0);
    State out;
    for (std::size_t i = 0; i < names.count(); ++i) {
      const std::string name = names[i];
      Expected want = state_of(name.c_str(), i == 0);
      const LayerOptions& o = layer.options();
      const bool projected = i == 0 && o.proj_size > 0;
      want.sizes = {o.num_layers, states, projected ? o.proj_size : o.hidden_size};
      want.axes =
          projected ? "(num_layers, states, proj_size)" : "(num_layers, states, hidden_size)";
      want.optional = false;
      out.*kStateTensors[i] = check(args.h0.*kStateTensors[i], want);
      for (std::size_t before = 0; before < i && states > 0; ++before) {
        require((out.*kStateTensors[i]).data != (out.*kStateTensors[before]).data, [&] {
          return name + ": expected memory of its own, got that of " + names[before];
        });
      }
    }
    return out;
  }
  TensorView check_indices(const ForwardArgs& args) const {
    const std::int64_t states = args.h0.h.sizes[1];
    return check_state_indices(args.state_indices, plan.problem.batch, states, context);
  }
  TensorView check_seed(const TensorView& seed) const {
    return check(seed, {"seed_in", {1}, "(1,)", Dtype::int64, device, true});
  }
  void check_params(const char* prefix, std::vector<TensorView>& params) const {
    const auto& wanted = layer.parameters();
    require(params.size() == wanted.size(), [&] {
      return std::string(prefix) + "params: expected " + std::to_string(wanted.size()) +
             " tensors, got " + std::to_string(params.size());
    });
    for (std::size_t i = 0; i < params.size(); ++i) {
      const char* axes = axes_of(wanted[i], layer.options());
      params[i] = check(params[i], {wanted[i].name.c_str(), wanted[i].sizes, axes,
                                    layer.options().dtype, device, false, prefix});
    }
  }
};

}  // namespace scanrnn
