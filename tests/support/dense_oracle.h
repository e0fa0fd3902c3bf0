// SPDX-License-Identifier: Apache-2.0
// The second opinion on RNN, LSTM and GRU: docs/maths.md's equations in plain loops and their chain
// rule, in long double. One direction of one layer over tensors in [T,B,.] order.
#pragma once

#include "support/oracle_parts.h"

namespace scanrnn::test::oracle {

struct DenseDirection {
  std::string cell, variant;
  std::int64_t steps, batch, in, hidden;
  bool reverse;
  const Values *weight_ih, *weight_hh, *bias_ih, *bias_hh;  // biases may be null
  const Values *h0, *c0;                                    // may be null or empty
  std::size_t state_at;                                     // where this direction's [B,H] begins
  Storage* store;

  std::int64_t gates() const { return cell == "RNN" ? 1 : cell == "LSTM" ? 4 : 3; }

  // All steps of one sequence: the states before and after each, and W x + b, R h + b. What is kept
  // for backward of LSTM is their sum, in u.
  struct Trace {
    std::vector<Reals> h, c;  // [steps + 1][H]
    std::vector<Reals> u, m;  // [steps][gates * H]
  };

  static Reals affine(const Values& weight, const Values* bias, const Real* x, std::int64_t width) {
    const std::size_t rows = weight.size() / static_cast<std::size_t>(width);
    Reals out(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      Real sum = bias ? (*bias)[row] : 0.0;
      for (std::int64_t k = 0; k < width; ++k) {
        sum += weight[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(k)] * x[k];
      }
      out[row] = sum;
    }
    return out;
  }
  // The sums as backward finds them: one of W x + R h where the cell adds them, each of both where
  // it does not.
  void keep(Reals& u, Reals& m) const {
    const auto added = static_cast<std::size_t>((cell == "GRU" ? 2 : gates()) * hidden);
    for (std::size_t i = 0; i < u.size(); ++i) {
      const Real mine = i < added ? u[i] + m[i] : u[i];
      const Real change = store->logit(mine) - mine;
      u[i] += change;
      if (i >= added) m[i] = store->logit(m[i]);
    }
  }
  std::int64_t time(std::int64_t s) const { return reverse ? steps - 1 - s : s; }

  Trace trace(const Reals& x, std::int64_t b) const {
    Trace out;
    const auto H = static_cast<std::size_t>(hidden);
    const auto start = [&](const Values* state) {
      Reals first(H);
      for (std::size_t j = 0; state && !state->empty() && j < H; ++j) {
        first[j] = (*state)[state_at + static_cast<std::size_t>(b) * H + j];
      }
      return first;
    };
    out.h.push_back(start(h0));
    out.c.push_back(start(c0));
    for (std::int64_t s = 0; s < steps; ++s) {
      Reals u = affine(*weight_ih, nullptr, x.data() + (time(s) * batch + b) * in, in);
      (*store)(u);
      for (std::size_t i = 0; bias_ih && i < u.size(); ++i) u[i] += (*bias_ih)[i];
      Reals fed = out.h.back();
      (*store)(fed);
      Reals m = affine(*weight_hh, bias_hh, fed.data(), hidden);
      Reals h(H), c(H);
      for (std::size_t j = 0; j < H; ++j) {
        if (cell == "LSTM") {
          const Real i = sigmoid(u[j] + m[j]), f = sigmoid(u[H + j] + m[H + j]);
          const Real g = std::tanh(u[2 * H + j] + m[2 * H + j]);
          const Real o = sigmoid(u[3 * H + j] + m[3 * H + j]);
          c[j] = f * out.c.back()[j] + i * g;
          h[j] = o * std::tanh(c[j]);
        } else if (cell == "GRU") {
          const Real r = sigmoid(u[j] + m[j]), z = sigmoid(u[H + j] + m[H + j]);
          const Real n = std::tanh(u[2 * H + j] + r * m[2 * H + j]);
          h[j] = sigmoid(-u[H + j] - m[H + j]) * n + z * out.h.back()[j];
        } else if (cell == "RNN") {
          h[j] = value_of(variant, u[j] + m[j]);
        } else {
          throw std::logic_error("the oracle has no " + cell);
        }
      }
      keep(u, m);
      out.u.push_back(u);
      out.m.push_back(m);
      out.h.push_back(h);
      out.c.push_back(c);
    }
    return out;
  }

