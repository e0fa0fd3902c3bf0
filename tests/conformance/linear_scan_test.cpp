// SPDX-License-Identifier: Apache-2.0
// The bare recurrence against the plainest loop in long double: both forms, both directions, every
// strategy, and decays that no cell would give.
#include <gtest/gtest.h>

#include <cstring>

#include "support/cases.h"
#include "support/conform.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

struct Scan {
  std::int64_t steps, rows;
  Dtype dtype = Dtype::float32;
  Way way = {};
  bool log_form = false, signs = true, h0 = true, reverse = false;
  Memory memory = {};
};

std::string text(const Scan& s) {
  std::ostringstream out;
  out << "T" << s.steps << "_N" << s.rows << '_' << name(s.dtype) << '_' << name(s.way)
      << (s.log_form ? "_log" : "") << (s.signs ? "_signs" : "") << (s.h0 ? "_h0" : "")
      << (s.reverse ? "_reverse" : "");
  return out.str();
}

struct ScanData {
  Values a, b, sign_b, h0;
};

ScanData draw(const Scan& s, Random& random) {
  ScanData data;
  const std::int64_t count = s.steps * s.rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const double a = random.uniform(0.3, 1), b = random.uniform(-1, 1);
    data.a.push_back(rounded(s.log_form ? std::log(a) : a, s.dtype));
    data.b.push_back(rounded(s.log_form ? std::log(std::fabs(b)) : b, s.dtype));
    data.sign_b.push_back(b < 0 ? -1 : 1);
  }
  for (std::int64_t i = 0; i < s.rows; ++i) {
    data.h0.push_back(s.h0 ? rounded(random.uniform(-1, 1), s.dtype) : 0);
  }
  return data;
}

Values reference(const Scan& s, const ScanData& data) {
  Values out(data.a.size());
  for (std::int64_t row = 0; row < s.rows; ++row) {
    long double h = data.h0[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < s.steps; ++i) {
      const auto at = static_cast<std::size_t>((s.reverse ? s.steps - 1 - i : i) * s.rows + row);
      long double a = data.a[at], b = data.b[at];
      if (s.log_form) {
        a = std::exp(a);
        b = (s.signs ? data.sign_b[at] : 1) * std::exp(b);
      }
      h = a * h + b;
      out[at] = static_cast<double>(h);
    }
  }
  return out;
}

template <class F = void (*)(ScanArgs&)>
Values run(const Scan& s, const ScanData& data, Context& context, F&& change = [](auto&) {}) {
  const std::vector<std::int64_t> sizes{s.steps, s.rows};
  Tensor a(s.dtype, sizes, data.a, s.memory), b(s.dtype, sizes, data.b, s.memory),
      sign_b(s.dtype, sizes, data.sign_b, s.memory), h0(s.dtype, {s.rows}, data.h0, s.memory),
      h(s.dtype, sizes, s.memory);
  const ScanForm form = s.log_form ? ScanForm::log : ScanForm::linear;
  const dispatch::Plan plan =
      s.way.splits(linear_scan_plan(context, {s.steps, 1, s.rows, s.dtype, form}, s.way.strategy));
  Scratch workspace(context, linear_scan_workspace(plan));
  Mirror mirror(context);
  ScanArgs args;
  args.a = mirror.view(a);
  args.b = mirror.view(b);
  if (s.log_form && s.signs) args.sign_b = mirror.view(sign_b);
  if (s.h0) args.h0 = mirror.view(h0);
  args.h = mirror.view(h);
  args.form = form;
  args.reverse = s.reverse;
  args.workspace = workspace.span();
  change(args);
  try {
    linear_scan(context, plan, args);
  } catch (...) {
    mirror.bring_back();
    EXPECT_TRUE(h.untouched()) << "an error left something in the output";
    throw;
  }
  mirror.bring_back();
  for (const Tensor* tensor : {&a, &b, &sign_b, &h0, &h}) {
    EXPECT_TRUE(tensor->intact()) << "memory around a tensor changed: " << text(s);
  }
  EXPECT_TRUE(workspace.intact()) << text(s);
  return h.values();
}

