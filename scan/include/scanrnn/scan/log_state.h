// SPDX-License-Identifier: Apache-2.0
// The operator of states that leave the range of every float: numbers with an exponent of their
// own. Steps are given by logarithms, and what is asked of a state is its logarithm; in between
// nothing is one, so a step costs two exponentials and rounds as a linear one does.
#pragma once

#include <type_traits>

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

// The exponent of zero, or near it: below that of all numbers.
inline constexpr double kNoExponent = -1e37;
// That of an infinity, or near it: above that of all numbers.
inline constexpr double kEveryExponent = 1e35;

// A whole number as a sum, of which lo is what hi has no digits for: logarithms add up without
// drift, however large they become. Few sums may be made of others before they are settled.
template <class V>
struct LongExponent {
  V hi, lo;
};
// A double has digits enough by itself.
template <class V>
inline constexpr bool kLongExponents = kLargestExponent<V> < 100;
template <class V>
using Exponent = std::conditional_t<kLongExponents<V>, LongExponent<V>, V>;

template <class V>
SCANRNN_HD LongExponent<V> operator+(const LongExponent<V>& x, V y) {
  const V sum = x.hi + y, of_y = sum - x.hi;
  return {sum, x.lo + ((x.hi - (sum - of_y)) + (y - of_y))};
}
template <class V>
SCANRNN_HD LongExponent<V> operator+(const LongExponent<V>& x, const LongExponent<V>& y) {
  const LongExponent<V> sum = x + y.hi;
  return {sum.hi, sum.lo + y.lo};
}
template <class V>
SCANRNN_HD LongExponent<V> settled(const LongExponent<V>& x) {
  const V hi = x.hi + x.lo;
  return {hi, x.lo - (hi - x.hi)};
}
template <class V>
SCANRNN_HD V settled(const V& x) {
  return x;
}
template <class V>
SCANRNN_HD LongExponent<V> whole(const LongExponent<V>& x) {
  return x;
}
template <class V>
SCANRNN_HD Exponent<V> whole(const V& x) {
  if constexpr (kLongExponents<V>) {
    return {x, V(0)};
  } else {
    return x;
  }
}
template <class V>
SCANRNN_HD V apart(const LongExponent<V>& x, const LongExponent<V>& y) {
  return (x.hi - y.hi) + (x.lo - y.lo);
}
template <class V>
SCANRNN_HD V apart(const V& x, const V& y) {
  return x - y;
}
template <class M, class V>
SCANRNN_HD LongExponent<V> choose(const M& condition, const LongExponent<V>& yes,
                                  const LongExponent<V>& no) {
  return {select(condition, yes.hi, no.hi), select(condition, yes.lo, no.lo)};
}
template <class M, class V>
SCANRNN_HD V choose(const M& condition, const V& yes, const V& no) {
  return select(condition, yes, no);
}
// x + n for a small n, or that of zero.
template <class M, class V>
SCANRNN_HD LongExponent<V> moved(const LongExponent<V>& x, V n, const M& zero) {
  return {select(zero, V(kNoExponent), x.hi), x.lo + n};
}
template <class M, class V>
SCANRNN_HD V moved(const V& x, V n, const M& zero) {
  return select(zero, V(kNoExponent), x + n);
}

// The map x -> a 2^ea x + b 2^eb. z = 1 - a where ea is 0 and a is close to 1, elsewhere 1. The
// exponents of a step are a V each, those of a composition are sums.
template <class V, class Exponents>
struct ScaledAffine {
  V a, z, b;
  Exponents ea, eb;
};
// (m + c) 2^e, c what rounding took from m.
template <class V>
struct ScaledState {
  V m, c;
  Exponent<V> e;
};

template <class V, class Exponents>
struct Scaled {
  V m;
  Exponents e;
};