  void forward(const Reals& x, Reals& y, std::int64_t width, std::int64_t column, Real* hn,
               Real* cn, Real& largest) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      const Trace all = trace(x, b);
      for (std::int64_t s = 0; s < steps; ++s) {
        Reals h = all.h[static_cast<std::size_t>(s) + 1];
        (*store)(h);
        std::copy(h.begin(), h.end(), y.begin() + (time(s) * batch + b) * width + column);
      }
      for (const Reals& h : all.h) {
        for (Real value : h) largest = std::fmax(largest, std::fabs(value));
      }
      for (std::int64_t j = 0; j < hidden; ++j) {
        hn[b * hidden + j] = (*store)(all.h.back()[static_cast<std::size_t>(j)]);
        cn[b * hidden + j] = (*store)(all.c.back()[static_cast<std::size_t>(j)]);
      }
    }
  }

  struct Gradients {
    Sum weight_ih, weight_hh, bias;  // of both biases: bias_ih, then bias_hh
  };

  void backward(const Reals& x, const Reals& dy, std::int64_t width, std::int64_t column,
                const Values& dhn, const Values& dcn, Reals& dx, Real* dh0, Real* dc0,
                Real* dh0_squares, Gradients& d) const {
    const auto H = static_cast<std::size_t>(hidden), C = static_cast<std::size_t>(in);
    const std::size_t rows = static_cast<std::size_t>(gates()) * H;
    for (std::int64_t b = 0; b < batch; ++b) {
      const Trace all = trace(x, b);
      const std::size_t at = state_at + static_cast<std::size_t>(b) * H;
      Reals dh(H), dc(H), squares(H);
      for (std::size_t j = 0; j < H; ++j) {
        dh[j] = dhn[at + j];
        dc[j] = dcn.empty() ? 0.0 : dcn[at + j];
        squares[j] = dh[j] * dh[j];
      }
      for (std::int64_t s = steps - 1; s >= 0; --s) {
        const auto step = static_cast<std::size_t>(s);
        const std::int64_t token = time(s) * batch + b;
        const Reals &u = all.u[step], &m = all.m[step];
        Reals before = all.h[step], cells = all.c[step];
        (*store)(before);
        (*store)(cells);
        Reals du(rows), dm(rows), dh_before(H), dc_before(H);
        for (std::size_t j = 0; j < H; ++j) {
          const Real out = dh[j] + dy[static_cast<std::size_t>(token * width + column) + j];
          if (cell == "LSTM") {
            const Real i = sigmoid(u[j] + m[j]), f = sigmoid(u[H + j] + m[H + j]);
            const Real g = std::tanh(u[2 * H + j] + m[2 * H + j]);
            const Real o = sigmoid(u[3 * H + j] + m[3 * H + j]);
            const Real y = std::tanh(f * cells[j] + i * g);
            const Real into_c = dc[j] + out * o * (1 - y * y);
            du[j] = into_c * g * i * (1 - i);
            du[H + j] = into_c * cells[j] * f * (1 - f);
            du[2 * H + j] = into_c * i * (1 - g * g);
            du[3 * H + j] = out * y * o * (1 - o);
            for (std::size_t gate = 0; gate < 4; ++gate) dm[gate * H + j] = du[gate * H + j];
            dc_before[j] = into_c * f;
          } else if (cell == "RNN") {
            du[j] = dm[j] = out * slope_of(variant, u[j] + m[j]);
          } else {
            const Real r = sigmoid(u[j] + m[j]), z = sigmoid(u[H + j] + m[H + j]);
            const Real n = std::tanh(u[2 * H + j] + r * m[2 * H + j]);
            const Real into_n = out * sigmoid(-u[H + j] - m[H + j]) * (1 - n * n);
            du[j] = dm[j] = into_n * m[2 * H + j] * r * (1 - r);
            du[H + j] = dm[H + j] = out * (before[j] - n) * z * (1 - z);
            du[2 * H + j] = into_n;
            dm[2 * H + j] = into_n * r;
            dh_before[j] = out * z;
          }
        }
        (*store)(du);
        (*store)(dm);
        for (std::size_t j = 0; j < H; ++j) squares[j] = dh_before[j] * dh_before[j];
        for (std::size_t row = 0; row < rows; ++row) {
          for (std::size_t k = 0; k < H; ++k) {
            const Real term = dm[row] * (*weight_hh)[row * H + k];
            dh_before[k] += term;
            squares[k] += term * term;
            d.weight_hh.add(row * H + k, dm[row] * before[k]);
          }
          for (std::size_t k = 0; k < C; ++k) {
            dx[static_cast<std::size_t>(token) * C + k] += du[row] * (*weight_ih)[row * C + k];
            d.weight_ih.add(row * C + k, du[row] * x[static_cast<std::size_t>(token) * C + k]);
          }
          d.bias.add(row, du[row]);
          d.bias.add(rows + row, dm[row]);
        }
        dh = dh_before;
        dc = dc_before;
      }
      (*store)(dh);
      (*store)(dc);
      std::copy(dh.begin(), dh.end(), dh0 + b * hidden);
      std::copy(dc.begin(), dc.end(), dc0 + b * hidden);
      std::copy(squares.begin(), squares.end(), dh0_squares + b * hidden);
    }
    (*store)(dx);
  }
};

