// SPDX-License-Identifier: Apache-2.0
// What every way into the library shares: contexts, descriptions of layers, plans. NumPy's arrays
// come in by bindings.cpp, other libraries' by exchange.cpp, XLA's by jax_ffi.cpp.
#pragma once

#include <optional>
#include <string>

#include "scanrnn/scanrnn.h"

namespace scanrnn {

// One per thread and device, so that nothing is shared between threads. `stream` is where work goes
// until the next call of this function; null is the default stream.
Context& context(Device device, void* stream = nullptr);
// In the child of a fork: work on the CPU is one thread's from now on, since libgomp would wait
// for ever for the others, which only the parent has.
void after_fork();
// For all contexts of this kind of device, from now on.
void choose_profile(Device::Kind kind, const dispatch::Profile& profile);

// A plan, where it runs and what it needs.
struct PlannedCall {
  dispatch::Plan plan;
  Device device;
  Sizes sizes;
};

Layer make_layer(LayerOptions options, const std::string& cell, const std::string& variant,
                 const std::string& domain, const std::string& dtype);
PlannedCall plan_layer(const Layer& layer, Device device, std::int64_t steps, std::int64_t batch,
                       bool training, const std::optional<std::string>& strategy);
PlannedCall plan_scan(Device device, std::int64_t steps, std::int64_t rows,
                      const std::string& dtype, bool log_form,
                      const std::optional<std::string>& strategy);

}  // namespace scanrnn
