// SPDX-License-Identifier: Apache-2.0
// The one table of tolerances: docs/maths.md, "Accuracy to reach". A test that fails is not a
// reason to change a number here; a derivation is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "scanrnn/tensor.h"
#include "support/compare.h"
#include "support/device.h"

namespace scanrnn::test {

struct Accuracy {
  double forward;   // largest error over largest magnitude, for each doubling of T and once more
  double rounding;  // of a stored output, relative to the element: half a unit in the last place
  double gradient;  // relative root mean square
  double floor;     // half the distance of two subnormals; float32 may flush all of them to zero
};

inline Accuracy accuracy(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return {1e-13, 0, 1e-12, 0x1p-1022};
    case Dtype::float32:
      return {3e-7, 0, 2e-6, 0x1p-126};
    case Dtype::bfloat16:
      return {3e-7, 0x1p-8, 1e-2, 0x1p-126};
    case Dtype::float16:
      return {3e-7, 0x1p-11, 2e-3, 0x1p-25};
  }
  return {};
}

// CUDA stores pre-activations in the tensors' dtype, the CPU in the type that it computes in. Half
// a unit of a logit k is |k| 2^-9 in bfloat16; a gate's relative error is at most that, and a
// state, a mean of what its gates let in, differs by that share of its range. The tests' logits are
// below 8.
inline double stored_logits(Dtype dtype) { return on_cuda() ? 8 * accuracy(dtype).rounding : 0; }

// CUDA stores the cotangents of pre-activations in the tensors' dtype too. Where these have no more
// bits each is off by up to `floor`, and a sum of `count` of them times factors up to `largest`
// (the tests' weights are below 1, their inputs below 30) by this many of it; it is stored itself.
inline double cotangent_roundings(std::int64_t count, double largest) {
  return 1 + (on_cuda() ? largest * std::sqrt(static_cast<double>(count)) : 0);
}

// Of an output that was stored once, after `layers` of which each hands its own error on to gates
// that do not amplify it: the weights' rows are U(+-1/sqrt(H)), the slopes at most 1.
inline Tolerance forward_tolerance(Dtype dtype, std::int64_t steps, int layers = 1) {
  const Accuracy a = accuracy(dtype);
  const double doublings = 1 + std::log2(static_cast<double>(std::max<std::int64_t>(steps, 1)));
  return {(a.forward * doublings + stored_logits(dtype)) * layers, a.rounding, a.floor};
}

// A gradient has jumps: of relu and of g, at 0. A rounded logit crosses one in a share of the
// elements that is its relative rounding, and each of these is wrong by its own size.
inline double gradient_tolerance(Dtype dtype) {
  const double jumps = on_cuda() ? std::sqrt(accuracy(dtype).rounding) : 0;
  return accuracy(dtype).gradient + stored_logits(dtype) + jumps;
}

}  // namespace scanrnn::test