// The whole stack of a dense cell.
inline Answer run_dense(const Case& c, const Data& data, bool with_backward, bool as_cuda) {
  const CellInfo& cell = info(c.layer.cell);
  const std::int64_t hidden = c.layer.hidden_size, tokens = c.steps * c.batch;
  const std::int64_t width = c.directions() * hidden;
  const std::size_t each = c.layer.bias ? 4 : 2;  // parameters of a direction
  const auto first = [&](int l, int d) {
    return static_cast<std::size_t>(l * c.directions() + d) * each;
  };
  Storage store(c.layer.dtype, as_cuda);
  const auto direction = [&](int l, int d) {
    const Values* own = &data.params[first(l, d)];
    const bool bias = c.layer.bias;
    return DenseDirection{cell.name,
                          cell.variants[static_cast<std::size_t>(c.layer.variant)],
                          c.steps,
                          c.batch,
                          c.input_size(l),
                          hidden,
                          d == 1,
                          own,
                          own + 1,
                          bias ? own + 2 : nullptr,
                          bias ? own + 3 : nullptr,
                          &data.h0,
                          &data.c0,
                          first(l, d) / each * static_cast<std::size_t>(c.batch * hidden),
                          &store};
  };
  Answer out;
  Real largest = 0;
  Reals hn(static_cast<std::size_t>(c.states())), cn(hn), dh0(hn), dc0(hn), dh0_squares(hn);
  std::vector<Reals> inputs{{data.x.begin(), data.x.end()}};
  for (int l = 0; l < c.layer.num_layers; ++l) {
    Reals y(static_cast<std::size_t>(tokens * width));
    for (int d = 0; d < c.directions(); ++d) {
      const DenseDirection part = direction(l, d);
      part.forward(inputs.back(), y, width, d * hidden, hn.data() + part.state_at,
                   cn.data() + part.state_at, largest);
    }
    if (l + 1 == c.layer.num_layers) out.y = narrow(y);
    inputs.push_back(std::move(y));
  }
  out.hn = narrow(hn);
  if (cell.states == 2) out.cn = narrow(cn);
  out.terms.state = static_cast<double>(largest);
  out.terms.logit_error = store.logit_error();
  if (!with_backward) return out;

  Reals dy(data.dy.begin(), data.dy.end());
  out.dparams.resize(data.params.size());
  out.terms.dparams.resize(data.params.size());
  for (int l = c.layer.num_layers - 1; l >= 0; --l) {
    Reals dx(static_cast<std::size_t>(tokens * c.input_size(l)));
    for (int d = 0; d < c.directions(); ++d) {
      const DenseDirection part = direction(l, d);
      const auto rows = static_cast<std::size_t>(part.gates() * hidden);
      DenseDirection::Gradients gradients{Sum(part.weight_ih->size()), Sum(part.weight_hh->size()),
                                          Sum(2 * rows)};
      part.backward(inputs[static_cast<std::size_t>(l)], dy, width, d * hidden, data.dhn, data.dcn,
                    dx, dh0.data() + part.state_at, dc0.data() + part.state_at,
                    dh0_squares.data() + part.state_at, gradients);
      for (Sum* sum : {&gradients.weight_ih, &gradients.weight_hh, &gradients.bias}) {
        store(sum->values);
      }
      const auto give = [&](std::size_t i, const Sum& sum, std::size_t begin, std::size_t end) {
        const auto part_of = [&](const Reals& all) {
          return Reals(all.begin() + static_cast<std::ptrdiff_t>(begin),
                       all.begin() + static_cast<std::ptrdiff_t>(end));
        };
        out.dparams[first(l, d) + i] = narrow(part_of(sum.values));
        out.terms.dparams[first(l, d) + i] = roots(part_of(sum.squares));
      };
      give(0, gradients.weight_ih, 0, part.weight_ih->size());
      give(1, gradients.weight_hh, 0, part.weight_hh->size());
      if (!c.layer.bias) continue;
      give(2, gradients.bias, 0, rows);
      give(3, gradients.bias, rows, 2 * rows);
    }
    dy = std::move(dx);
  }
  out.dx = narrow(dy);
  out.dh0 = narrow(dh0);
  if (cell.states == 2) out.dc0 = narrow(dc0);
  out.terms.dh0 = roots(dh0_squares);
  return out;
}

}  // namespace scanrnn::test::oracle
