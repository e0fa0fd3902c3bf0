// SPDX-License-Identifier: Apache-2.0
// The scan operators of affine maps (op.h) that are given, or cross threads, by logarithms.
#pragma once

#include "scanrnn/scan/linear_op.h"

namespace scanrnn::scan {

// log|x + y| for x = sx exp(lx), y = sy exp(ly), and its sign. log 0 is -infinity throughout.
template <class V>
SCANRNN_HD void signed_logaddexp(V lx, V sx, V ly, V sy, V& log_sum, V& sign) {
  const auto y_larger = less(lx, ly);
  const V hi = select(y_larger, ly, lx);
  const V gap = select(y_larger, lx - ly, ly - lx);
  const V sum = hi + fast_log(V(1) + sx * sy * fast_exp(gap));
  // Two infinities have no gap: -inf stays -inf. The product also lets a NaN in ly through.
  const V unbounded = hi * abs(select(less(ly, lx), lx, ly));
  log_sum = select(less(abs(hi), V(std::numeric_limits<double>::infinity())), sum, unbounded);
  sign = select(y_larger, sy, sx);
}

template <class V>
SCANRNN_HD V log_of_zero() {
  return V(-std::numeric_limits<double>::infinity());
}
// 1 - e^x, given a = e^x. In float32 a series where the difference cancels: its first term left out
// is 2e-8 of it, and beyond 0.35 the difference has no more than three units of a's error.
template <class V>
SCANRNN_HD V one_minus_exp(const V& x, const V& a) {
  if constexpr (kLargestExponent<V> < 100) {
    V series = fma(x, V(1.0 / 5040), V(1.0 / 720));
    series = fma(x, series, V(1.0 / 120));
    series = fma(x, series, V(1.0 / 24));
    series = fma(x, series, V(1.0 / 6));
    series = fma(x, series, V(0.5));
    series = fma(x, series, V(1));
    return select(less(abs(x), V(0.35)), -(x * series), V(1) - a);
  } else {
    return -expm1(x);
  }
}
// A step that is given by logarithms: one exponential for each.
template <class V>
SCANRNN_HD Affine<V> lift(const LogAffine<V>& f) {
  const V a = fast_exp(f.log_a);
  return {a, one_minus_exp(f.log_a, a), f.sign_b * fast_exp(f.log_b)};
}

// A step whose decay is given by its logarithm, without signs, and a run of a few such steps: 1 - a
// is found for all of a run at once, from the sum of their logarithms.
template <class V>
struct LoggedAffine {
  V a, log_a, b;
};
template <class V>
SCANRNN_HD LoggedAffine<V> lift_logged(const V& log_a, const V& log_b) {
  return {fast_exp(log_a), log_a, fast_exp(log_b)};
}
// The operator of such steps; otherwise Base's.
template <class V, class Base>
struct LoggedOp : Base {
  using Step = LoggedAffine<V>;
  using Run = LoggedAffine<V>;
  using Base::advance;  // of a step that has been lifted

  SCANRNN_HD static Run no_steps() { return {V(1), V(0), V(0)}; }
  SCANRNN_HD static Run then(const Run& f, const Step& g) {
    return {g.a * f.a, f.log_a + g.log_a, fma(g.a, f.b, g.b)};
  }
  SCANRNN_HD static typename Base::Local whole(const Run& f) {
    return {f.a, one_minus_exp(f.log_a, f.a), f.b};
  }
  SCANRNN_HD static typename Base::State advance(const Step& f, const typename Base::State& s) {
    return {fma(f.a, s.h, f.b), V(0)};
  }
};

// The log-space operator: every decay that crosses a thread is a logarithm, so a product over any
// span keeps its exponent and, close to 1, all its digits.
template <class V, bool kCuts, bool kAny = false>
struct LogOp {
  using Linear = LinearOp<V, kCuts, kAny>;
  using Step = Affine<V>;
  using Local = Affine<V>;
  using Element = LogAffine<V>;
  using State = Carried<V>;
  using Uncut = typename Linear::Uncut;

