// SPDX-License-Identifier: Apache-2.0
// Numbers and calls of bare scans, and the loop that they are held to.
#include "support/scan_case.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

namespace scanrnn::test {

std::string text(const ScanCase& c) {
  std::ostringstream out;
  out << "T" << c.steps << "_B" << c.lines << "_N" << c.rows << '_' << name(c.dtype) << "_form"
      << static_cast<int>(c.form) << '_' << name(c.way) << "_order" << static_cast<int>(c.order)
      << (c.reverse ? "_reverse" : "") << (c.signs ? "_signs" : "") << (c.h0 ? "_h0" : "")
      << "_reset" << c.reset_share << (c.shares_resets ? "_shared" : "");
  return out.str();
}

namespace {

double part_rounded(double value, Dtype dtype) {
  return rounded(value, dtype == Dtype::complex64    ? Dtype::float32
                        : dtype == Dtype::complex128 ? Dtype::float64
                                                     : dtype);
}
Wide rounded_to(Wide value, Dtype dtype) {
  return {part_rounded(static_cast<double>(value.real()), dtype),
          part_rounded(static_cast<double>(value.imag()), dtype)};
}

}  // namespace

ScanNumbers draw(const ScanCase& c, Random& random, double least_decay) {
  ScanNumbers out;
  const auto number = [&](double low, double high) -> Wide {
    const double im = c.parts() == 2 ? random.uniform(low, high) : 0;
    return {random.uniform(low, high), im};
  };
  const auto sign = [&] { return c.signs && random.uniform(-1, 1) < 0 ? -1.0L : 1.0L; };
  for (std::size_t i = 0; i < c.count(); ++i) {
    Wide a = c.parts() == 2
                 ? std::polar<long double>(random.uniform(least_decay, 1), random.uniform(-3, 3))
                 : Wide(random.uniform(least_decay, 1));
    Wide b = number(-1, 1);
    const long double s = sign();
    if (c.logs()) a = std::log(a.real()), b = std::log(std::fabs(b.real()));
    out.a.push_back(rounded_to(a, c.dtype));
    out.b.push_back(rounded_to(b, c.dtype));
    out.sign_b.push_back(s);
    out.dh.push_back(rounded_to(number(-1, 1), c.dtype));
    const bool cut = random.uniform(0, 1) < c.reset_share;
    const bool again = c.shares_resets && i % static_cast<std::size_t>(c.rows) != 0;
    out.reset.push_back(again ? out.reset.back() : cut);
  }
  for (std::size_t i = 0; i < c.states(); ++i) {
    Wide h0 = number(-1, 1);
    if (c.log_states()) h0 = std::log(std::fabs(h0.real()));
    out.h0.push_back(rounded_to(h0, c.dtype));
    out.sign_h0.push_back(c.h0 ? sign() : 1.0L);
  }
  return out;
}

void walk_exactly(const ScanCase& c, ScanNumbers& n) {
  const long double lowest = -std::numeric_limits<long double>::infinity();
  n.h.assign(c.count(), 0);
  n.sign_h.assign(c.count(), 1);
  n.da = n.db = n.h;
  n.dh0.assign(c.states(), 0);
  for (std::size_t row = 0; row < c.states(); ++row) {
    Numbers states{c.h0 ? n.h0[row] : Wide(0)};
    if (c.log_states()) {
      states[0] = c.h0 ? n.sign_h0[row] * std::exp(n.h0[row].real()) : Wide(0);
    }
    const auto decay = [&](std::size_t at) -> Wide {
      if (c.reset_share >= 0 && n.reset[at]) return 0;
      return c.logs() ? Wide(std::exp(n.a[at].real())) : n.a[at];
    };
    const auto input = [&](std::size_t at) -> Wide {
      if (!c.logs()) return n.b[at];
      return (c.signs ? n.sign_b[at] : Wide(1)) * std::exp(n.b[at].real());
    };
    for (std::int64_t t = 0; t < c.steps; ++t) {
      const std::size_t at = c.at(t, row);
      const Wide a = decay(at);
      states.push_back(a == Wide(0) ? input(at) : a * states.back() + input(at));
      n.h[at] = states.back();
      if (!c.log_states()) continue;
      const long double h = states.back().real();
      n.h[at] = h == 0 ? lowest : std::log(std::fabs(h));
      n.sign_h[at] = h < 0 ? -1 : 1;
    }
    // lambda is the cotangent of the state itself.
    Wide lambda = 0, decay_after = 0;
    for (std::int64_t t = c.steps; t-- > 0;) {
      const std::size_t at = c.at(t, row), i = static_cast<std::size_t>(t);
      Wide direct = n.dh[at];
      if (c.log_states()) direct = states[i + 1] == Wide(0) ? 0 : direct / states[i + 1];
      lambda = direct + std::conj(decay_after) * lambda;
      decay_after = decay(at);
      const bool cut = decay_after == Wide(0);
      n.da[at] = cut && c.reset_share >= 0 && n.reset[at] ? 0 : lambda * std::conj(states[i]);
      n.db[at] = lambda;
      if (c.logs()) n.da[at] *= decay_after, n.db[at] *= input(at);
    }
    n.dh0[row] = std::conj(decay_after) * lambda;
    if (c.log_states()) n.dh0[row] *= states[0];
    if (c.steps == 0) n.dh0[row] = 0;
  }
}

ScanTensor::ScanTensor(Context& context, Dtype dtype, std::int64_t steps, std::int64_t lines,
                       std::int64_t rows, Order order)
    : dtype_(dtype), sizes_{steps, lines, rows} {
  switch (order) {
    case Order::rows_adjacent:
      strides_ = {lines * (rows + 1), rows + 1, 1};
      break;
    case Order::time_adjacent:
      strides_ = {1, rows * steps + 3, steps};
      break;
    case Order::time_packed:
      strides_ = {1, rows * steps, steps};
      break;
    case Order::rows_apart:
      strides_ = {2 * rows * lines, 2 * rows, 2};
      break;
    case Order::lines_inside:
      strides_ = {lines * rows, 1, lines};
      break;
  }
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 3; ++i)
    last += std::max<std::int64_t>(0, sizes_[i] - 1) * strides_[i];
  bytes_.assign(static_cast<std::size_t>(last + 1) * size_of(dtype), 0xFF);
  memory_ = Buffer(context, bytes_.size());
  memory_.upload(bytes_.data(), bytes_.size());
  device_ = context.options().device;
}

