// SPDX-License-Identifier: Apache-2.0
// Numbers in the formats of the dtypes.
#include "support/tensor.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace scanrnn::test {

Format format(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return {11, 52};
    case Dtype::float32:
      return {8, 23};
    case Dtype::bfloat16:
      return {8, 7};
    case Dtype::float16:
      return {5, 10};
    default:
      break;
  }
  throw std::logic_error("dtype");
}

std::uint64_t encode(double value, Dtype dtype) {
  const Format f = format(dtype);
  const std::uint64_t infinity = ((std::uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
  const std::uint64_t sign = std::uint64_t{std::signbit(value)}
                             << (f.exponent_bits + f.mantissa_bits);
  if (std::isnan(value)) return sign | infinity | std::uint64_t{1} << (f.mantissa_bits - 1);
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), 1 - f.bias());
  const double units = std::nearbyint(std::ldexp(std::fabs(value), f.mantissa_bits - exponent));
  // The implicit bit adds one to the exponent field, and so does a carry out of the mantissa.
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(exponent + f.bias() - 1) << f.mantissa_bits) +
      static_cast<std::uint64_t>(units);
  return sign | std::min(bits, infinity);
}

double decode(std::uint64_t bits, Dtype dtype) {
  const Format f = format(dtype);
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << f.mantissa_bits) - 1);
  const auto field = static_cast<int>((bits >> f.mantissa_bits) & ((1u << f.exponent_bits) - 1));
  const double sign = (bits >> (f.exponent_bits + f.mantissa_bits)) & 1 ? -1.0 : 1.0;
  if (field == (1 << f.exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  const auto units =
      static_cast<double>(field ? mantissa | std::uint64_t{1} << f.mantissa_bits : mantissa);
  return sign * std::ldexp(units, (field ? field : 1) - f.bias() - f.mantissa_bits);
}

}  // namespace scanrnn::test
