// SPDX-License-Identifier: Apache-2.0
// A SIMD vector as a value type: the vocabulary of scan/hd.h over Highway. Compiled once for each
// instruction set, in that set's own namespace; functions are found by argument-dependent lookup.
#pragma once

#ifndef HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_PCLMUL_AES  // no cipher is used, so a target need not have one
#endif
#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0  // its assertions would need Highway's library, not headers alone
#endif
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "platform.h"
#include "scanrnn/scan/op.h"

namespace scanrnn::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kRegisters = HWY_TARGET <= HWY_AVX3 ? 32 : 16;  // for vectors

template <class T>
struct Vec {
  using D = hn::ScalableTag<T>;
  using Raw = hn::Vec<D>;
  static constexpr std::int64_t kLanes = hn::MaxLanes(D());
  // Nothing changes it in a constant. GCC keeps a constant that is a structure of vectors in
  // memory, not in registers, unless it has a part that may change.
  mutable Raw raw;

  Vec() = default;
  SCANRNN_INLINE Vec(Raw r) : raw(r) {}
  SCANRNN_INLINE explicit Vec(double x) : raw(hn::Set(D(), static_cast<T>(x))) {}

  // Whole vectors, aligned as their elements are.
  SCANRNN_INLINE static Vec load(const T* from) { return hn::LoadU(D(), from); }
  SCANRNN_INLINE static Vec all(T x) { return hn::Set(D(), x); }
  SCANRNN_INLINE void store(T* to) const { hn::StoreU(raw, D(), to); }

  friend SCANRNN_INLINE Vec operator+(Vec a, Vec b) { return hn::Add(a.raw, b.raw); }
  friend SCANRNN_INLINE Vec operator-(Vec a, Vec b) { return hn::Sub(a.raw, b.raw); }
  friend SCANRNN_INLINE Vec operator*(Vec a, Vec b) { return hn::Mul(a.raw, b.raw); }
  friend SCANRNN_INLINE Vec operator/(Vec a, Vec b) { return hn::Div(a.raw, b.raw); }
  friend SCANRNN_INLINE Vec operator-(Vec a) { return hn::Neg(a.raw); }
};

template <class T>
using Mask = hn::Mask<hn::ScalableTag<T>>;

template <class T>
struct MaskOf {
  Mask<T> raw;
};

template <class T>
SCANRNN_INLINE MaskOf<T> less(Vec<T> a, Vec<T> b) {
  return {hn::Lt(a.raw, b.raw)};
}
template <class T>
SCANRNN_INLINE MaskOf<T> is_zero(Vec<T> a) {
  return {hn::Eq(a.raw, hn::Zero(hn::ScalableTag<T>()))};
}
template <class T>
SCANRNN_INLINE bool any(MaskOf<T> mask) {
  return !hn::AllFalse(hn::ScalableTag<T>(), mask.raw);
}
template <class T>
SCANRNN_INLINE Vec<T> select(MaskOf<T> mask, Vec<T> yes, Vec<T> no) {
  return hn::IfThenElse(mask.raw, yes.raw, no.raw);
}
template <class T>
SCANRNN_INLINE Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) {
  return hn::MulAdd(a.raw, b.raw, c.raw);
}
template <class T>
SCANRNN_INLINE Vec<T> reciprocal(Vec<T> x) {
  return Vec<T>(1) / x;
}
template <class T>
SCANRNN_INLINE Vec<T> sqrt(Vec<T> x) {
  return hn::Sqrt(x.raw);
}
template <class T>
SCANRNN_INLINE Vec<T> abs(Vec<T> x) {
  return hn::Abs(x.raw);
}
template <class T>
SCANRNN_INLINE Vec<T> max(Vec<T> a, Vec<T> b) {
  return select(less(a, b), b, a);
}
template <class T>
SCANRNN_INLINE Vec<T> min(Vec<T> a, Vec<T> b) {
  return select(less(b, a), b, a);
}

template <class T>
using WholeTag = hn::RebindToSigned<hn::ScalableTag<T>>;
template <class T>
constexpr int kMantissaBits = sizeof(T) == 4 ? 23 : 52;
template <class T>
constexpr int kExponentBias = sizeof(T) == 4 ? 127 : 1023;

