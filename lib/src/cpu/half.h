// SPDX-License-Identifier: Apache-2.0
// Numbers of 16 bits as memory has them; this processor computes with them as floats.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "platform.h"

namespace scanrnn {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

// What a number in memory is computed with as.
template <class T>
struct ComputedAs {
  using Type = T;
};
template <>
struct ComputedAs<Float16> {
  using Type = float;
};
template <>
struct ComputedAs<BFloat16> {
  using Type = float;
};

template <class T>
using Value = typename ComputedAs<T>::Type;
template <class T>
inline constexpr bool kIsReal = std::is_floating_point<Value<T>>::value;

SCANRNN_INLINE float widen(Float16 x) { return half_to_float(x.bits); }
SCANRNN_INLINE float widen(BFloat16 x) {
  const std::uint32_t bits = std::uint32_t{x.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// To nearest, ties to even; a NaN comes out quiet.
SCANRNN_INLINE void narrow(float value, Float16& out) { out.bits = float_to_half(value); }
SCANRNN_INLINE void narrow(float value, BFloat16& out) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<std::uint16_t>((nan ? bits | 0x400000u : rounded) >> 16);
}

// The others are as they are computed with.
template <class T>
SCANRNN_INLINE T widen(const T& x) {
  return x;
}
template <class T>
SCANRNN_INLINE void narrow(const T& value, T& out) {
  out = value;
}

}  // namespace scanrnn