// The power of two by which 1 <= |x| < 2 is reached; of an infinity or a NaN the largest.
template <class V>
SCANRNN_HD V shift_of(V x) {
  return min(exponent_of(x), V(kLargestExponent<V> < 100 ? 126 : 1022));
}
template <class V>
SCANRNN_HD Scaled<V, Exponent<V>> normalised(V x, const Exponent<V>& e) {
  const V n = shift_of(x);
  return {x * power_of_two(-n), moved(e, n, is_zero(x))};
}

constexpr double kLn2 = 0.693147180559945309417, kLog2E = 1.442695040888963407360;
// Both in two parts, the first one of V.
template <class V>
inline constexpr double kLn2High = kLargestExponent<V> < 100 ? double(float(kLn2)) : kLn2;
template <class V>
inline constexpr double kLn2Low =
    kLargestExponent<V> < 100 ? kLn2 - double(float(kLn2)) : 2.319046813846299558e-17;
template <class V>
inline constexpr double kLog2EHigh = kLargestExponent<V> < 100 ? double(float(kLog2E)) : kLog2E;
template <class V>
inline constexpr double kLog2ELow =
    kLargestExponent<V> < 100 ? kLog2E - double(float(kLog2E)) : 2.035527374093103311e-17;

// What makes 1e30 and more infinite.
template <class V>
inline constexpr double kBeyond = kLargestExponent<V> < 100 ? 1e30 : 1e300;

// 2^x for |x| up to 100.
template <class V>
SCANRNN_HD V fast_exp2(V x) {
  return fast_exp(x * V(kLn2));
}
#if defined(__CUDA_ARCH__)
SCANRNN_HD float fast_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
#endif

// e^x: m is in [0.7, 1.42], or 0 below x = -1e30, infinite above 1e30, or a NaN. Where x has more
// digits before the point than V has behind it for the exponent, m makes up for what that lacks;
// beyond 7e8 no more than a unit of x is lost.
template <class V>
SCANRNN_HD Scaled<V, V> scaled_exp(V x) {
  const auto finite = less(abs(x), V(1e30));
  const V bounded = select(finite, x, V(0));
  const V n = round(bounded * V(kLog2EHigh<V>));
  const V left = fma(bounded, V(kLog2ELow<V>), fma(bounded, V(kLog2EHigh<V>), -n));
  const V power = fast_exp2(max(min(left, V(100)), V(-100)));
  return {select(finite, power, max(x * V(kBeyond<V>), V(0))),
          select(less(V(-1e30), x), select(finite, n, V(kEveryExponent)), V(kNoExponent))};
}

// A step that is given by logarithms.
template <class V>
SCANRNN_HD ScaledAffine<V, V> scaled_lift(const LogAffine<V>& f) {
  const Scaled<V, V> a = scaled_exp(f.log_a), b = scaled_exp(f.log_b);
  const V z = select(less(abs(f.log_a), V(0.34)), one_minus_exp(f.log_a, a.m), V(1));
  return {a.m, z, f.sign_b * b.m, a.e, b.e};
}
template <class V>
SCANRNN_HD ScaledState<V> scaled_state(V log_h, V sign) {
  const Scaled<V, V> h = scaled_exp(log_h);
  const auto out = normalised<V>(sign * h.m, whole(h.e));
  return {out.m, V(0), out.e};
}
// x ln 2 + y.
template <class V>
SCANRNN_HD V add_ln2s(const V& x, V y) {
  return fma(x, V(kLn2High<V>), fma(x, V(kLn2Low<V>), y));
}
template <class V>
SCANRNN_HD V add_ln2s(const LongExponent<V>& x, V y) {
  const LongExponent<V> sum = settled(x);
  return add_ln2s(sum.hi, fma(sum.lo, V(kLn2High<V>), y));
}
template <class V>
SCANRNN_HD V log_of(const ScaledState<V>& s) {
  return add_ln2s(s.e, log(abs(s.m + s.c)));
}
template <class V>
SCANRNN_HD V sign_of(const ScaledState<V>& s) {
  return select(less(s.m, V(0)), V(-1), V(1));
}