// In the log form a rounded logarithm L is a relative error of |L| units; these stay below 16.
Tolerance tolerance_of(const Scan& s) {
  Tolerance out = forward_tolerance(s.dtype, s.steps);
  if (s.log_form) out.scale *= 2;
  return out;
}

TEST(LinearScan, MatchesTheLoop) {
  Random random(71);
  Context context = make_context(3);
  for (Dtype dtype : dtypes()) {
    for (const Way& way : scan_ways()) {
      for (std::int64_t steps : lengths(16, 1031)) {
        for (std::int64_t rows : {0, 1, 7, 16, 33}) {
          for (int bits = 0; bits < 4; ++bits) {
            Scan s{steps, rows, dtype, way};
            s.log_form = bits & 1;
            s.reverse = bits & 2;
            s.signs = rows != 7;
            s.h0 = (steps + rows) % 2;
            s.memory = {bits == 3 ? 5 : 0, bits == 2 ? 1 : 0};
            const ScanData data = draw(s, random);
            EXPECT_TRUE(close("h", run(s, data, context), reference(s, data), tolerance_of(s)))
                << text(s);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Wherever rows begin, and however far apart they are.
TEST(LinearScan, EveryAlignment) {
  Random random(78);
  Context context = make_context(2);
  for (Dtype dtype : dtypes()) {
    for (const Way& way : scan_ways()) {
      Scan s{203, 72, dtype, way};
      const ScanData data = draw(s, random);
      const Values want = reference(s, data);
      for (std::int64_t gap : {0, 1, 2, 4, 8}) {
        for (std::int64_t offset : {0, 1, 2, 3, 4, 8}) {
          s.memory = {gap, offset};
          EXPECT_TRUE(close("h", run(s, data, context), want, tolerance_of(s)))
              << text(s) << " gap " << gap << " offset " << offset;
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Rows that fill a vector and that do not: several steps then lie in one.
TEST(LinearScan, FewRows) {
  Random random(79);
  Context context = make_context(3);
  for (Dtype dtype : {Dtype::float32, Dtype::float64}) {
    for (const Way& way : linear_ways()) {
      for (std::int64_t rows = 1; rows <= 17; ++rows) {
        for (std::int64_t steps : {1, 2, 5, 15, 16, 17, 47, 333}) {
          Scan s{steps, rows, dtype, way};
          s.log_form = steps % 3 == 2;
          s.reverse = (steps + rows) % 2;
          const ScanData data = draw(s, random);
          EXPECT_TRUE(close("h", run(s, data, context), reference(s, data), tolerance_of(s)))
              << text(s);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// More than a processor's last cache, so that results go past it where they lie at whole lines: the
// same bits as where they do not.
TEST(LinearScan, LargerThanTheCaches) {
  Context context = make_context(2);
  if (context.limits().processor != dispatch::Processor::cpu) GTEST_SKIP() << "of the CPU alone";
  constexpr std::int64_t kBytes = std::int64_t{20} << 20, kLine = 64;
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    for (const std::int64_t rows : {8, 24, 1040}) {
      const std::int64_t steps = kBytes / size / rows;
      const auto count = static_cast<std::size_t>(steps * rows * size);
      std::vector<std::uint8_t> a(count), b(count), plain(count + 2 * kLine), streamed(plain);
      Random random(80);
      for (std::size_t i = 0; i < count; i += size_of(dtype)) {
        const std::uint64_t decay = encode(random.uniform(0.3, 1), dtype);
        const std::uint64_t input = encode(random.uniform(-1, 1), dtype);
        std::memcpy(&a[i], &decay, size_of(dtype));
        std::memcpy(&b[i], &input, size_of(dtype));
      }
      const auto aligned = [](std::vector<std::uint8_t>& memory) {
        return memory.data() + kLine - reinterpret_cast<std::uintptr_t>(memory.data()) % kLine;
      };
      const auto view = [&](const std::uint8_t* data) {
        return TensorView::of(data, dtype, {steps, rows});
      };
      for (const Way& way : linear_ways()) {
        const dispatch::Plan plan =
            way.splits(linear_scan_plan(context, {steps, 1, rows, dtype}, way.strategy));
        Scratch workspace(context, linear_scan_workspace(plan));
        ScanArgs args;
        args.a = view(a.data());
        args.b = view(b.data());
        args.workspace = workspace.span();
        std::uint8_t* const whole_lines = aligned(streamed);
        std::uint8_t* const none = aligned(plain) + size;
        for (std::uint8_t* to : {whole_lines, none}) {
          args.h = view(to);
          linear_scan(context, plan, args);
        }
        EXPECT_EQ(std::memcmp(whole_lines, none, count), 0)
            << name(way) << ", rows " << rows << ", " << name(dtype);
      }
    }
  }
}

TEST(LinearScan, AMillionSteps) {
  Random random(72);
  Context context = make_context(2);
  for (bool log_form : {false, true}) {
    Scan s{std::int64_t{1} << 20, 1};
    s.log_form = log_form;
    ScanData data = draw(s, random);
    for (std::size_t i = 0; i < data.a.size(); ++i) {
      const double z = random.uniform(0, 1e-5);
      data.a[i] = rounded(log_form ? std::log1p(-z) : 1 - z, s.dtype);
    }
    const Values want = reference(s, data);
    for (const Way& way : scan_ways()) {
      s.way = way;
      EXPECT_TRUE(close("h", run(s, data, context), want, tolerance_of(s))) << text(s);
    }
  }
}

// A decay may be negative, or above 1, or 0: it is the caller's recurrence.
TEST(LinearScan, AnyDecay) {
  Random random(73);
  Context context = make_context(2);
  for (double a : {-0.9, 0.0, 1.0, -1.0, 1.01}) {
    Scan s{301, 5};
    ScanData data = draw(s, random);
    std::fill(data.a.begin(), data.a.end(), rounded(a, s.dtype));
    const Values want = reference(s, data);
    for (const Way& way : scan_ways()) {
      s.way = way;
      // 1.01^300 is 20: nothing is forgotten, so an error grows as the state does.
      EXPECT_TRUE(close("h", run(s, data, context), want, tolerance_of(s)))
          << text(s) << " a " << a;
    }
  }
}

// A product of decays may leave the range of every number: what is zero stays so, as in the loop. A
// decay that is none makes its row none from there on.
TEST(LinearScan, ZeroThroughDecaysBeyondTheRange) {
  Random random(80);
  Context context = make_context(3);
  for (const Way& way : scan_ways()) {
    for (std::int64_t rows : {1, 5, 33}) {
      for (bool log_form : {false, true}) {
        Scan s{701, rows, Dtype::float32, way, log_form};
        s.h0 = false;
        ScanData data = draw(s, random);
        const auto at = [&](std::int64_t t) { return static_cast<std::size_t>(t * rows); };
        for (std::size_t i = 0; i < at(500); ++i) {
          data.a[i] = log_form ? 46 : i % 3 ? 1e20 : -1e20;
          data.b[i] = log_form ? -INFINITY : 0;
          if (i >= at(200) && i < at(201) && !log_form) data.a[i] = 0;
        }
        EXPECT_TRUE(close("h", run(s, data, context), reference(s, data), tolerance_of(s)))
            << text(s);
        data.a[at(100)] = NAN;
        const Values got = run(s, data, context);
        for (std::int64_t t = 0; t < s.steps; ++t) {
          ASSERT_EQ(std::isnan(got[at(t)]), t >= 100) << text(s) << " step " << t;
        }
      }
    }
  }
}

TEST(LinearScan, NothingIsMinusInfinity) {
  Random random(74);
  Context context = make_context(2);
  for (const Way& way : scan_ways()) {
    Scan s{90, 5};
    s.way = way;
    s.log_form = true;
    ScanData data = draw(s, random);
    for (std::size_t i = 0; i < data.b.size(); i += 3) data.b[i] = -INFINITY;
    for (std::size_t i = 1; i < data.a.size(); i += 7) data.a[i] = -INFINITY;
    EXPECT_TRUE(close("h", run(s, data, context), reference(s, data), tolerance_of(s))) << text(s);
    std::fill(data.b.begin(), data.b.end(), -INFINITY);
    std::fill(data.h0.begin(), data.h0.end(), 0.0);
    EXPECT_EQ(run(s, data, context), Values(data.b.size())) << "no input and no state is zero";
  }
}

TEST(LinearScan, NanStaysInItsRow) {
  Random random(75);
  Context context = make_context(2);
  for (const Way& way : scan_ways()) {
    for (bool log_form : {false, true}) {
      Scan s{90, 5};
      s.way = way;
      s.log_form = log_form;
      ScanData data = draw(s, random);
      const Values clean = run(s, data, context);
      data.b[40 * 5 + 2] = NAN;
      const Values got = run(s, data, context);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (i % 5 == 2 && i / 5 >= 40) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else {
          ASSERT_EQ(got[i], clean[i]) << i;
        }
      }
    }
  }
}

TEST(LinearScan, RepeatedRunsGiveTheSameBits) {
  Random random(76);
  Context context = make_context(3);
  for (const Way& way : scan_ways()) {
    Scan s{3001, 19};
    s.way = way;
    const ScanData data = draw(s, random);
    const Values first = run(s, data, context);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits("h", run(s, data, context), first));
  }
}

TEST(LinearScan, Errors) {
  Random random(77);
  Context context = make_context(1);
  Scan s{6, 4};
  s.log_form = true;
  const ScanData data = draw(s, random);
  const auto message = [&](auto change) {
    return test::message([&] { run(s, data, context, change); });
  };
  const auto begins = [](const std::string& text, const std::string& with) {
    return text.rfind(with, 0) == 0 ? testing::AssertionSuccess()
                                    : testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(begins(message([](ScanArgs& a) { ++a.a.sizes[0]; }), "log_a: expected shape (6, 4)"));
  EXPECT_TRUE(begins(message([](ScanArgs& a) { a.b = {}; }), "log_b: "));
  EXPECT_TRUE(begins(message([](ScanArgs& a) { a.sign_b.dtype = Dtype::float64; }), "sign_b: "));
  EXPECT_TRUE(begins(message([](ScanArgs& a) { --a.h0.sizes[0]; }), "h_0: expected shape (4,)"));
  EXPECT_TRUE(begins(message([](ScanArgs& a) { a.h.strides[0] = 2; }), "h: "));
  EXPECT_TRUE(begins(message([](ScanArgs& a) { a.h.device = Device::cuda(3); }), "h: "));
  EXPECT_TRUE(
      begins(message([](ScanArgs& a) { a.form = ScanForm::linear; }), "plan: it was made for"));
  s.log_form = false;
  EXPECT_TRUE(begins(message([](ScanArgs& a) { a.a.strides[0] = -1; }), "a: "));
  EXPECT_TRUE(begins(message([](ScanArgs& a) { a.sign_b = a.b; }), "sign_b: "));
  // A parallel scan that needs workspace on any device: on CUDA time has to go over blocks.
  Scan tall{1 << 16, 4};
  tall.way = {Strategy::parallel_scan, Way::Split::across_blocks};
  const ScanData many = draw(tall, random);
  const auto plan = tall.way.splits(
      linear_scan_plan(context, {tall.steps, 1, tall.rows, tall.dtype}, tall.way.strategy));
  ASSERT_GT(linear_scan_workspace(plan), 0u) << dispatch::explain(plan);
  try {
    run(tall, many, context, [](ScanArgs& a) { --a.workspace.bytes; });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const error& e) {
    EXPECT_TRUE(begins(e.what(), "workspace: expected"));
  }
  EXPECT_THROW(linear_scan_plan(context, {-1, 1, 4}), value_error);
  EXPECT_THROW(linear_scan_plan(context, {1, 1, -4}), value_error);
}

}  // namespace
}  // namespace scanrnn::test
