// SPDX-License-Identifier: Apache-2.0
// What every way into the library shares: contexts, descriptions of layers, plans. Arrays of every
// library come in by exchange.cpp, XLA's buffers by jax_ffi.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "scanrnn/scanrnn.h"

namespace scanrnn {

// Finds this thread's context of a device, and makes it where there is none. Nothing is shared
// between threads.
Context& context(Device device);
// Sets what this thread's context of a device works by from now on: the stream, null for the
// default one, and what the process has chosen, a profile and a precision.
void configure(Device device, void* stream = nullptr);

// In the child of a fork: work on the CPU is one thread's from now on, since libgomp would wait
// for ever for the others, which only the parent has.
void after_fork();
// For all contexts of this kind of device, from now on. All of them share it.
void choose_profile(Device::Kind kind, std::shared_ptr<const dispatch::Profile> profile);
// For the whole process, as in torch: the precision of float32 matrix products.
void choose_precision(const std::string& text);
std::string chosen_precision();
// For this thread alone, from now on; an empty text stands for the process's choice.
void use_precision(const std::string& text);
// That of this thread's calls.
MatmulPrecision matmul_precision();
// A number that changes with everything but a problem that a plan for this device depends on, so
// that a plan can be kept for as long as it stays the same.
std::uint64_t settings(Device device);

// A plan, where it runs and what it needs.
struct PlannedCall : CountedPlan {
  Device device;
};

Layer make_layer(LayerOptions options, const std::string& cell, const std::string& variant,
                 const std::string& domain, const std::string& own, const std::string& dtype);
PlannedCall plan_layer(const Layer& layer, Device device, const BatchShape& shape, bool training,
                       const std::optional<std::string>& strategy);
PlannedCall plan_scan(Device device, const ScanShape& shape,
                      const std::optional<std::string>& strategy);

}  // namespace scanrnn
