// SPDX-License-Identifier: Apache-2.0
// The scan operators (op.h) of decays and states of any size, held linearly.
#pragma once

#include "scanrnn/scan/linear_op.h"

namespace scanrnn::scan {

// A run of a few steps. kPlain: z of a step is 1 - a, and so that of two steps is what their
// product leaves of 1, by one rounding. They are appended by twos: `first` may wait for its other.
template <class V, bool kPlain>
struct AnyRun {
  Affine<V> all;
};
template <class V>
struct AnyRun<V, true> {
  Affine<V> all, first;
  bool waits;
};

template <class V, bool kPlain>
struct AnyRunsOp : LinearOp<V, false, true> {
  using Base = LinearOp<V, false, true>;
  using Run = AnyRun<V, kPlain>;
  using Base::then;

  SCANRNN_HD static Run no_steps() { return {Base::local_identity()}; }
  SCANRNN_HD static Run then(const Run& f, const typename Base::Step& g) {
    if constexpr (kPlain) {
      if (!f.waits) return {f.all, g, true};
      // a and b go on step by step: a product of decays alone may leave every range.
      const Affine<V>& all = f.all;
      const V z = fma(g.a * f.first.a, all.z, fma(-g.a, f.first.a, V(1)));
      return {{g.a * (f.first.a * all.a), z, fma(g.a, fma(f.first.a, all.b, f.first.b), g.b)}};
    } else {
      return {scan::then(f.all, g)};
    }
  }
  // Its z is a plain sum, unless that is not what a leaves of 1: then a decay was so small that
  // what it lost of the sum grew again.
  SCANRNN_HD static typename Base::Local whole(const Run& f) {
    Affine<V> all = f.all;
    if constexpr (kPlain) {
      if (f.waits) all = scan::then(all, f.first);
    }
    constexpr double kRounded = kLargestExponent<V> < 100 ? 0x1p-18 : 0x1p-47;  // by a few steps
    const V left = V(1) - all.a;
    return {all.a, select(less(abs(all.z - left), V(kRounded)), all.z, left), all.b};
  }
};
template <class V>
struct AnyAffineOp : AnyRunsOp<V, false> {
  using Uncut = AnyAffineOp;
};
template <class V>
struct AnyPlainOp : AnyRunsOp<V, true> {
  using Uncut = AnyPlainOp;
};
template <class V>
struct Complex;
template <class V>
struct AnyAffineOp<Complex<V>> : LinearOp<Complex<V>, false, true> {};
template <class V>
struct AnyPlainOp<Complex<V>> : LinearOp<Complex<V>, false, true> {};
template <class V>
struct AnyResetOp : LinearOp<V, true, true> {
  using Uncut = AnyAffineOp<V>;
};

}  // namespace scanrnn::scan