template <class F>
void ScanTensor::each(F&& use) {
  std::size_t i = 0;
  for (std::int64_t t = 0; t < sizes_[0]; ++t) {
    for (std::int64_t line = 0; line < sizes_[1]; ++line) {
      for (std::int64_t row = 0; row < sizes_[2]; ++row) {
        const std::int64_t at = t * strides_[0] + line * strides_[1] + row * strides_[2];
        use(i++, bytes_.data() + static_cast<std::size_t>(at) * size_of(dtype_));
      }
    }
  }
}

void ScanTensor::fill(const Numbers& values) {
  each([&](std::size_t i, std::uint8_t* to) {
    const auto put = [&](long double value, std::uint8_t* at, Dtype dtype) {
      const std::uint64_t bits = encode(static_cast<double>(value), dtype);
      std::memcpy(at, &bits, size_of(dtype));
    };
    if (!is_complex(dtype_)) return put(values[i].real(), to, dtype_);
    put(values[i].real(), to, part());
    put(values[i].imag(), to + size_of(part()), part());
  });
  memory_.upload(bytes_.data(), bytes_.size());
}

void ScanTensor::fill(const std::vector<std::uint8_t>& flags) {
  each([&](std::size_t i, std::uint8_t* to) { *to = flags[i]; });
  memory_.upload(bytes_.data(), bytes_.size());
}

Numbers ScanTensor::values() {
  memory_.download(bytes_.data(), bytes_.size());
  Numbers out;
  each([&](std::size_t, const std::uint8_t* from) {
    const auto get = [&](const std::uint8_t* at, Dtype dtype) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, at, size_of(dtype));
      return static_cast<long double>(decode(bits, dtype));
    };
    if (!is_complex(dtype_)) {
      out.push_back(get(from, dtype_));
    } else {
      out.emplace_back(get(from, part()), get(from + size_of(part()), part()));
    }
  });
  return out;
}

bool ScanTensor::intact() {
  std::vector<std::uint8_t> rest = bytes_;
  each([&](std::size_t, const std::uint8_t* at) {
    std::fill_n(rest.begin() + (at - bytes_.data()), size_of(dtype_), std::uint8_t{0xFF});
  });
  return std::all_of(rest.begin(), rest.end(), [](std::uint8_t byte) { return byte == 0xFF; });
}

