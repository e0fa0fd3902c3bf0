// SPDX-License-Identifier: Apache-2.0
// float16 on a processor that has no instruction for it: every value, and every place where
// rounding changes its mind; and how values of 16 bits come into the library and out of it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "platform.h"
#include "support/library.h"

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

// The same bits, but of a NaN, which has to stay one.
void expect_passed(unsigned got, unsigned want, Dtype dtype) {
  const unsigned infinity = dtype == Dtype::float16 ? kInfinity : 0x7f80u;
  const auto is_nan = [&](unsigned value) { return (value & 0x7fff) > infinity; };
  ASSERT_TRUE(is_nan(want) ? is_nan(got) : got == want)
      << std::hex << got << " from " << want << " of " << name(dtype);
}

// One step from a zero state: h is b. Every value three times, as lines with gaps between them and
// without, is work for several threads, of which some begin inside a line.
TEST(Half, EveryValuePassesThroughAScan) {
  if (on_cuda()) GTEST_SKIP() << "a CPU's conversions";
  constexpr std::int64_t kValues = 3 << 16;
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const int threads : {1, 3}) {
      for (const std::int64_t rows :
           {std::int64_t{1}, std::int64_t{12}, std::int64_t{384}, kValues}) {
        for (const std::int64_t gap : {0, 5}) {
          const std::int64_t lines = kValues / rows, stride = rows + gap;
          std::vector<std::uint16_t> a(static_cast<std::size_t>(lines * stride)), b(a), h(a);
          for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::uint16_t>(7 * i);
          const auto view = [&](std::vector<std::uint16_t>& values) {
            TensorView out = TensorView::of(values.data(), dtype, {1, lines, rows});
            out.strides = {lines * stride, stride, 1};
            return out;
          };
          Context context = make_context(threads);
          const dispatch::Plan plan = linear_scan_plan(context, {1, lines, rows, dtype});
          Scratch workspace(context, linear_scan_workspace(plan));
          ScanArgs args;
          args.a = view(a);
          args.b = view(b);
          args.h = view(h);
          args.workspace = workspace.span();
          linear_scan(context, plan, args);
          for (std::size_t i = 0; i < h.size(); ++i) {
            const bool in_gap = static_cast<std::int64_t>(i) % stride >= rows;
            expect_passed(h[i], in_gap || b[i] == kSign ? 0 : b[i], dtype);  // 0 + -0 is 0
            if (HasFatalFailure()) {
              FAIL() << "rows " << rows << ", gap " << gap << ", threads " << threads;
            }
          }
        }
      }
    }
  }
}

// A layer of no steps: the last state is the first, through the dtype that it is computed in.
TEST(Half, EveryValuePassesThroughALayer) {
  if (on_cuda()) GTEST_SKIP() << "a CPU's conversions";
  constexpr std::int64_t kValues = 3 << 16;
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const std::int64_t rows : {1, 12, 384}) {
      for (const std::int64_t gap : {0, 5}) {
        const std::int64_t lines = kValues / rows, stride = rows + gap;
        std::vector<std::uint16_t> first(static_cast<std::size_t>(lines * stride)), last(first);
        for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::uint16_t>(7 * i);
        const auto view = [&](std::vector<std::uint16_t>& values) {
          TensorView out = TensorView::of(values.data(), dtype, {1, lines, rows});
          out.strides = {lines * stride, stride, 1};
          return out;
        };
        LayerOptions options;
        options.input_size = 1;
        options.hidden_size = rows;
        options.bias = false;
        options.dtype = dtype;
        const Layer layer(options);
        Context context = make_context(3);
        const dispatch::Plan plan = layer.plan(context, 0, lines, Mode::inference);
        Scratch workspace(context, layer.sizes(plan).workspace);
        const std::vector<std::uint16_t> weights(static_cast<std::size_t>(2 * rows));
        ForwardArgs args;
        for (const ParameterInfo& parameter : layer.parameters()) {
          const std::vector<std::int64_t>& sizes = parameter.sizes;
          args.params.push_back(TensorView::of(weights.data(), dtype, {sizes[0], sizes[1]}));
        }
        args.x = TensorView::of(weights.data(), dtype, {0, lines, 1});
        args.y = TensorView::of(last.data(), dtype, {0, lines, rows});
        args.h0.h = view(first);
        args.hn.h = view(last);
        args.workspace = workspace.span();
        layer.forward(context, plan, args);
        for (std::size_t i = 0; i < last.size(); ++i) {
          const bool in_gap = static_cast<std::int64_t>(i) % stride >= rows;
          expect_passed(last[i], in_gap ? 0 : first[i], dtype);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
