// SPDX-License-Identifier: Apache-2.0
// A scan operator that is exact and does not commute: affine maps over the integers mod 2^32 or
// 2^64, for every engine, on the host and on a device.
#pragma once

#include <cstdint>

#include "scanrnn/scan/op.h"

namespace scanrnn::test {

// An integer that wraps around, in the vocabulary of scan/hd.h.
template <class Word>
struct Integer {
  Word value;

  Integer() = default;
  template <class Number>
  SCANRNN_HD constexpr explicit Integer(Number number)
      : value(static_cast<Word>(static_cast<std::int64_t>(number))) {}
  SCANRNN_HD bool operator==(const Integer& other) const { return value == other.value; }
  SCANRNN_HD bool operator!=(const Integer& other) const { return value != other.value; }
};
// Two of them as one value: a row that is a pair of units.
template <class Word>
struct IntegerPair {
  Integer<Word> x, y;

  IntegerPair() = default;
  SCANRNN_HD constexpr IntegerPair(Integer<Word> first, Integer<Word> second)
      : x(first), y(second) {}
  SCANRNN_HD constexpr explicit IntegerPair(double both) : x(both), y(both) {}
  SCANRNN_HD bool operator==(const IntegerPair& b) const { return x == b.x && y == b.y; }
  SCANRNN_HD bool operator!=(const IntegerPair& b) const { return !(*this == b); }
};

// `value`, or nonsense where `steps` are more than `bound`.
template <class Word>
SCANRNN_HD Integer<Word> within(int bound, const Integer<Word>& steps, const Integer<Word>& value) {
  return steps.value > static_cast<Word>(bound) ? Integer<Word>(0xDEAD) : value;
}

#define SCANRNN_INTEGER_OPERATOR(op)                                                     \
  template <class Word>                                                                  \
  SCANRNN_HD Integer<Word> operator op(const Integer<Word>& a, const Integer<Word>& b) { \
    return Integer<Word>(a.value op b.value);                                            \
  }                                                                                      \
  template <class Word>                                                                  \
  SCANRNN_HD IntegerPair<Word> operator op(const IntegerPair<Word>& a,                   \
                                           const IntegerPair<Word>& b) {                 \
    return {a.x op b.x, a.y op b.y};                                                     \
  }
SCANRNN_INTEGER_OPERATOR(+)
SCANRNN_INTEGER_OPERATOR(-)
SCANRNN_INTEGER_OPERATOR(*)
#undef SCANRNN_INTEGER_OPERATOR

// Both ways to apply a map, by a and by z = 1 - a, are exact: it does not matter that an integer is
// never small.
#define SCANRNN_INTEGER_VOCABULARY(V)                    \
  template <class Word>                                  \
  SCANRNN_HD V operator-(const V& a) {                   \
    return V(0) - a;                                     \
  }                                                      \
  template <class Word>                                  \
  SCANRNN_HD V fma(const V& a, const V& b, const V& c) { \
    return a * b + c;                                    \
  }                                                      \
  template <class Word>                                  \
  SCANRNN_HD V abs(const V& a) {                         \
    return a;                                            \
  }                                                      \
  template <class Word>                                  \
  SCANRNN_HD bool less(const V&, const V&) {             \
    return false;                                        \
  }
SCANRNN_INTEGER_VOCABULARY(Integer<Word>)
SCANRNN_INTEGER_VOCABULARY(IntegerPair<Word>)
#undef SCANRNN_INTEGER_VOCABULARY

// The operator's types are four, so that an engine cannot mix up what the contract keeps apart, and
// each is as large as that of the library's operators, since kernels cut their tiles by sizes.
template <class V>
struct IntegerStep {
  V a, z, b;  // the device kernel leaves z out

  SCANRNN_HD operator scan::Affine<V>() const { return {a, V(1) - a, b}; }
};
// Counts its steps in place of z: then() answers with nonsense when more than kLocalSteps are
// appended.
template <class V>
struct IntegerLocal {
  V a, steps, b;

