// SPDX-License-Identifier: Apache-2.0
// The calls of a ragged batch, at once and one by one.
#include "support/one_by_one.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/compare.h"

namespace scanrnn::test {

namespace {

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

// Calls use(offset of a sequence's row in [L*D,B,.], offset in [L*D,1,.], whether it belongs to the
// reverse direction) for each layer and direction of a tensor of the state with rows of `width`.
template <class F>
void for_states(const Case& c, std::int64_t row, std::int64_t width, F&& use) {
  for (std::int64_t i = 0; i < c.layer.num_layers * c.directions(); ++i) {
    use((i * c.batch + row) * width, i * width, i % c.directions() == 1);
  }
}

}  // namespace

Result one_by_one(const RaggedCase& c, const Data& data) {
  const Case& whole = c.whole;
  const std::int64_t width = whole.directions() * whole.features();
  Result out;
  out.y.assign(static_cast<std::size_t>(whole.outputs()), 0);
  out.dx.assign(static_cast<std::size_t>(whole.inputs()), 0);
  // A sequence without steps hands its states on.
  out.hn = whole.h0 ? data.h0 : Values(static_cast<std::size_t>(whole.states()), 0);
  out.dh0 = data.dhn;
  const std::vector<double>& fresh = info(whole.layer.cell).fresh;
  for (std::size_t i = 0; i < whole.more_states(); ++i) {
    const auto states = static_cast<std::size_t>(whole.states(i + 1));
    out.moren[i] = whole.h0 ? data.more0[i] : Values(states, fresh[i + 1]);
    out.dmore0[i] = data.dmoren[i];
  }
  for (const Values& parameter : data.params) out.dparams.emplace_back(parameter.size(), 0);
  for (const Stretch& s : stretches(c)) {
    Case one = whole;
    one.layout = dispatch::Batch::rectangular;
    one.longest = 0;
    one.steps = s.end - s.begin;
    one.batch = 1;
    one.h0 = true;
    Data part;
    part.params = data.params;
    part.x = rows_of(c, s, data.x, whole.layer.input_size);
    part.dy = rows_of(c, s, data.dy, width);
    const auto cut = [&](std::size_t i, const Values& all, bool is_start, double absent = 0) {
      Values rows(static_cast<std::size_t>(one.states(i)), absent);
      const std::int64_t size = one.features(i);
      for_states(whole, s.row, size, [&](std::int64_t from, std::int64_t to, bool reverse) {
        const bool mine = is_start ? (reverse ? s.last : s.own) : (reverse ? s.first : s.last);
        if (mine && !all.empty()) std::copy_n(all.begin() + from, size, rows.begin() + to);
      });
      return rows;
    };
    part.h0 = cut(0, data.h0, true);
    part.dhn = cut(0, data.dhn, false);
    for (std::size_t i = 0; i < whole.more_states(); ++i) {
      part.more0[i] = cut(i + 1, data.more0[i], true, fresh[i + 1]);
      part.dmoren[i] = cut(i + 1, data.dmoren[i], false);
    }
    const Result got = library(one, part);
    put_rows(c, s, got.y, width, out.y);
    put_rows(c, s, got.dx, whole.layer.input_size, out.dx);
    const auto put = [&](std::size_t i, const Values& rows, bool is_start, Values& all) {
      const std::int64_t size = one.features(i);
      for_states(whole, s.row, size, [&](std::int64_t to, std::int64_t from, bool reverse) {
        const bool mine = is_start ? (reverse ? s.last : s.first) : (reverse ? s.first : s.last);
        const bool dead = is_start && !reverse && !s.own;  // reset at once
        if (!mine) return;
        for (std::int64_t k = 0; k < size; ++k) {
          all[static_cast<std::size_t>(to + k)] =
              dead ? 0 : rows[static_cast<std::size_t>(from + k)];
        }
      });
    };
    put(0, got.hn, false, out.hn);
    put(0, got.dh0, true, out.dh0);
    for (std::size_t i = 0; i < whole.more_states(); ++i) {
      put(i + 1, got.moren[i], false, out.moren[i]);
      put(i + 1, got.dmore0[i], true, out.dmore0[i]);
    }
    for (std::size_t i = 0; i < got.dparams.size(); ++i) {
      for (std::size_t k = 0; k < got.dparams[i].size(); ++k) {
        out.dparams[i][k] += got.dparams[i][k];
      }
    }
  }
  return out;
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

Result with_states(const RaggedCase& c, const Data& data, bool in_place) {
  const Arguments arguments(c, false, shared_context(c.whole.threads));
  return with_states(c.whole, data, arguments.ragged(), in_place);
}
Result with_states(const Case& c, const Data& data, const Ragged& ragged, bool in_place) {
  Context& context = shared_context(c.threads);
  Buffers ahead(c, data), back(c, data);
  const auto enter = [&](auto& args) { args.ragged = ragged; };
  ahead.forward(context, Mode::training, 0, [&](ForwardArgs& args) {
    enter(args);
    if (in_place) args.hn = args.h0;
  });
  back.forward(context, Mode::training, 0, enter);
  back.backward(context, 0, [&](BackwardArgs& args) {
    enter(args);
    if (in_place) args.dh0 = args.dhn;
  });
  Result out = back.result();
  out.y = ahead.result().y;
  out.hn = (in_place ? ahead.h0 : ahead.hn).values();
  out.dh0 = (in_place ? back.dhn : back.dh0).values();
  for (std::size_t i = 0; i < c.more_states(); ++i) {
    out.moren[i] = (in_place ? ahead.more0 : ahead.moren)[i].values();
    out.dmore0[i] = (in_place ? back.dmoren : back.dmore0)[i].values();
  }
  return out;
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

namespace {

// Nor should a state that comes into no step.
void poison_states(const RaggedCase& c, Data& data) {
  if (c.whole.directions() > 1) return;
  const auto poison = [&](Values& states) {
    const auto count = static_cast<std::int64_t>(states.size());
    const std::int64_t width = count / (c.whole.layer.num_layers * c.whole.batch);
    for (std::int64_t i = 0; i * width < count; ++i) {
      const std::int64_t row = i % c.whole.batch;
      if (c.lengths[static_cast<std::size_t>(row)] == 0 || !c.resets(row, 0)) continue;
      std::fill_n(states.begin() + static_cast<std::ptrdiff_t>(i * width), width, std::nan(""));
    }
  };
  poison(data.h0);
  for (Values& states : data.more0) poison(states);
}

}  // namespace

void poison_padding(const RaggedCase& c, Data& data) {
  poison_states(c, data);
  if (c.whole.packed()) return;
  const std::int64_t width = c.whole.directions() * c.whole.features();
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

Result trained(const RaggedCase& c, const Data& data, std::uint64_t seed) {
  Context& context = shared_context(c.whole.threads);
  const Arguments arguments(c, false, context);
  Buffers buffers(c.whole, data);
  const auto add = [&](auto& args) { args.ragged = arguments.ragged(); };
  buffers.forward(context, Mode::training, seed, add);
  buffers.backward(context, seed, add);
  return buffers.result();
}

void expect_like_steps(RaggedCase c, Random& random, std::uint64_t seed) {
  Data data = random_data(c.whole, random);
  poison_padding(c, data);
  const Result got = trained(c, data, seed);
  c.whole.way = dispatch::Strategy::step_loop;
  expect_alike(c, got, trained(c, data, seed));
}

}  // namespace scanrnn::test