template <class T>
SCANRNN_INLINE Vec<T> round(Vec<T> x) {
  return hn::Round(x.raw);
}
template <class T>
SCANRNN_INLINE Vec<T> power_of_two(Vec<T> n) {
  const Vec<T> biased = max(n, Vec<T>(-kExponentBias<T>)) + Vec<T>(kExponentBias<T>);
  const auto bits = hn::ShiftLeft<kMantissaBits<T>>(hn::ConvertTo(WholeTag<T>(), biased.raw));
  return hn::BitCast(hn::ScalableTag<T>(), bits);
}
template <class T>
SCANRNN_INLINE Vec<T> exponent_of(Vec<T> x) {
  const hn::ScalableTag<T> tag;
  const auto bits = hn::BitCast(WholeTag<T>(), hn::Abs(x.raw));  // shifts in zeros
  const auto biased = hn::ConvertTo(tag, hn::ShiftRight<kMantissaBits<T>>(bits));
  return Vec<T>(biased) - Vec<T>(kExponentBias<T>);
}

// Highway's functions are for arguments inside their documented range; a NaN must stay one and the
// ends must be what IEEE's functions give.
template <class T>
SCANRNN_INLINE Vec<T> keep_nan(Vec<T> x, Vec<T> y) {
  return hn::IfThenElse(hn::Eq(x.raw, x.raw), y.raw, x.raw);
}
template <class T>
constexpr double kMaxExp = sizeof(T) == 4 ? 88.722839 : 709.782712893384;
template <class T>
SCANRNN_INLINE Vec<T> infinity() {
  return Vec<T>(std::numeric_limits<double>::infinity());
}

// `function`, which is about e^x, up to kMaxExp: Highway's end at 706 in float64.
template <class T, class Function>
SCANRNN_INLINE Vec<T> up_to_largest(Vec<T> x, Function function) {
  const Vec<T> limit(kMaxExp<T>), held = min(x, limit);
  Vec<T> y;
  if constexpr (sizeof(T) == 8) {
    const Vec<T> end(706), shift(4), factor(54.598150033144236);  // e^4
    const auto beyond = less(end, held);
    y = function(select(beyond, held - shift, held));
    y = select(beyond, y * factor, y);
  } else {
    y = function(held);
  }
  return keep_nan(x, select(less(limit, x), infinity<T>(), y));
}
template <class T>
SCANRNN_INLINE Vec<T> exp(Vec<T> x) {
  return up_to_largest(x, [](Vec<T> held) SCANRNN_INLINE_LAMBDA {
    return Vec<T>(hn::Exp(hn::ScalableTag<T>(), held.raw));
  });
}
template <class T>
SCANRNN_INLINE Vec<T> fast_exp(Vec<T> x) {
  return exp(x);
}
template <class T>
SCANRNN_INLINE Vec<T> bounded_exp(Vec<T> x) {
  const Vec<T> bounded = min(x, Vec<T>(scan::kLargestExponent<T>));
  return keep_nan(x, Vec<T>(hn::Exp(hn::ScalableTag<T>(), bounded.raw)));
}
template <class T>
SCANRNN_INLINE Vec<T> expm1(Vec<T> x) {
  return up_to_largest(x, [](Vec<T> held) SCANRNN_INLINE_LAMBDA {
    return Vec<T>(hn::Expm1(hn::ScalableTag<T>(), held.raw));
  });
}
template <class T>
SCANRNN_INLINE Vec<T> ends_of_log(Vec<T> argument, Vec<T> y) {
  const Vec<T> inside = select(less(Vec<T>(0), argument), y, -infinity<T>());
  const Vec<T> upper = select(less(argument, infinity<T>()), inside, argument);
  return keep_nan(argument, select(less(argument, Vec<T>(0)),
                                   Vec<T>(std::numeric_limits<double>::quiet_NaN()), upper));
}
template <class T>
SCANRNN_INLINE Vec<T> log(Vec<T> x) {
  return ends_of_log(x, Vec<T>(hn::Log(hn::ScalableTag<T>(), x.raw)));
}
template <class T>
SCANRNN_INLINE Vec<T> fast_log(Vec<T> x) {
  return log(x);
}
template <class T>
SCANRNN_INLINE Vec<T> log1p(Vec<T> x) {
  return ends_of_log(x + Vec<T>(1), Vec<T>(hn::Log1p(hn::ScalableTag<T>(), x.raw)));
}
template <class T>
SCANRNN_INLINE Vec<T> tanh(Vec<T> x) {
  // Beyond 20 the function is 1 to the last bit of a double, and an infinity has no series.
  const Vec<T> inside = max(min(x, Vec<T>(20)), Vec<T>(-20));
  return keep_nan(x, Vec<T>(hn::Tanh(hn::ScalableTag<T>(), inside.raw)));
}

