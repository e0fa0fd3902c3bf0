// SPDX-License-Identifier: Apache-2.0
// The vocabulary that cells and operators are written in, for scalars on host and device.
// A SIMD vector type joins by defining the same names in its own namespace (found by ADL).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SCANRNN_HD __host__ __device__ __forceinline__
#else
#define SCANRNN_HD __attribute__((always_inline)) inline
#endif

namespace scanrnn::scan {

// Where bounded_exp stops, at x: the reciprocal of 2 e^x is not subnormal, and e^x / (1 + e^x) is 1
// in every rounding.
template <class V>
inline constexpr double kLargestExponent = 703;
template <>
inline constexpr double kLargestExponent<float> = 86;
// The largest number of V, and the smallest normal one.
template <class V>
inline constexpr double kLargestNumber =
    kLargestExponent<V> < 100 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
template <class V>
inline constexpr double kSmallestNormal = kLargestExponent<V> < 100 ? 0x1p-126 : 0x1p-1022;

#if defined(__CUDA_ARCH__)
SCANRNN_HD float max(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
SCANRNN_HD float min(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
// 1 / x to one unit in the last place, for a normal x.
SCANRNN_HD float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// To two units in the last place, and 0 for a subnormal x.
SCANRNN_HD float sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^t on the special function unit, t = x log2(e), and the part of x that t's rounding left out:
// a relative error below 4e-7.
SCANRNN_HD float bounded_exp(float x) {
  x = max(min(x, static_cast<float>(kLargestExponent<float>)), -104.0f);
  const float t = x * 1.44269504f;
  const float left = fmaf(t, -0.693147182f, x);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  return fmaf(power, left, power);
}
// The same for any x below 2e38, and for an infinite one: infinity past the largest float, 0 below
// the smallest normal one. A relative error below 4e-7 up to |x| = 16, and 2.4e-7 more at the ends,
// where a unit of x is 20 times that. log2(e) is three units short, so what is left has the sign of
// x: an infinite power stays infinite with it. An infinite x leaves a NaN, which the minimum drops.
SCANRNN_HD float fast_exp(float x) {
  const float t = x * 1.44269466f;
  const float left = ::fminf(fmaf(t, -0.693147182f, x), 1.0f);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  return fmaf(power, left, power);
}
// Near 1 its error is 2^-22, elsewhere that part of it; -infinity for a subnormal x.
SCANRNN_HD float fast_log(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y * 0.693147182f;
}
#else
SCANRNN_HD float fast_exp(float x) { return ::expf(x); }
SCANRNN_HD float fast_log(float x) { return ::logf(x); }
SCANRNN_HD float sqrt(float x) { return ::sqrtf(x); }
SCANRNN_HD float reciprocal(float x) { return 1.0f / x; }
SCANRNN_HD float bounded_exp(float x) {
  constexpr float kMost = static_cast<float>(kLargestExponent<float>);
  return ::expf(kMost < x ? kMost : x);
}
#endif
SCANRNN_HD double reciprocal(double x) { return 1.0 / x; }
// e^x for x up to kLargestExponent, past which it stays, so that a cell need not think of
// infinities.
SCANRNN_HD double bounded_exp(double x) {
  constexpr double kMost = kLargestExponent<double>;
  return ::exp(kMost < x ? kMost : x);
}
SCANRNN_HD double fast_exp(double x) { return ::exp(x); }
SCANRNN_HD double fast_log(double x) { return ::log(x); }
SCANRNN_HD float exp(float x) { return ::expf(x); }
SCANRNN_HD double exp(double x) { return ::exp(x); }
SCANRNN_HD float expm1(float x) { return ::expm1f(x); }
SCANRNN_HD double expm1(double x) { return ::expm1(x); }
SCANRNN_HD float log(float x) { return ::logf(x); }
SCANRNN_HD double log(double x) { return ::log(x); }
SCANRNN_HD float log1p(float x) { return ::log1pf(x); }
SCANRNN_HD double log1p(double x) { return ::log1p(x); }
SCANRNN_HD double sqrt(double x) { return ::sqrt(x); }
SCANRNN_HD float tanh(float x) { return ::tanhf(x); }
SCANRNN_HD double tanh(double x) { return ::tanh(x); }
SCANRNN_HD float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
SCANRNN_HD double fma(double a, double b, double c) { return ::fma(a, b, c); }
SCANRNN_HD float abs(float x) { return ::fabsf(x); }
SCANRNN_HD double abs(double x) { return ::fabs(x); }

// A NaN in either argument comes out, as in the vector flavours.
template <class T>
SCANRNN_HD T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
SCANRNN_HD T min(T a, T b) {
  return b < a ? b : a;
}

// A vector type answers less() with a mask that its own select() takes.
template <class T>
SCANRNN_HD bool less(T a, T b) {
  return a < b;
}
template <class T>
SCANRNN_HD T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}
SCANRNN_HD float round(float x) { return ::rintf(x); }
SCANRNN_HD double round(double x) { return ::rint(x); }
// 2^n for a whole n of at least -126 (double: -1022) and at most 127 (1023); below, 0.
SCANRNN_HD float power_of_two(float n) {
  const std::int32_t bits = (static_cast<std::int32_t>(n < -127 ? -127.0f : n) + 127) << 23;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
SCANRNN_HD double power_of_two(double n) {
  const std::int64_t bits = (static_cast<std::int64_t>(n < -1023 ? -1023.0 : n) + 1023) << 52;
  double out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
// n of 2^n <= |x| < 2^(n+1); of a subnormal number or 0 -127 (-1023), of an infinity or a NaN 128.
SCANRNN_HD float exponent_of(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<float>((bits >> 23 & 0xff) - 127);
}
SCANRNN_HD double exponent_of(double x) {
  std::int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<double>((bits >> 52 & 0x7ff) - 1023);
}
template <class T>
SCANRNN_HD bool is_zero(T a) {
  return a == T(0);
}
// |a| < 1/2; a mask, too.
template <class V>
SCANRNN_HD auto is_small(const V& a) {
  return less(abs(a), V(0.5));
}
// Whether a mask is true anywhere: for what is rarely needed and costs much.
SCANRNN_HD bool any(bool condition) { return condition; }

}  // namespace scanrnn::scan