  SCANRNN_HD static Local local_identity() { return Linear::local_identity(); }
  SCANRNN_HD static Local settle(const Local& f) { return Linear::settle(f); }
  SCANRNN_HD static Element identity() { return {V(0), log_of_zero<V>(), V(1)}; }
  SCANRNN_HD static Local then(const Local& f, const Step& g) { return Linear::then(f, g); }
  SCANRNN_HD static Local join(const Local& f, const Local& g) { return Linear::join(f, g); }
  SCANRNN_HD static Local alone(const Step& f) { return Linear::alone(f); }
  SCANRNN_HD static Local append(const Local& f, const Local& g) { return Linear::append(f, g); }
  SCANRNN_HD static Element promote(const Local& f) {
    return {select(less(f.z, V(0.5)), log1p(-f.z), log(f.a)), log(abs(f.b)),
            select(less(f.b, V(0)), V(-1), V(1))};
  }
  SCANRNN_HD static Element combine(const Element& f, const Element& g) {
    Element out;
    out.log_a = through(g.log_a, f.log_a);
    signed_logaddexp(through(g.log_a, f.log_b), f.sign_b, g.log_b, g.sign_b, out.log_b, out.sign_b);
    return out;
  }
  // get(0), then get(1) ... get(kCount - 1): what each adds to the last b, against the largest of
  // them, with one logarithm for all.
  template <int kCount, class Get>
  SCANRNN_HD static Element combine_all(const Get& get) {
    V adds[kCount], sign[kCount], log_a = V(0);
    V largest = log_of_zero<V>();
    for (int i = kCount - 1; i >= 0; --i) {
      const Element f = get(i);
      adds[i] = through(log_a, f.log_b);
      sign[i] = f.sign_b;
      log_a = through(log_a, f.log_a);
      largest = max(largest, adds[i]);
    }
    // Nothing is near an infinity: it, or a NaN, is what comes out.
    largest = select(less(abs(largest), V(std::numeric_limits<double>::infinity())), largest, V(0));
    V sum = V(0);
    for (int i = 0; i < kCount; ++i) sum = fma(sign[i], fast_exp(adds[i] - largest), sum);
    return {log_a, largest + log(abs(sum)), select(less(sum, V(0)), V(-1), V(1))};
  }
  SCANRNN_HD static Affine<V> linear(const Element& f) {
    Affine<V> out = lift(f);
    if constexpr (kCuts) {
      const auto forgets = is_log_of_zero(f.log_a);
      out.a = select(forgets, V(0), max(out.a, V(kSmallestNormal<V>)));
    }
    return out;
  }
  SCANRNN_HD static State apply(const Local& f, const State& s) { return Linear::apply(f, s); }
  SCANRNN_HD static State apply(const Element& f, const State& s) { return apply(linear(f), s); }
  SCANRNN_HD static State apply_step(const Step& f, const State& s) {
    return Linear::apply_step(f, s);
  }
  SCANRNN_HD static State advance(const Step& f, const State& s) { return Linear::advance(f, s); }

 private:
  SCANRNN_HD static auto is_log_of_zero(V log_a) { return less(log_a, V(-3e38)); }
  // The logarithm of a product with a decay; kAny: of 0 it is 0.
  SCANRNN_HD static V through(V log_a, V log_x) {
    V sum = log_a + log_x;
    if constexpr (kAny) sum = select(is_log_of_zero(log_x), log_x, sum);
    if constexpr (kCuts) sum = select(is_log_of_zero(log_a), log_a, sum);
    return sum;
  }
};
template <class V>
struct LogAffineOp : LogOp<V, false> {};
template <class V>
struct LogResetOp : LogOp<V, true> {};
template <class V>
struct AnyLogAffineOp : LogOp<V, false, true> {};
template <class V>
struct AnyLogResetOp : LogOp<V, true, true> {};
template <class V>
struct LoggedAffineOp : LoggedOp<V, LinearOp<V, false, true>> {};
template <class V>
struct LoggedLogAffineOp : LoggedOp<V, AnyLogAffineOp<V>> {};

}  // namespace scanrnn::scan