  SCANRNN_HD operator scan::Affine<V>() const { return {a, V(1) - a, b}; }
};
// What crosses threads holds z, and nonsense comes out where z is not that of a.
template <class V>
struct IntegerElement {
  V a, z, b;
};

template <class V>
struct IntegerOp {
  using Step = IntegerStep<V>;
  using Local = IntegerLocal<V>;
  using Element = IntegerElement<V>;
  using State = scan::Carried<V>;

  SCANRNN_HD static Local local_identity() { return {V(1), V(0), V(0)}; }
  SCANRNN_HD static Element identity() { return promote(local_identity()); }
  SCANRNN_HD static Local then(const Local& f, const Step& g) {
    for (int steps = 0; steps < scan::kLocalSteps; ++steps) {
      if (f.steps == V(steps)) return {g.a * f.a, V(steps + 1), g.a * f.b + g.b};
    }
    return {V(0xDEAD), f.steps, V(0xBEEF)};
  }
  SCANRNN_HD static Local alone(const Step& f) { return {f.a, V(1), f.b}; }
  SCANRNN_HD static Local append(const Local& f, const Local& g) {
    const V steps = f.steps + g.steps;
    return {within(scan::kLocalSteps, steps, g.a * f.a), steps, g.a * f.b + g.b};
  }
  SCANRNN_HD static Local join(const Local& f, const Local& g) {
    return {g.a * f.a, V(scan::kLocalSteps), g.a * f.b + g.b};
  }
  SCANRNN_HD static Element promote(const Local& f) { return {f.a, V(1) - f.a, f.b}; }
  SCANRNN_HD static Element combine(const Element& f, const Element& g) {
    if (f.z != V(1) - f.a || g.z != V(1) - g.a) return {V(0xDEAD), V(0), V(0xBEEF)};
    return {g.a * f.a, V(1) - g.a * f.a, g.a * f.b + g.b};
  }
  template <int kCount, class Get>
  SCANRNN_HD static Element combine_all(const Get& get) {
    auto all = identity();
    for (int i = 0; i < kCount; ++i) all = combine(all, get(i));
    return all;
  }
  SCANRNN_HD static scan::Affine<V> linear(const Element& f) { return {f.a, f.z, f.b}; }
  SCANRNN_HD static State apply(const scan::Affine<V>& f, const State& s) {
    return {f.a * s.h + f.b, V(0)};
  }
  SCANRNN_HD static State apply(const Element& f, const State& s) { return apply(linear(f), s); }
  SCANRNN_HD static State apply_step(const Step& f, const State& s) { return apply(f, s); }
  SCANRNN_HD static State advance(const Step& f, const State& s) { return apply_step(f, s); }
};

// A pair's composition or state as those of its two units, and back.
template <class Word>
SCANRNN_HD IntegerLocal<Integer<Word>> part(const IntegerLocal<IntegerPair<Word>>& f, int i) {
  return i == 0 ? IntegerLocal<Integer<Word>>{f.a.x, f.steps.x, f.b.x}
                : IntegerLocal<Integer<Word>>{f.a.y, f.steps.y, f.b.y};
}
template <class Word>
SCANRNN_HD scan::Carried<Integer<Word>> part(const scan::Carried<IntegerPair<Word>>& s, int i) {
  return scan::carried(i == 0 ? s.h.x : s.h.y);
}
template <class Word>
SCANRNN_HD void join_parts(const IntegerLocal<Integer<Word>>* f,
                           IntegerLocal<IntegerPair<Word>>& whole) {
  whole = {{f[0].a, f[1].a}, {f[0].steps, f[1].steps}, {f[0].b, f[1].b}};
}
template <class Word>
SCANRNN_HD void join_parts(const scan::Carried<Integer<Word>>* s,
                           scan::Carried<IntegerPair<Word>>& whole) {
  whole = {{s[0].h, s[1].h}, {s[0].c, s[1].c}};
}

}  // namespace scanrnn::test
