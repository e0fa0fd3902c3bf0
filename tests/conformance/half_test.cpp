// SPDX-License-Identifier: Apache-2.0
// float16 on a processor that has no instruction for it: every value, and every place where
// rounding changes its mind.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "platform.h"

namespace scanrnn::test {
namespace {

constexpr unsigned kInfinity = 0x7c00, kSign = 0x8000;

// From the definition of the format; doubles hold all of it exactly.
double value_of(unsigned half) {
  const int exponent = static_cast<int>(half >> 10 & 31), fraction = static_cast<int>(half & 1023);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half & kSign ? -magnitude : magnitude;
}

TEST(Half, EveryValueBecomesAFloat) {
  for (unsigned half = 0; half <= 0xffff; ++half) {
    const float got = portable::half_to_float(static_cast<std::uint16_t>(half));
    EXPECT_EQ(std::signbit(got), (half & kSign) != 0) << std::hex << half;
    if ((half & 0x7fff) > kInfinity) {
      EXPECT_TRUE(std::isnan(got)) << std::hex << half;
    } else if ((half & 0x7fff) == kInfinity) {
      EXPECT_TRUE(std::isinf(got)) << std::hex << half;
    } else {
      EXPECT_EQ(got, value_of(half)) << std::hex << half;
    }
  }
}

// Neighbours a < b, of which one is even: b's side of the middle is b's, and the middle is the even
// one's. Past the largest half lies what would be 2^16, and stands for infinity.
TEST(Half, FloatsRoundToTheNearestAndToEven) {
  const auto narrow = [](double x) {
    return static_cast<unsigned>(portable::float_to_half(static_cast<float>(x)));
  };
  for (const unsigned sign : {0u, kSign}) {
    for (unsigned half = 0; half < kInfinity; ++half) {
      const unsigned a = half | sign, b = a + 1, even = a & 1 ? b : a;
      const double low = value_of(a), high = value_of(b), middle = (low + high) / 2;
      const auto toward = [&](double goal) {
        return std::nextafter(static_cast<float>(middle), static_cast<float>(goal));
      };
      EXPECT_EQ(narrow(low), a) << std::hex << a;
      EXPECT_EQ(narrow(middle), even) << std::hex << a;
      EXPECT_EQ(narrow(toward(low)), a) << std::hex << a;
      EXPECT_EQ(narrow(toward(high)), b) << std::hex << a;
    }
  }
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(narrow(Limits::infinity()), kInfinity);
  EXPECT_EQ(narrow(-Limits::infinity()), kInfinity | kSign);
  EXPECT_EQ(narrow(Limits::max()), kInfinity);
  EXPECT_EQ(narrow(Limits::denorm_min()), 0u);
  EXPECT_EQ(narrow(-Limits::denorm_min()), kSign);
  EXPECT_GT(narrow(Limits::quiet_NaN()) & 0x7fffu, kInfinity);
}

}  // namespace
}  // namespace scanrnn::test
