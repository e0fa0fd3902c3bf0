// SPDX-License-Identifier: Apache-2.0
// On the CPU a ragged call of a forced strategy has the bits of a call on each stretch alone, where
// steps are walked one after the other: resets of the bare recurrence, and layers whose products
// are exact. A product over other numbers of rows may add up in another order, so that other
// layers' results are near single calls' and no more (ragged_test.cpp). And a bare recurrence of
// 16 bits has the bits of one of floats, rounded once.
#include <gtest/gtest.h>

#include "support/one_by_one.h"
#include "support/scan_case.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

// ---- the bare recurrence

// Steps [begin, end) of a walk along one line, with all of its rows.
ScanNumbers part_of(const ScanCase& whole, const ScanNumbers& n, std::int64_t line,
                    const ScanCase& one, std::int64_t begin) {
  ScanNumbers out;
  out.reset.assign(one.count(), 0);
  const auto first = static_cast<std::size_t>(line * whole.rows);
  for (auto* values : {&out.a, &out.b, &out.sign_b, &out.dh}) values->resize(one.count());
  for (std::int64_t step = 0; step < one.steps; ++step) {
    for (std::size_t row = 0; row < one.states(); ++row) {
      const std::size_t from = whole.at(begin + step, first + row), to = one.at(step, row);
      out.a[to] = n.a[from];
      out.b[to] = n.b[from];
      out.sign_b[to] = n.sign_b[from];
      out.dh[to] = n.dh[from];
    }
  }
  for (std::size_t row = 0; row < one.states(); ++row) {
    out.h0.push_back(n.h0[first + row]);
    out.sign_h0.push_back(n.sign_h0[first + row]);
  }
  return out;
}

void expect_bits(const ScanCase& whole, const ScanNumbers& n, const ScanNumbers& got,
                 Context& context) {
  for (std::int64_t line = 0; line < whole.lines; ++line) {
    const auto first = static_cast<std::size_t>(line * whole.rows);
    const auto resets = [&](std::int64_t step) { return n.reset[whole.at(step, first)] != 0; };
    std::int64_t begin = 0;
    for (std::int64_t end = 1; end <= whole.steps; ++end) {
      if (end < whole.steps && !resets(end)) continue;
      ScanCase one = whole;
      one.lines = 1;
      one.steps = end - begin;
      one.reset_share = -1;
      one.shares_resets = false;
      one.h0 = whole.h0 && begin == 0 && !resets(0);
      const ScanNumbers alone = run(one, part_of(whole, n, line, one, begin), context);
      for (std::int64_t step = 0; step < one.steps; ++step) {
        for (std::size_t row = 0; row < one.states(); ++row) {
          const std::size_t in = whole.at(begin + step, first + row), at = one.at(step, row);
          ASSERT_EQ(got.h[in], alone.h[at]) << text(whole) << " h at step " << begin + step;
          ASSERT_EQ(got.da[in], alone.da[at]) << text(whole) << " da at step " << begin + step;
          ASSERT_EQ(got.db[in], alone.db[at]) << text(whole) << " db at step " << begin + step;
          if (whole.log_states()) {
            ASSERT_EQ(got.sign_h[in], alone.sign_h[at]) << text(whole);
          }
          if (step == 0 && one.h0) {
            ASSERT_EQ(got.dh0[first + row], alone.dh0[row]) << text(whole) << " dh_0";
          }
        }
      }
      begin = end;
    }
  }
}