// What brings two numbers to the larger of their exponents.
template <class V>
struct Scales {
  V x, y;
  Exponent<V> e;
};
template <class V>
SCANRNN_HD Scales<V> to_larger(const Exponent<V>& x, const Exponent<V>& y) {
  const V gap = apart(x, y), scale = power_of_two(-abs(gap));
  const auto y_larger = less(gap, V(0));
  return {select(y_larger, scale, V(1)), select(y_larger, V(1), scale), choose(y_larger, y, x)};
}

// A decay of zero forgets, as in ResetOp.
template <class V>
struct LogStateOp {
  using Step = ScaledAffine<V, V>;
  using Local = ScaledAffine<V, Exponent<V>>;
  using Element = Local;
  using State = ScaledState<V>;

  SCANRNN_HD static Local local_identity() {
    return {V(1), V(0), V(0), whole(V(0)), whole(V(kNoExponent))};
  }
  SCANRNN_HD static Element identity() { return local_identity(); }
  template <class Exponents>
  SCANRNN_HD static Local then(const Local& f, const ScaledAffine<V, Exponents>& g) {
    // Both b at the larger exponent; the part that is through's own is that of g.a.
    const Scales<V> to = to_larger<V>(f.eb + g.ea, whole(g.eb));
    const auto b = normalised<V>(fma(g.a, f.b * to.x, g.b * to.y), to.e);
    const V z = fma(g.a, f.z, g.z);
    const V kept = select(is_small(f.z), select(is_small(g.z), z, V(1)), V(1));
    const auto keeps = is_small(kept);
    const auto a = normalised<V>(g.a * f.a, f.ea + g.ea);
    // Nothing goes through a zero, whatever a is on its other side, and however large the state.
    const auto forgets = is_zero(g.a), forgot = is_zero(f.a);
    const V through = select(keeps, V(1) - kept, a.m);
    const Exponent<V> none = whole(V(kNoExponent)), own = choose(keeps, whole(V(0)), a.e);
    return {select(forgets, g.a, select(forgot, f.a, through)), select(keeps, kept, V(1)),
            select(forgets, g.b, b.m), choose(forgets, none, choose(forgot, none, own)),
            choose(forgets, whole(g.eb), b.e)};
  }
  SCANRNN_HD static Local join(const Local& f, const Local& g) {
    const Local both = then(f, g);
    return {both.a, both.z, both.b, settled(both.ea), settled(both.eb)};
  }
  SCANRNN_HD static Element promote(const Local& f) { return f; }
  SCANRNN_HD static Element combine(const Element& f, const Element& g) { return join(f, g); }
  template <int kCount, class Get>
  SCANRNN_HD static Element combine_all(const Get& get) {
    return as_tree<kCount>([](const Element& f, const Element& g) { return combine(f, g); }, get);
  }
  SCANRNN_HD static Element linear(const Element& f) { return f; }
  template <class Exponents>
  SCANRNN_HD static State apply(const ScaledAffine<V, Exponents>& f, const State& s) {
    const State after = advance(f, s);
    return {after.m, after.c, settled(after.e)};
  }
  SCANRNN_HD static State apply_step(const Step& f, const State& s) { return apply(f, s); }
  template <class Exponents>
  SCANRNN_HD static State advance(const ScaledAffine<V, Exponents>& f, const State& s) {
    const Scales<V> to = to_larger<V>(s.e + f.ea, whole(f.eb));
    const Affine<V> map{f.a, f.z, f.b * to.y};
    const Carried<V> after = AnyResetOp<V>::apply_step(map, {s.m * to.x, s.c * to.x});
    const auto out = normalised<V>(after.h, to.e);
    return {out.m, after.c * power_of_two(-shift_of(after.h)), out.e};
  }
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
