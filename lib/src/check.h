// SPDX-License-Identifier: Apache-2.0
// Argument checks: each throws with the argument's name, what came and what was wanted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "scanrnn/context.h"
#include "scanrnn/error.h"

namespace scanrnn {

// What a tensor must be. `axes` names the sizes: "(T, B, C)".
struct Expected {
  const char* name;
  std::vector<std::int64_t> sizes;
  const char* axes;
  Dtype dtype;
  Device device;
  bool optional = false;
};

// Shape, dtype, device, and strides: the last axis contiguous, rows that do not overlap. Returns
// the tensor; one without elements has an address, whatever came, since a null one means: absent.
TensorView check(const TensorView& view, const Expected& want);

// A workspace or reserve: large enough and aligned as Span says.
void check(const Span& span, const char* name, std::size_t bytes, const dispatch::Plan& plan);

void require(bool condition, const std::string& message);  // value_error

// A value_error that begins with `what` unless the product of `factors` is far from wrapping.
void check_countable(const std::string& what, std::initializer_list<std::int64_t> factors);

// A forced strategy that cannot run is a value_error that says why.
void check_strategy(const dispatch::Problem& problem, const dispatch::DeviceLimits& device);

}  // namespace scanrnn
