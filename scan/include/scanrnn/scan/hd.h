// SPDX-License-Identifier: Apache-2.0
// The vocabulary that cells and operators are written in, for scalars on host and device.
// A SIMD vector type joins by defining the same names in its own namespace (found by ADL).
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define SCANRNN_HD __host__ __device__ __forceinline__
#else
#define SCANRNN_HD __attribute__((always_inline)) inline
#endif

namespace scanrnn::scan {

SCANRNN_HD float exp(float x) { return ::expf(x); }
SCANRNN_HD double exp(double x) { return ::exp(x); }
SCANRNN_HD float expm1(float x) { return ::expm1f(x); }
SCANRNN_HD double expm1(double x) { return ::expm1(x); }
SCANRNN_HD float log(float x) { return ::logf(x); }
SCANRNN_HD double log(double x) { return ::log(x); }
SCANRNN_HD float log1p(float x) { return ::log1pf(x); }
SCANRNN_HD double log1p(double x) { return ::log1p(x); }
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

}  // namespace scanrnn::scan