// Complex numbers in memory, their parts in turn.
template <class T>
SCANRNN_INLINE void deinterleave(const T* from, Vec<T>& re, Vec<T>& im) {
  hn::LoadInterleaved2(hn::ScalableTag<T>(), from, re.raw, im.raw);
}
template <class T>
SCANRNN_INLINE void interleave(Vec<T> re, Vec<T> im, T* to) {
  hn::StoreInterleaved2(re.raw, im.raw, hn::ScalableTag<T>(), to);
}

// Whether bytes are set, as numbers that are zero where they are not.
template <class T>
SCANRNN_INLINE Vec<T> flags(const std::uint8_t* step, scan::Index row, scan::Index stride,
                            scan::Index hidden) {
  if (stride == 0) return Vec<T>(static_cast<double>(*step));
  T lanes[Vec<T>::kLanes] = {};
  const scan::Index first = row * Vec<T>::kLanes, end = first + Vec<T>::kLanes;
  for (scan::Index i = first; i < (end < hidden ? end : hidden); ++i) {
    lanes[i - first] = static_cast<T>(step[i * stride]);
  }
  return Vec<T>::load(lanes);
}

// How vectors lie in memory: row r is units [r * kLanes, (r + 1) * kLanes), cut off at `hidden`.
template <class Scalar>
struct Lanes {
  using T = Scalar;
  using V = Vec<T>;
  using D = typename V::D;
  static constexpr bool kAddsBias = true, kHasVectors = true, kTiles = false;
  static constexpr int kUnits = V::kLanes;

  SCANRNN_INLINE static void prefetch(const T* line, scan::Index row) {
    scanrnn::prefetch(line + row * V::kLanes);
  }
  SCANRNN_INLINE static V read(const T* line, scan::Index row, scan::Index hidden) {
    const scan::Index first = row * V::kLanes;
    if (first + V::kLanes <= hidden) return hn::LoadU(D(), line + first);
#if HWY_TARGET == HWY_SSE4  // whose masked load is a whole one: aligned, and past the line's end
    T lanes[V::kLanes] = {};
    for (scan::Index i = first; i < hidden; ++i) lanes[i - first] = line[i];
    return hn::LoadU(D(), lanes);
#else
    return hn::MaskedLoad(hn::FirstN(D(), hidden - first), D(), line + first);
#endif
  }
  SCANRNN_INLINE static void write(T* line, scan::Index row, scan::Index hidden, V value) {
    const scan::Index first = row * V::kLanes;
    if (first + V::kLanes <= hidden) {
      hn::StoreU(value.raw, D(), line + first);
    } else {
      hn::BlendedStore(value.raw, hn::FirstN(D(), hidden - first), D(), line + first);
    }
  }
  // A whole vector, aligned, past the caches.
  SCANRNN_INLINE static void stream(T* to, V value) { hn::Stream(value.raw, D(), to); }
  SCANRNN_INLINE static MaskOf<T> resets(const std::uint8_t* step, scan::Index row,
                                         scan::Index stride, scan::Index hidden) {
    return {hn::Not(is_zero(flags<T>(step, row, stride, hidden)).raw)};
  }
};

}  // namespace scanrnn::HWY_NAMESPACE

namespace scanrnn::scan {
template <class T>
inline constexpr double kLargestExponent<HWY_NAMESPACE::Vec<T>> = kLargestExponent<T>;
}  // namespace scanrnn::scan