TensorView ScanTensor::view(bool has_time) const {
  TensorView out = TensorView::of(memory_.data(), dtype_, {}, device_);
  const std::size_t first = has_time ? 0 : 1;
  out.rank = has_time ? 3 : 2;
  for (std::size_t i = first; i < 3; ++i) {
    out.sizes[i - first] = sizes_[i];
    out.strides[i - first] = strides_[i];
  }
  return out;
}

dispatch::Plan plan_of(const Context& context, const ScanCase& c, bool training) {
  return c.way.splits(linear_scan_plan(
      context, {c.steps, c.lines, c.rows, c.dtype, c.form, training, has_adjacent_steps(c.order)},
      c.way.strategy));
}

ScanNumbers run(const ScanCase& c, const ScanNumbers& n, Context& context, bool training,
                const std::function<void(ScanArgs&)>& change,
                const std::function<void(ScanBackwardArgs&)>& change_back) {
  const auto over_time = [&](Dtype dtype) {
    return ScanTensor(context, dtype, c.steps, c.lines, c.rows, c.order);
  };
  const auto at_start = [&] {
    const bool dense = c.order == Order::time_adjacent || c.order == Order::rows_adjacent;
    return ScanTensor(context, c.dtype, 1, c.lines, c.rows, dense ? Order::rows_adjacent : c.order);
  };
  ScanTensor a = over_time(c.dtype), b = over_time(c.dtype), sign_b = over_time(c.dtype),
             h = over_time(c.dtype), sign_h = over_time(c.dtype), dh = over_time(c.dtype),
             da = over_time(c.dtype), db = over_time(c.dtype), reset = over_time(Dtype::boolean),
             h0 = at_start(), sign_h0 = at_start(), dh0 = at_start();
  a.fill(n.a), b.fill(n.b), sign_b.fill(n.sign_b), dh.fill(n.dh), reset.fill(n.reset);
  h0.fill(n.h0), sign_h0.fill(n.sign_h0);
  const dispatch::Plan plan = plan_of(context, c, training);
  Scratch workspace(context, linear_scan_workspace(plan));
  ScanArgs args;
  args.form = c.form;
  args.reverse = c.reverse;
  args.a = a.view();
  args.b = b.view();
  if (c.logs() && c.signs) args.sign_b = sign_b.view();
  if (c.reset_share >= 0) args.reset = reset.view();
  if (c.shares_resets) args.reset.strides[2] = 0;
  if (c.h0) args.h0 = h0.view(false);
  if (c.h0 && c.log_states() && c.signs) args.sign_h0 = sign_h0.view(false);
  args.h = h.view();
  if (c.log_states()) args.sign_h = sign_h.view();
  args.workspace = workspace.span();
  change(args);
  linear_scan(context, plan, args);
  ScanNumbers out;
  out.h = h.values();
  EXPECT_TRUE(h.intact()) << text(c);
  if (c.log_states()) out.sign_h = sign_h.values();
  if (training) {
    ScanBackwardArgs back;
    back.form = args.form;
    back.reverse = args.reverse;
    back.a = args.a;
    if (c.logs()) back.b = args.b;
    back.sign_b = args.sign_b;
    back.reset = args.reset;
    back.h0 = args.h0;
    back.sign_h0 = args.sign_h0;
    back.h = args.h;
    back.sign_h = args.sign_h;
    back.dh = dh.view();
    back.da = da.view();
    back.db = db.view();
    back.dh0 = dh0.view(false);
    back.workspace = workspace.span();
    change_back(back);
    linear_scan_backward(context, plan, back);
    out.da = da.values();
    out.db = db.values();
    out.dh0 = dh0.values();
    EXPECT_TRUE(da.intact() && db.intact() && dh0.intact()) << text(c);
  }
  EXPECT_TRUE(workspace.intact()) << text(c);
  return out;
}

Values flat(const Numbers& numbers) {
  Values out;
  for (const Wide& number : numbers) {
    out.push_back(static_cast<double>(number.real()));
    out.push_back(static_cast<double>(number.imag()));
  }
  return out;
}

}  // namespace scanrnn::test
