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
    default:  // a complex one has that of its parts
      return accuracy(dtype == Dtype::complex128 ? Dtype::float64 : Dtype::float32);
  }
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

// The error of an output that was stored once, after `layers` of which each hands its own error on
// to gates that do not amplify it: the weights' rows are U(+-1/sqrt(H)), the slopes at most 1.
inline Tolerance forward_tolerance(Dtype dtype, std::int64_t steps, int layers = 1) {
  const Accuracy a = accuracy(dtype);
  const double doublings = 1 + std::log2(static_cast<double>(std::max<std::int64_t>(steps, 1)));
  return {(a.forward * doublings + stored_logits(dtype)) * layers, a.rounding, a.floor};
}

// What a stored 16-bit value is off by, relative and root mean square: its rounding is spread
// evenly over u either way, u^2 / 3 in the mean of squares, and the value over its binade, 7 / 3.
inline double stored_value(Dtype dtype) { return accuracy(dtype).rounding / std::sqrt(7.0); }

// Relative, root mean square, of a gradient of `count` values.
//
// On the CPU two factors of a 16-bit gradient are stored, the states that are the last layer's
// output and the gradient itself; the rest is float32. On CUDA each layer stores three, these and
// the cotangents of the pre-activations. It stores the pre-activations, too: an error e in one
// (`logit_error`, of this case's own) is a relative error of up to e in the slope of its gate, and
// up to e again in the decays that a cotangent has come through. All are independent, so squares
// add up. The root counts twice, since terms weigh unevenly; and few values may all have been
// unlucky.
inline double gradient_tolerance(Dtype dtype, int layers, double logit_error, std::size_t count,
                                 bool as_cuda = on_cuda()) {
  if (size_of(dtype) > 2) return accuracy(dtype).gradient;
  const double value = stored_value(dtype);
  const double squares =
      as_cuda ? layers * (3 * value * value + 2 * logit_error * logit_error) : 2 * value * value;
  const double few = 1 + 2 / std::sqrt(static_cast<double>(std::max<std::size_t>(count, 1)));
  return accuracy(Dtype::float32).gradient + 2 * std::sqrt(squares) * few;
}

// The slopes of relu and of g jump, at 0. An error in what they are taken of, which is about the
// rounding of what a layer reads, crosses a jump in a share of the `elements` that is the rounding,
// or in a few of them, and each of these is wrong by its own size.
inline double jump_tolerance(Dtype dtype, std::int64_t elements, bool as_cuda = on_cuda()) {
  if (!as_cuda || size_of(dtype) > 2) return 0;
  return std::sqrt(accuracy(dtype).rounding + 4 / static_cast<double>(elements));
}

}  // namespace scanrnn::test
