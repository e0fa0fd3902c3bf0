// SPDX-License-Identifier: Apache-2.0
// The scan operators of affine maps x -> a x + b (op.h), held linearly, and what they act on.
#pragma once

#include <limits>

#include "scanrnn/scan/hd.h"

namespace scanrnn::scan {

using Index = std::int64_t;

// In place of a step: any of a line's but its last.
inline constexpr Index kInside = std::numeric_limits<Index>::min();

struct Range {
  Index begin, end;
};

// a / b of what is not negative. By 64 bits a division takes a GPU some hundred instructions.
SCANRNN_HD Index quotient(Index a, Index b) {
  if (a < b || b == 1) return b == 1 ? a : 0;
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

// Lines of adjacent rows, each row walked along its steps.
struct Extent {
  Index lines, rows, steps;
};

// One input of a line: its rows are adjacent, or `row` apart, its steps `step` apart; `data` may be
// null. And one output.
template <class T>
struct Stream {
  const T* data;
  Index step, steps;
  Index row = 1;
};
template <class T>
struct OutStream {
  T* data;
  Index step, steps;
  Index row = 1;
};

// How many steps a thread may append before it must join or promote: short enough that rounding
// stays at 16 units and that the composition is a sum of few terms.
inline constexpr int kLocalSteps = 16;

// x -> a x + b. z = 1 - a is held beside a, because an a close to 1 has no bits left for it:
// over long spans of nearly-kept state the result depends on z alone.
template <class V>
struct Affine {
  V a, z, b;
};

// The same map by magnitudes' logarithms: a = exp(log_a) >= 0, b = sign_b exp(log_b), sign_b = +-1.
template <class V>
struct LogAffine {
  V log_a, log_b, sign_b;
};

// A state and what rounding took from it: the exact value is close to h + c. `h` is the output.
template <class V>
struct Carried {
  V h, c;
};

template <class V>
SCANRNN_HD Carried<V> carried(V h) {
  return {h, V(0)};
}
// x -> b, whatever came before.
template <class V>
SCANRNN_HD Affine<V> constant(V b) {
  return {V(0), V(1), b};
}

template <class V>
SCANRNN_HD Affine<V> then(const Affine<V>& f, const Affine<V>& g) {
  return {g.a * f.a, fma(g.a, f.z, g.z), fma(g.a, f.b, g.b)};
}

// h + (b - z h) with compensation while most of the state is kept; a h + b when most is forgotten,
// where the difference would cancel and there is no history for rounding to pile up in. kAny:
// states may be infinite, which have no digits to keep: an infinity less another one would be none,
// and so would be an infinite decay times nothing that rounding took.
template <bool kAny = false, class V>
SCANRNN_HD Carried<V> apply(const Affine<V>& f, const Carried<V>& s) {
  const V b = fma(f.a, s.c, f.b);
  const V d = fma(-f.z, s.h, b);
  const V kept = s.h + d;
  const auto keeps = is_small(kAny ? fma(s.h, V(0), f.z) : f.z);
  const auto remains = is_small(kAny ? fma(kept, V(0), f.z) : f.z);
  return {select(keeps, kept, fma(f.a, s.h, kAny ? f.b : b)),
          select(remains, (s.h - kept) + d, V(0))};
}

// The map as it is: what rounding takes in a few steps is not worth keeping.
template <class V>
SCANRNN_HD Carried<V> advance(const Affine<V>& f, const Carried<V>& s) {
  return {fma(f.a, s.h, f.b), V(0)};
}

// get(first), then those behind it, kCount in all, put together as a tree: its latency is that of
// few compositions, and it rounds little.
template <int kCount, class Both, class Get>
SCANRNN_HD auto as_tree(const Both& both, const Get& get, int first = 0) {
  if constexpr (kCount == 1) {
    return get(first);
  } else {
    return both(as_tree<kCount / 2>(both, get, first),
                as_tree<kCount - kCount / 2>(both, get, first + kCount / 2));
  }
}

// The linear operator; kCuts: a zero forgets; kAny: decays and states may have any size. There a
// sum for z is taken where both maps keep most, and elsewhere what a leaves of 1: behind a decay
// beyond 1 a sum would cancel, and say of what was forgotten that it was kept.
template <class V, bool kCuts, bool kAny = false>
struct LinearOp {
  using Step = Affine<V>;
  using Local = Affine<V>;
  using Element = Affine<V>;
  using State = Carried<V>;
  using Uncut = LinearOp<V, false, kAny>;

  SCANRNN_HD static Local local_identity() { return {V(1), V(0), V(0)}; }
  SCANRNN_HD static Local settle(const Local& f) { return {above_zero(f.a), f.z, f.b}; }
  SCANRNN_HD static Element identity() { return local_identity(); }
  SCANRNN_HD static Local then(const Local& f, const Step& g) {
    if constexpr (kAny) {
      const V a = g.a * f.a;
      return cut(f, g, {a, both_keep(f, g, fma(g.a, f.z, g.z), V(1) - a), fma(g.a, f.b, g.b)});
    }
    return cut(f, g, scan::then(f, g));
  }
  // kAny: as then() makes it of no steps, so that a decay that is no number is one in b, too.
  SCANRNN_HD static Local alone(const Step& f) {
    return kAny ? Local{f.a, f.z, fma(f.a, V(0), f.b)} : f;
  }
  SCANRNN_HD static Local append(const Local& f, const Local& g) {
    Local both = then(f, g);
    if constexpr (kAny) both.b = select(is_zero(f.b), g.b, both.b);  // as in apply()
    return both;
  }
  SCANRNN_HD static Element promote(const Local& f) { return f; }
  SCANRNN_HD static Local join(const Local& f, const Local& g) {
    if constexpr (kAny) {
      const V product = g.a * f.a, sum = f.z + fma(-g.z, f.z, g.z);
      const V a = both_keep(f, g, V(1) - sum, product);
      return cut(f, g, {a, both_keep(f, g, sum, V(1) - product), through(g, f.b, g.b)});
    }
    const V z = through(g, f.z, g.z);
    const V a = select(is_small(z), V(1) - z, g.a * f.a);
    return cut(f, g, {a, z, through(g, f.b, g.b)});
  }
  SCANRNN_HD static Element combine(const Element& f, const Element& g) { return join(f, g); }
  template <int kCount, class Get>
  SCANRNN_HD static Element combine_all(const Get& get) {
    return as_tree<kCount>([](const Element& f, const Element& g) { return combine(f, g); }, get);
  }
  SCANRNN_HD static Affine<V> linear(const Element& f) { return f; }
  // A product of decays that is beyond every number leaves 0 as it is, as they do one by one.
  SCANRNN_HD static State apply(const Affine<V>& f, const State& s) {
    State after = apply_step(f, s);
    if constexpr (kAny) after.h = select(is_zero(s.h), f.b, after.h);
    return after;
  }
  SCANRNN_HD static State apply_step(const Step& f, const State& s) {
    return cut(f, scan::apply<kAny>(f, s));
  }
  SCANRNN_HD static State advance(const Step& f, const State& s) {
    return cut(f, scan::advance(f, s));
  }

 private:
  // An underflow stays above zero, which costs 1e-38 of what was to be forgotten.
  SCANRNN_HD static V above_zero(V a) { return a + V(kSmallestNormal<V>); }
  // g.a x + y, from z where most is kept: there a is rounded to a unit of 1, and where gates repeat
  // the same error adds up over a span.
  SCANRNN_HD static V through(const Element& g, V x, V y) {
    const auto keeps = is_small(kAny ? fma(x, V(0), g.z) : g.z);  // nothing of an infinity is
    const V all = select(keeps, x + fma(-g.z, x, y), fma(g.a, x, y));
    return kAny ? select(is_zero(x), y, all) : all;
  }
  SCANRNN_HD static V both_keep(const Local& f, const Local& g, const V& yes, const V& no) {
    return select(is_small(f.z), select(is_small(g.z), yes, no), no);
  }
  // What "first f, then g" is, given what it is of finite numbers.
  SCANRNN_HD static Local cut(const Local& f, const Local& g, const Local& composed) {
    if constexpr (kCuts) {
      const V a = select(is_zero(f.a), f.a, above_zero(composed.a));
      const auto forgets = is_zero(g.a);
      return {select(forgets, g.a, a), select(forgets, g.z, composed.z),
              select(forgets, g.b, composed.b)};
    }
    return composed;
  }
  SCANRNN_HD static State cut(const Affine<V>& f, const State& after) {
    if constexpr (kCuts) {
      const auto forgets = is_zero(f.a);
      return {select(forgets, f.b, after.h), select(forgets, V(0), after.c)};
    }
    return after;
  }
};
template <class V>
struct AffineOp : LinearOp<V, false> {};
template <class V>
struct ResetOp : LinearOp<V, true> {};

// For steps that do not compose: a Step is what apply(step, state) takes.
template <class V, class Step_>
struct StepwiseOp {
  using Step = Step_;
  struct Local {};
  using State = Carried<V>;
  using Uncut = StepwiseOp;

  SCANRNN_HD static Local local_identity() { return {}; }
  SCANRNN_HD static Local then(const Local&, const Step&) { return {}; }
  SCANRNN_HD static State apply_step(const Step& f, const State& s) {
    using scan::apply;  // or one of the step's own namespace
    return apply(f, s);
  }
  SCANRNN_HD static State advance(const Step& f, const State& s) { return apply_step(f, s); }
};

}  // namespace scanrnn::scan
