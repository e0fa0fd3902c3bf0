// SPDX-License-Identifier: Apache-2.0
// Ragged batches against a call for each stretch of each sequence by itself, forward and backward:
// lengths with NaN in the padding, packed tokens, resets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "support/by_lines.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/library.h"
#include "support/ragged_case.h"

namespace scanrnn::test {
namespace {

using dispatch::Batch;
using dispatch::Strategy;

// One stretch of a sequence, steps [begin, end).
struct Stretch {
  std::int64_t row, begin, end;
  bool first, last, own;  // of its sequence; own: begins with the sequence's own state
};
std::vector<Stretch> stretches(const RaggedCase& c) {
  std::vector<Stretch> out;
  for (std::int64_t row = 0; row < c.whole.batch; ++row) {
    const std::int64_t length = c.lengths[static_cast<std::size_t>(row)];
    std::int64_t begin = 0;
    for (std::int64_t t = 1; t <= length; ++t) {
      if (t < length && !c.resets(row, t)) continue;
      out.push_back({row, begin, t, begin == 0, t == length, begin == 0 && !c.resets(row, 0)});
      begin = t;
    }
  }
  return out;
}

Values rows_of(const RaggedCase& c, const Stretch& s, const Values& tokens, std::int64_t width) {
  Values out;
  for (std::int64_t t = s.begin; t < s.end; ++t) {
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(c.token(s.row, t)) * width;
    out.insert(out.end(), from, from + width);
  }
  return out;
}
void put_rows(const RaggedCase& c, const Stretch& s, const Values& rows, std::int64_t width,
              Values& tokens) {
  for (std::int64_t t = s.begin; t < s.end; ++t) {
    std::copy_n(rows.begin() + (t - s.begin) * width, width,
                tokens.begin() + static_cast<std::ptrdiff_t>(c.token(s.row, t)) * width);
  }
}
// Calls use(offset of a sequence's row in [L*D,B,H], offset in [L*D,1,H], whether it belongs to the
// reverse direction) for each layer and direction.
template <class F>
void for_states(const Case& c, std::int64_t row, F&& use) {
  const std::int64_t hidden = c.layer.hidden_size;
  for (std::int64_t i = 0; i < c.layer.num_layers * c.directions(); ++i) {
    use((i * c.batch + row) * hidden, i * hidden, i % c.directions() == 1);
  }
}

// A call for each stretch by itself: what the ragged call should give.
Result one_by_one(const RaggedCase& c, const Data& data) {
  const Case& whole = c.whole;
  const std::int64_t hidden = whole.layer.hidden_size, width = whole.directions() * hidden;
  Result out;
  out.y.assign(static_cast<std::size_t>(whole.outputs()), 0);
  out.dx.assign(static_cast<std::size_t>(whole.inputs()), 0);
  const auto states = static_cast<std::size_t>(whole.states());
  // A sequence without steps hands its states on.
  out.hn = whole.h0 ? data.h0 : Values(states, 0);
  out.dh0 = data.dhn;
  const std::vector<double>& fresh = info(whole.layer.cell).fresh;
  for (std::size_t i = 0; i < whole.more_states(); ++i) {
    out.moren[i] = whole.h0 ? data.more0[i] : Values(states, fresh[i + 1]);
    out.dmore0[i] = data.dmoren[i];
  }
  for (const Values& parameter : data.params) out.dparams.emplace_back(parameter.size(), 0);
  for (const Stretch& s : stretches(c)) {
    Case one = whole;
    one.layout = Batch::rectangular;
    one.longest = 0;
    one.steps = s.end - s.begin;
    one.batch = 1;
    one.h0 = true;
    Data part;
    part.params = data.params;
    part.x = rows_of(c, s, data.x, whole.layer.input_size);
    part.dy = rows_of(c, s, data.dy, width);
    const auto cut = [&](const Values& all, bool is_start, double absent = 0) {
      Values rows(static_cast<std::size_t>(one.states()), absent);
      for_states(whole, s.row, [&](std::int64_t from, std::int64_t to, bool reverse) {
        const bool mine = is_start ? (reverse ? s.last : s.own) : (reverse ? s.first : s.last);
        if (mine && !all.empty()) std::copy_n(all.begin() + from, hidden, rows.begin() + to);
      });
      return rows;
    };
    part.h0 = cut(data.h0, true);
    part.dhn = cut(data.dhn, false);
    for (std::size_t i = 0; i < whole.more_states(); ++i) {
      part.more0[i] = cut(data.more0[i], true, fresh[i + 1]);
      part.dmoren[i] = cut(data.dmoren[i], false);
    }
    const Result got = library(one, part);
    put_rows(c, s, got.y, width, out.y);
    put_rows(c, s, got.dx, whole.layer.input_size, out.dx);
    const auto put = [&](const Values& rows, bool is_start, Values& all) {
      for_states(whole, s.row, [&](std::int64_t to, std::int64_t from, bool reverse) {
        const bool mine = is_start ? (reverse ? s.last : s.first) : (reverse ? s.first : s.last);
        const bool dead = is_start && !reverse && !s.own;  // reset at once
        if (!mine) return;
        for (std::int64_t k = 0; k < hidden; ++k) {
          all[static_cast<std::size_t>(to + k)] =
              dead ? 0 : rows[static_cast<std::size_t>(from + k)];
        }
      });
    };
    put(got.hn, false, out.hn);
    put(got.dh0, true, out.dh0);
    for (std::size_t i = 0; i < whole.more_states(); ++i) {
      put(got.moren[i], false, out.moren[i]);
      put(got.dmore0[i], true, out.dmore0[i]);
    }
    for (std::size_t i = 0; i < got.dparams.size(); ++i) {
      for (std::size_t k = 0; k < got.dparams[i].size(); ++k) {
        out.dparams[i][k] += got.dparams[i][k];
      }
    }
  }
  return out;
}

// Products on a GPU are cut otherwise for other numbers of tokens.
double more() { return on_cuda() ? 5 : 1; }
double forward_bound(const RaggedCase& c) {
  const Dtype dtype = c.whole.layer.dtype;
  return dtype == Dtype::float64 ? 1e-13 : size_of(dtype) == 2 ? 1e-2 : more() * 2e-6;
}
// How a plan splits the work, which decides the order of its sums.
std::pair<Strategy, bool> way_of(const dispatch::Plan& plan) {
  return {plan.strategy, plan.across_blocks};
}

Result at_once(const RaggedCase& c, const Data& data, bool wide) {
  Context& context = shared_context(c.whole.threads);
  const Arguments arguments(c, wide, context);
  Buffers buffers(c.whole, data);
  const auto add = [&](auto& args) { args.ragged = arguments.ragged(); };
  buffers.forward(context, Mode::inference, 0, add);
  const Result inference = buffers.result();
  buffers.poison_outputs();
  buffers.forward(context, Mode::training, 0, add);
  buffers.backward(context, 0, add);
  const Result out = buffers.result();
  const auto way = [&](Mode mode) { return way_of(buffers.plan_for(context, mode)); };
  if (way(Mode::inference) == way(Mode::training)) {
    EXPECT_EQ(inference.y, out.y) << text(c.whole);
    EXPECT_EQ(inference.hn, out.hn) << text(c.whole);
  } else {
    const Tolerance bound{forward_bound(c)};
    EXPECT_TRUE(close("y", inference.y, out.y, bound)) << text(c.whole);
    EXPECT_TRUE(close("h_n", inference.hn, out.hn, bound)) << text(c.whole);
  }
  return out;
}

Result forward_alone(const RaggedCase& c, const Data& data) {
  Context& context = shared_context(c.whole.threads);
  const Arguments arguments(c, true, context);
  Buffers buffers(c.whole, data);
  buffers.forward(context, Mode::inference, 0,
                  [&](ForwardArgs& args) { args.ragged = arguments.ragged(); });
  return buffers.result();
}

void expect_alike(const RaggedCase& c, const Result& got, const Result& want) {
  const Dtype dtype = c.whole.layer.dtype;
  const double forward = forward_bound(c);
  const double gradient = dtype == Dtype::float64 ? 1e-12
                          : size_of(dtype) == 2   ? 3e-2
                                                  : more() * 1e-5;
  const auto close_to = [&](const std::string& name, const Values& a, const Values& b,
                            double bound) {
    EXPECT_TRUE(close(name, a, b, {bound})) << text(c.whole);
  };
  close_to("y", got.y, want.y, forward);
  close_to("h_n", got.hn, want.hn, forward);
  for (std::size_t i = 0; i < got.moren.size(); ++i) {
    close_to(letter(i + 1) + "_n", got.moren[i], want.moren[i], forward);
    close_to("d" + letter(i + 1) + "_0", got.dmore0[i], want.dmore0[i], gradient);
  }
  close_to("dx", got.dx, want.dx, gradient);
  close_to("dh_0", got.dh0, want.dh0, gradient);
  for (std::size_t i = 0; i < want.dparams.size(); ++i) {
    close_to(Layer(c.whole.layer).parameters()[i].name, got.dparams[i], want.dparams[i], gradient);
  }
}

// What lies in the padding should reach nothing.
void poison_padding(const RaggedCase& c, Data& data) {
  if (c.whole.packed()) return;
  const std::int64_t width = c.whole.directions() * c.whole.layer.hidden_size;
  for (std::int64_t row = 0; row < c.whole.batch; ++row) {
    for (std::int64_t t = c.lengths[static_cast<std::size_t>(row)]; t < c.whole.steps; ++t) {
      const double value = t % 2 ? std::nan("") : std::numeric_limits<double>::infinity();
      const auto token = static_cast<std::ptrdiff_t>(c.token(row, t));
      std::fill_n(data.x.begin() + token * c.whole.layer.input_size, c.whole.layer.input_size,
                  value);
      std::fill_n(data.dy.begin() + token * width, width, value);
    }
  }
}

void expect_like_single_calls(RaggedCase c, Random& random) {
  // A norm of few values that are nearly equal makes their rounding large, so products that round
  // otherwise are not compared in fewer digits.
  if (c.whole.layer.layer_norm) c.whole.layer.dtype = Dtype::float64;
  Data data = random_data(c.whole, random);
  const Result want = one_by_one(c, data);
  poison_padding(c, data);
  expect_alike(c, at_once(c, data, random.bits() & 1), want);
}

std::vector<Way> ways_of(const LayerOptions& layer) {
  std::vector<Way> out = ways_of_layer(layer);
  out.emplace_back(Strategy::automatic);
  return out;
}

TEST(Ragged, EveryCellInEveryWay) {
  Random random(1501);
  for (const LayerOptions& options : few_layers()) {
    for (const Way& way : ways_of(options)) {
      for (int bits = 0; bits < 16; ++bits) {
        RaggedCase c = ragged_case(options, {7, 0, 12, 1, 12, 3}, bits & 1);
        c.whole.way = way;
        c.whole.layer.bidirectional = bits & 2;
        c.whole.layer.batch_first = bits & 4;
        c.whole.layer.num_layers = 1 + (bits & 8 ? 1 : 0);
        fit(c.whole.layer);
        c.whole.layer.dtype = bits & 1 ? Dtype::float64 : Dtype::float32;
        c.whole.h0 = bits != 3;
        c.whole.threads = 1 + bits % 3;
        if (bits % 3 != 0) reset_some(c, 0.2, random);
        expect_like_single_calls(c, random);
      }
    }
  }
}

TEST(Ragged, AnyLengths) {
  Random random(1502);
  const std::vector<std::vector<std::int64_t>> all{
      {0}, {1}, {0, 0, 0}, {4, 4, 4}, {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, {0, 9, 0}, {300, 1, 2}};
  for (const LayerOptions& options : few_layers()) {
    for (const auto& lengths : all) {
      for (bool packed : {false, true}) {
        RaggedCase c = ragged_case(options, lengths, packed);
        c.whole.layer.dtype = Dtype::float64;
        c.whole.layer.bidirectional = true;
        c.whole.threads = 2;
        expect_like_single_calls(c, random);
      }
    }
  }
}

// More sequences than a kernel takes at once, shared by threads in every way.
TEST(Ragged, ManySequences) {
  Random random(1503);
  for (const LayerOptions& options : few_layers()) {
    for (std::int64_t hidden : {4, 40}) {
      for (int threads : {1, 2, 5}) {
        for (bool packed : {false, true}) {
          std::vector<std::int64_t> lengths;
          for (int i = 0; i < 29; ++i) {
            lengths.push_back(static_cast<std::int64_t>(random.uniform(1, 0, 24)[0]));
          }
          RaggedCase c = ragged_case(options, lengths, packed);
          c.whole.layer.hidden_size = hidden;
          fit(c.whole.layer);
          c.whole.threads = threads;
          reset_some(c, 0.05, random);
          expect_like_single_calls(c, random);
        }
      }
    }
  }
}

// Sequences that begin and end anywhere in the tiles of a GPU's kernels, and states that its blocks
// hand to one another.
TEST(Ragged, AcrossTiles) {
  Random random(1508);
  for (const LayerOptions& options : few_layers()) {
    for (const Way& way : ways_of(options)) {
      for (int bits = 0; bits < 4; ++bits) {
        const bool dense = is_dense(options);
        RaggedCase c = dense ? ragged_case(options, {33, 1, 40, 0, 7, 16, 15, 17, 40, 2}, bits & 1)
                             : ragged_case(options, {15, 700, 0, 16, 1, 255, 257, 64}, bits & 1);
        c.whole.way = way;
        c.whole.layer.hidden_size = dense ? 150 : 40;
        c.whole.layer.bidirectional = bits & 2;
        fit(c.whole.layer);
        c.whole.layer.dtype = on_cuda() && bits == 3 ? Dtype::bfloat16 : Dtype::float32;
        c.whole.threads = 2;
        if (bits > 0) reset_some(c, 0.02, random);
        expect_like_single_calls(c, random);
      }
    }
  }
}

// Heads, of which a GPU's blocks take several or a part of one.
TEST(Ragged, Heads) {
  Random random(1511);
  for (const LayerOptions& options : few_variants()) {
    if (!is_dense(options)) continue;
    for (const Way& way : ways_of(options)) {
      for (const auto& [heads, hidden] : {std::pair{3, 39}, {2, 270}}) {
        for (int bits = 0; bits < 4; ++bits) {
          RaggedCase c = ragged_case(options, {17, 1, 0, 7, 16, 17, 2, 9}, bits & 1);
          c.whole.way = way;
          c.whole.layer.hidden_size = hidden;
          c.whole.layer.num_heads = heads;
          c.whole.layer.bidirectional = bits & 2;
          c.whole.layer.dtype = on_cuda() && bits == 3 ? Dtype::bfloat16 : Dtype::float32;
          c.whole.threads = 2;
          if (bits > 0) reset_some(c, 0.05, random);
          expect_like_single_calls(c, random);
        }
      }
    }
  }
}

// Units enough for a GPU to walk each sequence for itself, and lengths that do or do not let it.
TEST(Ragged, WideBatches) {
  Random random(1510);
  const std::vector<std::vector<std::int64_t>> all{{17, 16, 0, 33, 40, 1, 35, 38},
                                                   {170, 1, 2, 3, 0, 4, 0, 0}};
  for (const LayerOptions& options : few_layers()) {
    if (is_dense(options) || info(options.cell).square) continue;  // whose weights are too large
    for (const Way& way : {Way(Strategy::fused_sequential), Way(Strategy::parallel_scan),
                           Way(Strategy::automatic)}) {
      if (way == Strategy::parallel_scan && !is_linear(options)) continue;
      for (const auto& lengths : all) {
        for (int bits = 0; bits < 4; ++bits) {
          RaggedCase c = ragged_case(options, lengths, bits & 1);
          c.whole.way = way;
          c.whole.layer.hidden_size = on_cuda() ? 1100 : 110;
          c.whole.layer.bidirectional = bits & 2;
          c.whole.layer.dtype = on_cuda() && bits == 3 ? Dtype::bfloat16 : Dtype::float32;
          c.whole.h0 = bits != 2;
          c.whole.longest = bits == 3 ? *std::max_element(lengths.begin(), lengths.end()) : 0;
          expect_like_single_calls(c, random);
        }
      }
    }
  }
}

// A plan may be told how long the longest packed sequence is.
TEST(Ragged, TheLongestIsKnown) {
  Random random(1509);
  for (const LayerOptions& options : few_layers()) {
    for (const Way& way : ways_of(options)) {
      RaggedCase c = ragged_case(options, {7, 0, 12, 1, 12, 3}, true);
      c.whole.way = way;
      c.whole.longest = 12;
      expect_like_single_calls(c, random);
      c.whole.longest = c.whole.steps + 1;
      const Layer layer(c.whole.layer);
      const BatchShape shape{c.whole.steps, c.whole.batch, Batch::packed, c.whole.longest};
      EXPECT_THROW(layer.problem(shape, Mode::inference), std::exception);
    }
  }
}

TEST(Ragged, ResetsAnywhere) {
  Random random(1504);
  for (const LayerOptions& options : few_layers()) {
    for (bool packed : {false, true}) {
      for (double share : {0.0, 0.5, 1.0}) {
        RaggedCase c = ragged_case(options, {6, 6, 5}, packed);
        c.whole.layer.dtype = Dtype::float64;
        c.whole.layer.bidirectional = true;
        reset_some(c, share, random);
        expect_like_single_calls(c, random);
      }
      for (std::int64_t at : {0, 5}) {  // the first step, and the last
        RaggedCase c = ragged_case(options, {6, 6, 5}, packed);
        c.reset.assign(static_cast<std::size_t>(c.whole.tokens()), 0);
        c.reset[c.token(1, at)] = 1;
        expect_like_single_calls(c, random);
      }
    }
  }
}

TEST(Ragged, HalfPrecision) {
  Random random(1505);
  for (const LayerOptions& options : few_layers()) {
    for (Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
      for (bool packed : {false, true}) {
        RaggedCase c = ragged_case(options, {7, 0, 12, 1}, packed);
        c.whole.layer.dtype = dtype;
        c.whole.layer.num_layers = 2;
        reset_some(c, 0.2, random);
        expect_like_single_calls(c, random);
      }
    }
  }
}

// Nothing of a sequence that overflows reaches the next one, nor what comes after a reset.
TEST(Ragged, InfinitiesStayWhereTheyAre) {
  Random random(1506);
  for (const LayerOptions& options : few_layers()) {
    for (const Way& way : ways_of(options)) {
      RaggedCase c = ragged_case(options, {9, 9, 9}, true);
      c.whole.way = way;
      reset_some(c, 0, random);
      c.reset[c.token(1, 4)] = 1;
      Data data = random_data(c.whole, random);
      const auto put = [&](std::int64_t row, std::int64_t t) {
        const auto at = static_cast<std::ptrdiff_t>(c.token(row, t)) * c.whole.layer.input_size;
        data.x[static_cast<std::size_t>(at)] = std::nan("");
      };
      put(0, 5);
      put(1, 2);
      const Result got = forward_alone(c, data);
      const std::int64_t width = c.whole.layer.hidden_size;
      for (std::int64_t row : {0, 1, 2}) {
        for (std::int64_t t = 0; t < 9; ++t) {
          const bool lost = (row == 0 && t >= 5) || (row == 1 && t >= 2 && t < 4);
          const double y = got.y[c.token(row, t) * static_cast<std::size_t>(width)];
          EXPECT_EQ(std::isnan(y), lost) << text(c.whole) << " row " << row << " t " << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
