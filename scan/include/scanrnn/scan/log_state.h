// SPDX-License-Identifier: Apache-2.0
// The operator of states that leave the range of every float: numbers with an exponent of their
// own. Steps are given by logarithms, and what is asked of a state is its logarithm; in between
// nothing is one, so a step costs two exponentials and rounds as a linear one does.
#pragma once

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

// The map x -> a 2^ea x + b 2^eb, the exponents whole numbers. z = 1 - a where ea is 0 and a is
// close to 1, elsewhere 1. Zero has the exponent kNoExponent, or one near it.
template <class V>
struct ScaledAffine {
  V a, z, b, ea, eb;
};
// (m + c) 2^e, c what rounding took from m.
template <class V>
struct ScaledState {
  V m, c, e;
};

inline constexpr double kNoExponent = -1e9;

template <class V>
struct Scaled {
  V m, e;
};

// The power of two by which 1 <= |x| < 2 is reached; of an infinity or a NaN the largest.
template <class V>
SCANRNN_HD V shift_of(V x) {
  return min(exponent_of(x), V(kLargestExponent<V> < 100 ? 126 : 1022));
}
template <class V>
SCANRNN_HD Scaled<V> normalised(V x, V e) {
  const V n = shift_of(x);
  return {x * power_of_two(-n), select(is_zero(x), V(kNoExponent), e + n)};
}

constexpr double kLn2 = 0.693147180559945309417;
// ln 2 in two parts, the first one of V.
template <class V>
inline constexpr double kLn2High = kLargestExponent<V> < 100 ? double(float(kLn2)) : kLn2;
template <class V>
inline constexpr double kLn2Low =
    kLargestExponent<V> < 100 ? kLn2 - double(float(kLn2)) : 2.319046813846299558e-17;

// e^x, for any x but a NaN, which stays one: m is in [0.7, 1.42], or 0 for -infinity.
template <class V>
SCANRNN_HD Scaled<V> scaled_exp(V x) {
  const auto finite = less(abs(x), V(1e30));
  const V bounded = select(finite, x, x - x);  // 0, or a NaN that is put right below
  const V n = round(bounded * V(1.44269504088896340736));
  const V left = fma(n, V(-kLn2Low<V>), fma(n, V(-kLn2High<V>), bounded));
  const V m = select(less(x, V(-1e30)), V(0), select(less(V(1e30), x), x, fast_exp(left)));
  return {m, select(finite, n, select(less(x, V(-1e30)), V(kNoExponent), V(0)))};
}

// A step that is given by logarithms.
template <class V>
SCANRNN_HD ScaledAffine<V> scaled_lift(const LogAffine<V>& f) {
  const Scaled<V> a = scaled_exp(f.log_a), b = scaled_exp(f.log_b);
  const V z = select(less(abs(f.log_a), V(0.34)), one_minus_exp(f.log_a, a.m), V(1));
  const V ea = select(is_zero(a.m), V(0), a.e);
  return {a.m, z, f.sign_b * b.m, ea, b.e};
}
template <class V>
SCANRNN_HD ScaledState<V> scaled_state(V log_h, V sign) {
  const Scaled<V> h = scaled_exp(log_h);
  return {sign * h.m, V(0), h.e};
}
template <class V>
SCANRNN_HD V log_of(const ScaledState<V>& s) {
  return fma(s.e, V(kLn2High<V>), fma(s.e, V(kLn2Low<V>), log(abs(s.m + s.c))));
}
template <class V>
SCANRNN_HD V sign_of(const ScaledState<V>& s) {
  return select(less(s.m, V(0)), V(-1), V(1));
}

// A decay of zero forgets, as in ResetOp.
template <class V>
struct LogStateOp {
  using Step = ScaledAffine<V>;
  using Local = ScaledAffine<V>;
  using Element = ScaledAffine<V>;
  using State = ScaledState<V>;

  SCANRNN_HD static Local local_identity() { return {V(1), V(0), V(0), V(0), V(kNoExponent)}; }
  SCANRNN_HD static Element identity() { return local_identity(); }
  SCANRNN_HD static Local then(const Local& f, const Step& g) {
    // Both b at the larger exponent; the part that is through's own is that of g.a.
    const V through = g.ea + f.eb, e = max(through, g.eb);
    const V sum = fma(g.a, f.b * power_of_two(through - e), g.b * power_of_two(g.eb - e));
    const Scaled<V> b = normalised(sum, e);
    const V z = fma(g.a, f.z, g.z);
    const V kept = select(is_small(f.z), select(is_small(g.z), z, V(1)), V(1));
    const auto keeps = is_small(kept);
    const Scaled<V> a = normalised(g.a * f.a, f.ea + g.ea);
    const auto forgets = is_zero(g.a);
    return {select(keeps, V(1) - kept, a.m), select(keeps, kept, V(1)), select(forgets, g.b, b.m),
            select(keeps, V(0), select(is_zero(a.m), V(0), a.e)), select(forgets, g.eb, b.e)};
  }
  SCANRNN_HD static Local join(const Local& f, const Local& g) { return then(f, g); }
  SCANRNN_HD static Element promote(const Local& f) { return f; }
  SCANRNN_HD static Element combine(const Element& f, const Element& g) { return then(f, g); }
  template <int kCount, class Get>
  SCANRNN_HD static Element combine_all(const Get& get, int first = 0) {
    if constexpr (kCount == 1) {
      return get(first);
    } else {
      return combine(combine_all<kCount / 2>(get, first),
                     combine_all<kCount - kCount / 2>(get, first + kCount / 2));
    }
  }
  SCANRNN_HD static Element linear(const Element& f) { return f; }
  SCANRNN_HD static State apply(const Element& f, const State& s) {
    const V through = select(is_zero(f.a), V(kNoExponent), s.e + f.ea), e = max(through, f.eb);
    const V scale = power_of_two(through - e);
    const Affine<V> map{f.a, f.z, f.b * power_of_two(f.eb - e)};
    const Carried<V> after = ResetOp<V>::apply(map, {s.m * scale, s.c * scale});
    const V n = shift_of(after.h), back = power_of_two(-n);
    const auto nothing = is_zero(after.h);
    return {after.h * back, select(nothing, V(0), after.c * back),
            select(nothing, V(kNoExponent), e + n)};
  }
  SCANRNN_HD static State advance(const Step& f, const State& s) { return apply(f, s); }
};

// How a state's logarithm moves with those of what it is made of: w with that of the state before,
// v with that of the input, w + v = 1. Neither reads the state itself, whose logarithm has lost
// digits to its size; a zero has no slope.
template <class V>
struct Shares {
  V w, v;
};
// Shares of the terms in h_t = sign exp(log_kept) + sign_b exp(log_b), the decayed state first.
template <class V>
SCANRNN_HD Shares<V> shares(V log_kept, V sign, V log_b, V sign_b) {
  const auto b_larger = less(log_kept, log_b);
  const auto nothing = less(select(b_larger, log_b, log_kept), V(-3e38));
  // What the smaller one is of the larger one; without either their gap is none.
  const V ratio = sign * sign_b * fast_exp(-abs(log_kept - log_b));
  const V total = V(1) + ratio;
  const V inverse = select(is_zero(total), V(0), V(1) / total);
  const V large = select(nothing, V(0), inverse), small = select(nothing, V(0), ratio * inverse);
  return {select(b_larger, small, large), select(b_larger, large, small)};
}

}  // namespace scanrnn::scan
