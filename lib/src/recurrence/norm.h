// SPDX-License-Identifier: Apache-2.0
// The norm of a row of values, (x - mean) / sqrt(variance + 1e-5) with the biased variance (Ba,
// Kiros and Hinton 2016, arXiv 1607.06450), times a scale, and its adjoint: once for both
// processors.
//
// The workers of a row are one thread or a block of them. They have
//   rows(width, f)     f(row) for the worker's rows of Memory among so many values
//   sum(count, value)  the sum of value(i) over i < count, for all of them and in a fixed order;
//                      what they wrote before it, all of them may read after it
#pragma once

#include "scanrnn/scan/op.h"

namespace scanrnn {

using scan::fma;
using scan::Index;

inline constexpr double kNormEpsilon = 1e-5;

// Computed in W.
template <class W>
struct Moments {
  W mean, scale;

  // The norm of x.
  template <class V>
  SCANRNN_HD V operator()(const V& x) const {
    return (x - V(mean)) * V(scale);
  }
};

template <class W, class Workers, class F>
SCANRNN_HD Moments<W> moments_of(const Workers& workers, Index count, F&& value) {
  const W n = static_cast<W>(count);
  const W mean = workers.sum(count, value) / n;
  const W variance = workers.sum(count, [&](Index i) {
    const W apart = value(i) - mean;
    return apart * apart;
  }) / n;
  return {mean, W(1) / scan::sqrt(variance + static_cast<W>(kNormEpsilon))};
}
template <class W, class Workers, class U>
SCANRNN_HD Moments<W> moments(const Workers& workers, const U* values, Index count) {
  return moments_of<W>(workers, count, [&](Index i) { return static_cast<W>(values[i]); });
}

// The cotangent of a value: `through` is that of its norm, `mean` and `along` are the means over
// the row of all of those, and of their products with the norms.
template <class V, class W>
SCANRNN_HD V norm_back(const Moments<W>& norm, W mean, W along, const V& normed, const V& through) {
  return V(norm.scale) * fma(V(-along), normed, through - V(mean));
}

// The adjoint at a row of values, where d is the cotangent of scale * norm: calls
// use(row, cotangent of the values, cotangent of the scale), in which d may be written over.
// `Values` is the memory of the values, `Of` that of d, `Memory` that of the scale.
template <class Values, class Of, class Memory, class Workers, class F>
SCANRNN_HD void norm_vjp(const Workers& workers, const typename Values::T* values,
                         const typename Memory::T* scale, const typename Of::T* d, Index count,
                         F&& use) {
  using V = typename Memory::V;
  using W = typename Workers::W;
  const auto norm = moments<W>(workers, values, count);
  const W n = static_cast<W>(count);
  const auto scaled = [&](Index i) { return static_cast<W>(d[i]) * static_cast<W>(scale[i]); };
  const W mean = workers.sum(count, scaled) / n;
  const W along =
      workers.sum(count, [&](Index i) { return scaled(i) * norm(static_cast<W>(values[i])); }) / n;
  workers.rows(count, [&](Index row) {
    const V normed = norm(Values::read(values, row, count)), own = Of::read(d, row, count);
    const V through = own * Memory::read(scale, row, count);
    use(row, norm_back(norm, mean, along, normed, through), own * normed);
  });
}

// Rows of tokens, `width` values each: to = scale * norm(from) + bias, which may be null; and back,
// to what is not the bias.
template <class Memory, class Workers, class T = typename Memory::T>
SCANRNN_HD void norm_row(const Workers& workers, const T* from, const T* scale, const T* bias,
                         T* to, Index width) {
  using V = typename Memory::V;
  const auto norm = moments<typename Workers::W>(workers, from, width);
  workers.rows(width, [&](Index row) {
    const V added = bias ? Memory::read(bias, row, width) : V(0);
    const V normed = norm(Memory::read(from, row, width));
    Memory::write(to, row, width, fma(Memory::read(scale, row, width), normed, added));
  });
}
template <class Memory, class Workers, class T = typename Memory::T>
SCANRNN_HD void norm_row_vjp(const Workers& workers, const T* from, const T* scale, const T* d,
                             T* dfrom, T* dscale, Index width) {
  using V = typename Memory::V;
  norm_vjp<Memory, Memory, Memory>(workers, from, scale, d, width,
                                   [&](Index row, const V& back, const V& of_scale) {
                                     Memory::write(dfrom, row, width, back);
                                     Memory::write(dscale, row, width, of_scale);
                                   });
}

}  // namespace scanrnn
