// SPDX-License-Identifier: Apache-2.0
// Two adjacent units as one value, so that a lane of 16-bit tensors moves words: the vocabulary of
// scan/hd.h, component by component.
#pragma once

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

struct Pair {
  float x, y;

  Pair() = default;
  SCANRNN_HD constexpr explicit Pair(double both)
      : x(static_cast<float>(both)), y(static_cast<float>(both)) {}
  SCANRNN_HD constexpr Pair(float first, float second) : x(first), y(second) {}
  SCANRNN_HD Pair& operator+=(const Pair& b) {
    x += b.x;
    y += b.y;
    return *this;
  }
};

SCANRNN_HD Pair operator-(const Pair& a) { return {-a.x, -a.y}; }
SCANRNN_HD Pair operator+(const Pair& a, const Pair& b) { return {a.x + b.x, a.y + b.y}; }
SCANRNN_HD Pair operator-(const Pair& a, const Pair& b) { return {a.x - b.x, a.y - b.y}; }
SCANRNN_HD Pair operator*(const Pair& a, const Pair& b) { return {a.x * b.x, a.y * b.y}; }

SCANRNN_HD Pair reciprocal(const Pair& a) { return {reciprocal(a.x), reciprocal(a.y)}; }
SCANRNN_HD Pair bounded_exp(const Pair& a) { return {bounded_exp(a.x), bounded_exp(a.y)}; }
SCANRNN_HD Pair fast_exp(const Pair& a) { return {fast_exp(a.x), fast_exp(a.y)}; }
SCANRNN_HD Pair fast_log(const Pair& a) { return {fast_log(a.x), fast_log(a.y)}; }
SCANRNN_HD Pair exp(const Pair& a) { return {exp(a.x), exp(a.y)}; }
SCANRNN_HD Pair expm1(const Pair& a) { return {expm1(a.x), expm1(a.y)}; }
SCANRNN_HD Pair log(const Pair& a) { return {log(a.x), log(a.y)}; }
SCANRNN_HD Pair log1p(const Pair& a) { return {log1p(a.x), log1p(a.y)}; }
SCANRNN_HD Pair tanh(const Pair& a) { return {tanh(a.x), tanh(a.y)}; }
SCANRNN_HD Pair abs(const Pair& a) { return {abs(a.x), abs(a.y)}; }
SCANRNN_HD Pair fma(const Pair& a, const Pair& b, const Pair& c) {
  return {fma(a.x, b.x, c.x), fma(a.y, b.y, c.y)};
}
SCANRNN_HD Pair max(const Pair& a, const Pair& b) { return {max(a.x, b.x), max(a.y, b.y)}; }
SCANRNN_HD Pair min(const Pair& a, const Pair& b) { return {min(a.x, b.x), min(a.y, b.y)}; }

// What the components of a V are.
template <class V>
struct ScalarOf {
  using Type = V;
};
template <>
struct ScalarOf<Pair> {
  using Type = float;
};
template <class V>
using Scalar = typename ScalarOf<V>::Type;

struct PairMask {
  bool x, y;
};
SCANRNN_HD PairMask less(const Pair& a, const Pair& b) { return {a.x < b.x, a.y < b.y}; }
SCANRNN_HD PairMask is_zero(const Pair& a) { return {a.x == 0, a.y == 0}; }
SCANRNN_HD bool any(const PairMask& condition) { return condition.x || condition.y; }
SCANRNN_HD Pair select(const PairMask& condition, const Pair& yes, const Pair& no) {
  return {condition.x ? yes.x : no.x, condition.y ? yes.y : no.y};
}

// A pair's map or state as those of its two units, and back; a scalar has one part, itself.
template <class T>
SCANRNN_HD T part(const T& whole, int) {
  return whole;
}
SCANRNN_HD Affine<float> part(const Affine<Pair>& f, int i) {
  return i == 0 ? Affine<float>{f.a.x, f.z.x, f.b.x} : Affine<float>{f.a.y, f.z.y, f.b.y};
}
SCANRNN_HD Carried<float> part(const Carried<Pair>& s, int i) {
  return i == 0 ? Carried<float>{s.h.x, s.c.x} : Carried<float>{s.h.y, s.c.y};
}
template <int kParts, class T, class Part>
SCANRNN_HD void split_parts(const T& whole, Part* parts) {
  for (int i = 0; i < kParts; ++i) parts[i] = part(whole, i);
}
template <class T>
SCANRNN_HD void join_parts(const T* parts, T& whole) {
  whole = *parts;
}
SCANRNN_HD void join_parts(const Affine<float>* f, Affine<Pair>& whole) {
  whole = {{f[0].a, f[1].a}, {f[0].z, f[1].z}, {f[0].b, f[1].b}};
}
SCANRNN_HD void join_parts(const Carried<float>* s, Carried<Pair>& whole) {
  whole = {{s[0].h, s[1].h}, {s[0].c, s[1].c}};
}

template <>
inline constexpr double kLargestExponent<Pair> = kLargestExponent<float>;

}  // namespace scanrnn::scan