// Where rows are adjacent, or apart: along adjacent steps the CPU takes several at once.
TEST(SameBits, ScansWithResets) {
  if (on_cuda()) GTEST_SKIP() << "there a chunk of steps is rounded as one, wherever it begins";
  Random random(1521);
  Context context = make_context(2);
  for (const ScanForm form : {ScanForm::linear, ScanForm::log, ScanForm::log_output}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16, Dtype::float16,
                              Dtype::complex64, Dtype::complex128}) {
      if (is_complex(dtype) && form != ScanForm::linear) continue;
      for (const Order order : {Order::rows_adjacent, Order::rows_apart}) {
        for (const std::int64_t rows : {1, 5, 40}) {
          ScanCase c;
          c.form = form;
          c.dtype = dtype;
          c.order = order;
          c.steps = 61;
          c.lines = 3;
          c.rows = rows;
          c.reverse = rows == 5;
          c.h0 = rows != 1;
          c.reset_share = 0.15;
          c.shares_resets = true;
          c.way = Strategy::fused_sequential;
          const ScanNumbers n = draw(c, random);
          expect_bits(c, n, run(c, n, context), context);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// What backward makes of a stored state, which is rounded in 16 bits, is no part of it: da, and all
// of log_output.
TEST(SameBits, ScansOfHalvesAreThoseOfFloats) {
  if (on_cuda()) GTEST_SKIP() << "there the dtype decides how many rows a thread walks";
  Random random(1523);
  Context context = make_context(2);
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const ScanForm form : {ScanForm::linear, ScanForm::log, ScanForm::log_output}) {
      for (const Order order : kOrders) {
        for (const Way& way : linear_ways()) {
          for (const std::int64_t rows : {1, 3, 7, 16, 37}) {
            ScanCase c;
            c.dtype = dtype;
            c.form = form;
            c.order = order;
            c.way = way;
            c.steps = 61;
            c.lines = 2;
            c.rows = rows;
            c.reverse = rows % 4 == 3;
            c.h0 = rows != 1;
            if (rows == 16) c.reset_share = 0.15;
            const ScanNumbers n = draw(c, random), got = run(c, n, context);
            ScanCase of_floats = c;
            of_floats.dtype = Dtype::float32;
            const ScanNumbers want = run(of_floats, n, context);
            const auto expect_rounded = [&](const Numbers& halves, const Numbers& floats) {
              for (std::size_t i = 0; i < halves.size(); ++i) {
                const double float_i = static_cast<double>(floats[i].real());
                ASSERT_EQ(static_cast<double>(halves[i].real()), rounded(float_i, dtype))
                    << text(c) << ", element " << i;
              }
            };
            expect_rounded(got.h, want.h);
            if (!c.log_states()) {
              expect_rounded(got.db, want.db);
              expect_rounded(got.dh0, want.dh0);
            }
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// ---- layers

// Each sum of a product has one term that is not zero, and that one is exact: a row of a matrix
// picks one column, and no other row does.
void pick(const Case& c, Data& data) {
  const Layer layer(c.layer);
  const std::int64_t hidden = c.layer.hidden_size, gates = info(c.layer.cell).gates;
  for (std::size_t i = 0; i < data.params.size(); ++i) {
    const std::vector<std::int64_t>& sizes = layer.parameters()[i].sizes;
    if (sizes.size() != 2) continue;
    for (std::int64_t row = 0; row < sizes[0]; ++row) {
      const std::int64_t unit = row % hidden;
      const bool whole = sizes[0] == sizes[1];
      const bool picks = whole || unit % gates == row / hidden;
      for (std::int64_t k = 0; k < sizes[1]; ++k) {
        data.params[i][static_cast<std::size_t>(row * sizes[1] + k)] =
            picks && k == (whole ? row : unit) ? (row % 3 ? 0.5 : -1) : 0;
      }
    }
  }
}

Strategy walking(const LayerOptions& layer) {
  return is_dense(layer) ? Strategy::step_loop : Strategy::fused_sequential;
}

TEST(SameBits, LayersWhoseProductsAreExact) {
  if (on_cuda()) GTEST_SKIP() << "there a chunk of steps is rounded as one, wherever it begins";
  Random random(1522);
  for (const LayerOptions& options : all_variants()) {
    for (int bits = 0; bits < 8; ++bits) {
      RaggedCase c = ragged_case(options, {7, 0, 12, 1, 12, 3}, bits & 1);
      c.whole.way = walking(options);
      c.whole.layer.dtype = bits % 3 == 0 ? Dtype::float64 : Dtype::float32;
      c.whole.layer.bidirectional = bits & 2;
      c.whole.layer.batch_first = bits & 4;
      if (!info(options.cell).square) {
        c.whole.layer.input_size = Layer(c.whole.layer).parameters()[0].sizes[0];
      }
      fit(c.whole.layer);
      c.whole.threads = 1 + bits % 3;
      if (bits > 1) reset_some(c, 0.2, random);
      Data data = random_data(c.whole, random);
      pick(c.whole, data);
      const Result want = one_by_one(c, data);
      poison_padding(c, data);
      const Result got = at_once(c, data, bits & 1);
      EXPECT_EQ(got.y, want.y) << text(c.whole);
      EXPECT_EQ(got.hn, want.hn) << text(c.whole);
      EXPECT_EQ(got.moren, want.moren) << text(c.whole);
      EXPECT_EQ(got.dx, want.dx) << text(c.whole);
      EXPECT_EQ(got.dh0, want.dh0) << text(c.whole);
      EXPECT_EQ(got.dmore0, want.dmore0) << text(c.whole);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
