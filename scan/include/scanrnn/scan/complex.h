// SPDX-License-Identifier: Apache-2.0
// A complex number over any real value type, a SIMD vector too: as much of the vocabulary of
// scan/hd.h as the linear operator and its adjoint need.
#pragma once

#include <type_traits>

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

template <class V>
struct alignas((std::is_arithmetic<V>::value ? 2 : 1) * alignof(V)) Complex {
  V re, im;

  Complex() = default;
  SCANRNN_HD constexpr explicit Complex(double real) : re(V(real)), im(V(0)) {}
  SCANRNN_HD constexpr Complex(V real, V imaginary) : re(real), im(imaginary) {}

  friend SCANRNN_HD Complex operator-(const Complex& a) { return {-a.re, -a.im}; }
  friend SCANRNN_HD Complex operator+(const Complex& a, const Complex& b) {
    return {a.re + b.re, a.im + b.im};
  }
  friend SCANRNN_HD Complex operator-(const Complex& a, const Complex& b) {
    return {a.re - b.re, a.im - b.im};
  }
  friend SCANRNN_HD Complex operator*(const Complex& a, const Complex& b) {
    return {fma(a.re, b.re, -(a.im * b.im)), fma(a.re, b.im, a.im * b.re)};
  }
};

template <class V>
SCANRNN_HD Complex<V> fma(const Complex<V>& a, const Complex<V>& b, const Complex<V>& c) {
  return {fma(-a.im, b.im, fma(a.re, b.re, c.re)), fma(a.im, b.re, fma(a.re, b.im, c.im))};
}
// Masks are those of V: of the number, not of its parts.
template <class V>
SCANRNN_HD auto is_small(const Complex<V>& a) {
  return less(fma(a.re, a.re, a.im * a.im), V(0.25));
}
template <class V>
SCANRNN_HD auto is_zero(const Complex<V>& a) {
  return is_zero(abs(a.re) + abs(a.im));
}
template <class Mask, class V, std::enable_if_t<!std::is_same<Mask, bool>::value, int> = 0>
SCANRNN_HD Complex<V> select(const Mask& condition, const Complex<V>& yes, const Complex<V>& no) {
  return {select(condition, yes.re, no.re), select(condition, yes.im, no.im)};
}

// What multiplies a cotangent on its way back.
template <class V>
SCANRNN_HD V conj(const V& a) {
  return a;
}
template <class V>
SCANRNN_HD Complex<V> conj(const Complex<V>& a) {
  return {a.re, -a.im};
}

template <class V>
inline constexpr double kLargestExponent<Complex<V>> = kLargestExponent<V>;

}  // namespace scanrnn::scan
