// SPDX-License-Identifier: Apache-2.0
// The second opinion on linear and diagonal cells: docs/maths.md's equations in the plainest scalar
// code, one step at a time, in long double, forward and by the textbook chain rule.
#pragma once

#include "support/oracle_parts.h"

namespace scanrnn::test::oracle {

// A cell with its variant: the two names that its equations depend on.
struct Equations {
  std::string cell, variant;

  bool is_sru() const { return cell == "SRU" || cell == "PeepholeSRU"; }
  int gates() const { return cell == "IndRNN" ? 1 : cell == "MinGRU" || cell == "RGLRU" ? 2 : 3; }
  // Which block of bias, [gates*H], belongs to this row block of the weight; -1: none.
  int bias_block(int gate) const { return is_sru() ? gate - 1 : gate; }
  bool reads_out() const { return is_sru() || cell == "QRNN"; }
  bool reads_x() const { return is_sru(); }             // in the output
  bool reads_own_x() const { return cell == "RGLRU"; }  // in the state
  // Vectors of one value a unit, and the gate that a vector times the state before is added to.
  int vectors() const { return cell == "PeepholeSRU" ? 2 : cell == "IndRNN" || reads_own_x(); }
  int peeks_at(int vector) const {
    return cell == "PeepholeSRU" ? 1 + vector : cell == "IndRNN" ? 0 : -1;
  }

  // What RG-LRU makes of its gates, x and Lambda.
  struct Decay {
    Real log_a, a, root;
  };
  static Decay decay(Real k, Real lambda) {
    const Real log_a = -8 * std::log1p(std::exp(lambda)) * sigmoid(k);
    return {log_a, std::exp(log_a), std::sqrt(-std::expm1(2 * log_a))};
  }

  // h_t = a h_{t-1} + b from the pre-activations k; z is 1 - a, for those who want its digits.
  struct Lifted {
    Real a, z, b;
  };
  Lifted lift(const Real* k, Real x = 0, Real lambda = 0) const {
    if (cell == "RGLRU") {
      const Decay d = decay(k[0], lambda);
      return {d.a, -std::expm1(d.log_a), d.root * sigmoid(k[1]) * x};
    }
    if (cell == "IndRNN") return {0, 1, value_of(variant, k[0])};
    if (cell == "MinGRU") {
      const Real z = sigmoid(k[0]);
      return {sigmoid(-k[0]), z, z * value_of(variant, k[1])};
    }
    if (cell == "MinLSTM") {
      const Real f = sigmoid(k[0]), i = sigmoid(k[1]);
      return {f / (f + i), i / (f + i), i / (f + i) * value_of(variant, k[2])};
    }
    if (is_sru()) {
      return {sigmoid(k[1]), sigmoid(-k[1]), sigmoid(-k[1]) * k[0]};
    }
    if (cell == "QRNN") {
      return {sigmoid(k[1]), sigmoid(-k[1]), sigmoid(-k[1]) * std::tanh(k[0])};
    }
    throw std::logic_error("the oracle has no " + cell);
  }
  // Adds to dk what the cotangents of a and b give, and to dx and dlambda.
  void lift_vjp(const Real* k, Real da, Real db, Real* dk, Real x = 0, Real lambda = 0,
                Real* dx = nullptr, Real* dlambda = nullptr) const {
    if (cell == "RGLRU") {
      const Decay d = decay(k[0], lambda);
      const Real r = sigmoid(k[0]), i = sigmoid(k[1]);
      const Real by_root = d.root > 0 ? d.a * d.a / d.root : 0;
      const Real dlog_a = da * d.a - db * i * x * by_root;
      dk[0] += dlog_a * d.log_a * sigmoid(-k[0]);
      dk[1] += db * d.root * x * i * sigmoid(-k[1]);
      if (dx) *dx += db * d.root * i;
      if (dlambda) *dlambda += dlog_a * r * -8 * sigmoid(lambda);
    } else if (cell == "IndRNN") {
      dk[0] += db * slope_of(variant, k[0]);
    } else if (cell == "MinGRU") {
      const Real z = sigmoid(k[0]);
      const Real dz = value_of(variant, k[1]) * db - da;
      dk[0] += dz * z * sigmoid(-k[0]);
      dk[1] += db * z * slope_of(variant, k[1]);
    } else if (cell == "MinLSTM") {
      const Real f = sigmoid(k[0]), i = sigmoid(k[1]), sum = f + i;
      const Real di_share = value_of(variant, k[2]) * db;  // cotangent of i / (f + i)
      const Real df = (da * i - di_share * i) / sum / sum;
      const Real di = (di_share * f - da * f) / sum / sum;
      dk[0] += df * f * sigmoid(-k[0]);
      dk[1] += di * i * sigmoid(-k[1]);
      dk[2] += db * i / sum * slope_of(variant, k[2]);
    } else {
      const bool bounded = cell == "QRNN";
      const Real f = sigmoid(k[1]), v = bounded ? std::tanh(k[0]) : k[0];
      dk[0] += db * sigmoid(-k[1]) * (bounded ? slope_of("tanh", k[0]) : 1);
      dk[1] += (da - db * v) * f * sigmoid(-k[1]);
    }
  }
  // The output from the state and SRU's highway input.
  Real readout(const Real* k, Real c, Real skip) const {
    if (cell == "QRNN") return sigmoid(k[2]) * c;
    return sigmoid(k[2]) * value_of(variant, c) + sigmoid(-k[2]) * skip;
  }
  void readout_vjp(const Real* k, Real c, Real skip, Real dh, Real* dk, Real& dc,
                   Real& dskip) const {
    const Real r = sigmoid(k[2]);
    if (cell == "QRNN") {
      dk[2] += dh * c * r * sigmoid(-k[2]);
      dc = dh * r;
      dskip = 0;
      return;
    }
    dk[2] += dh * (value_of(variant, c) - skip) * r * sigmoid(-k[2]);
    dc = dh * r * slope_of(variant, c);
    dskip = dh * sigmoid(-k[2]);
  }
};

// One direction of one layer over tensors in [T,B,.] order.
struct Direction {
  Equations cell;
  std::int64_t steps, batch, in, hidden;
  bool reverse;
  const Values *weight, *vectors, *bias, *h0;  // all but the first may be null
  std::size_t h0_at;                           // where this direction's [B,H] begins in h0
  Storage* store;

  bool highway() const { return cell.reads_x() && in != hidden; }
  std::int64_t blocks() const { return cell.gates() + (highway() ? 1 : 0); }

  // Row j of all blocks times x_t, plus the bias.
  void project(const Real* x, std::int64_t j, Real* k) const {
    for (int g = 0; g < blocks(); ++g) {
      Real sum = 0;
      for (std::int64_t c = 0; c < in; ++c) {
        sum += static_cast<Real>((*weight)[static_cast<std::size_t>((g * hidden + j) * in + c)]) *
               x[c];
      }
      if (bias && g < cell.gates() && cell.bias_block(g) >= 0) {
        sum += (*bias)[static_cast<std::size_t>(cell.bias_block(g) * hidden + j)];
      }
      k[g] = store->logit(sum);
    }
  }
  Real vector(int k, std::int64_t j) const {
    return (*vectors)[static_cast<std::size_t>(k * hidden + j)];
  }
  Real lambda(std::int64_t j) const { return cell.reads_own_x() ? vector(0, j) : 0; }
  Real own(const Real* x, std::int64_t j) const { return cell.reads_own_x() ? x[j] : 0; }
  // Adds to the gates what they have of the state before.
  void peek(std::int64_t j, Real before, Real* k) const {
    for (int v = 0; v < cell.vectors(); ++v) {
      if (cell.peeks_at(v) >= 0) k[cell.peeks_at(v)] += vector(v, j) * before;
    }
  }
  Real start(std::int64_t b, std::int64_t j) const {
    return h0 ? (*h0)[h0_at + static_cast<std::size_t>(b * hidden + j)] : 0;
  }
  Real skip(const Real* x, std::int64_t j, const Real* k) const {
    return !cell.reads_x() ? 0 : highway() ? k[3] : x[j];
  }

  // states[t] is the state after step t; y gets this direction's columns of a row of `width`.
  void forward(const Reals& x, Reals& states, Reals& y, std::int64_t width, std::int64_t column,
               Real* hn, Real& largest) const {
    states.assign(static_cast<std::size_t>(steps * batch * hidden), 0);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t j = 0; j < hidden; ++j) {
        Real h = start(b, j);
        largest = std::fmax(largest, std::fabs(h));
        for (std::int64_t s = 0; s < steps; ++s) {
          const std::int64_t t = reverse ? steps - 1 - s : s;
          const Real* x_t = x.data() + (t * batch + b) * in;
          Real k[4];
          project(x_t, j, k);
          peek(j, h, k);
          const auto step = cell.lift(k, own(x_t, j), lambda(j));
          h = step.a * h + step.b;
          largest = std::fmax(largest, std::fabs(h));
          states[static_cast<std::size_t>((t * batch + b) * hidden + j)] = (*store)(h);
          y[static_cast<std::size_t>((t * batch + b) * width + column + j)] =
              (*store)(cell.reads_out() ? cell.readout(k, h, skip(x_t, j, k)) : h);
        }
        hn[b * hidden + j] = (*store)(h);
      }
    }
  }

  void backward(const Reals& x, const Reals& states, const Reals& dy, std::int64_t width,
                std::int64_t column, const Values& dhn, Reals& dx, Real* dh0, Real* dh0_squares,
                Sum& dweight, Sum& dvectors, Sum* dbias) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t j = 0; j < hidden; ++j) {
        Real dh = dhn[h0_at + static_cast<std::size_t>(b * hidden + j)], squares = dh * dh;
        for (std::int64_t s = steps - 1; s >= 0; --s) {
          const std::int64_t t = reverse ? steps - 1 - s : s, before = reverse ? t + 1 : t - 1;
          const Real* x_t = x.data() + (t * batch + b) * in;
          Real* dx_t = dx.data() + (t * batch + b) * in;
          const Real h = states[static_cast<std::size_t>((t * batch + b) * hidden + j)];
          const Real previous =
              s == 0 ? start(b, j)
                     : states[static_cast<std::size_t>((before * batch + b) * hidden + j)];
          Real k[4], dk[4] = {0, 0, 0, 0};
          project(x_t, j, k);
          peek(j, previous, k);
          const Real out = dy[static_cast<std::size_t>((t * batch + b) * width + column + j)];
          if (cell.reads_out()) {
            Real dc, dskip;
            cell.readout_vjp(k, h, skip(x_t, j, k), out, dk, dc, dskip);
            dh += dc;
            squares += dc * dc;
            if (cell.reads_x()) (highway() ? dk[3] : dx_t[j]) += (*store)(dskip);
          } else {
            dh += out;
            squares += out * out;
          }
          Real dlambda = 0, dx_own = 0;
          cell.lift_vjp(k, dh * previous, dh, dk, own(x_t, j), lambda(j), &dx_own, &dlambda);
          if (cell.reads_own_x()) {
            dx_t[j] += (*store)(dx_own);
            dvectors.add(static_cast<std::size_t>(j), dlambda);
          }
          const Real a = cell.lift(k, own(x_t, j), lambda(j)).a;
          dh *= a;
          squares *= a * a;
          for (int v = 0; v < cell.vectors(); ++v) {
            if (cell.peeks_at(v) < 0) continue;
            const Real d = dk[cell.peeks_at(v)], back = d * vector(v, j);
            dvectors.add(static_cast<std::size_t>(v * hidden + j), (*store)(d * previous));
            dh += back;
            squares += back * back;
          }
          for (int g = 0; g < blocks(); ++g) {
            const std::int64_t row = g * hidden + j;
            dk[g] = (*store)(dk[g]);
            for (std::int64_t c = 0; c < in; ++c) {
              const auto at = static_cast<std::size_t>(row * in + c);
              dweight.add(at, dk[g] * x_t[c]);
              dx_t[c] += dk[g] * (*weight)[at];
            }
            if (dbias && g < cell.gates() && cell.bias_block(g) >= 0) {
              dbias->add(static_cast<std::size_t>(cell.bias_block(g) * hidden + j), dk[g]);
            }
          }
        }
        dh0[b * hidden + j] = (*store)(dh);
        dh0_squares[b * hidden + j] = squares;
      }
    }
    (*store)(dx);
  }
};

// The whole stack of a linear cell.
inline Answer run_linear(const Case& c, const Data& data, bool with_backward, bool as_cuda) {
  const CellInfo& cell = info(c.layer.cell);
  const Equations equations{cell.name, cell.variants[static_cast<std::size_t>(c.layer.variant)]};
  const std::int64_t hidden = c.layer.hidden_size, tokens = c.steps * c.batch;
  const std::int64_t width = c.directions() * hidden;
  const bool vectors = equations.vectors() > 0;
  const std::size_t each = 1 + vectors + c.layer.bias;  // parameters of a direction
  Storage store(c.layer.dtype, as_cuda);
  const auto direction = [&](int l, int d) {
    const auto at = static_cast<std::size_t>(l * c.directions() + d);
    return Direction{equations,
                     c.steps,
                     c.batch,
                     c.input_size(l),
                     hidden,
                     d == 1,
                     &data.params[at * each],
                     vectors ? &data.params[at * each + 1] : nullptr,
                     c.layer.bias ? &data.params[(at + 1) * each - 1] : nullptr,
                     c.h0 ? &data.h0 : nullptr,
                     at * static_cast<std::size_t>(c.batch * hidden),
                     &store};
  };

  Answer out;
  Real largest = 0;
  Reals hn(static_cast<std::size_t>(c.states())), dh0(hn.size()), dh0_squares(hn.size());
  std::vector<Reals> inputs{{data.x.begin(), data.x.end()}}, states;
  for (int l = 0; l < c.layer.num_layers; ++l) {
    Reals y(static_cast<std::size_t>(tokens * width));
    for (int d = 0; d < c.directions(); ++d) {
      const Direction part = direction(l, d);
      states.emplace_back();
      part.forward(inputs.back(), states.back(), y, width, d * hidden, hn.data() + part.h0_at,
                   largest);
    }
    if (l + 1 == c.layer.num_layers) out.y = narrow(y);
    inputs.push_back(std::move(y));
  }
  out.hn = narrow(hn);
  out.terms.state = static_cast<double>(largest);
  out.terms.logit_error = store.logit_error();
  if (!with_backward) return out;

  Reals dy(data.dy.begin(), data.dy.end());
  out.dparams.resize(data.params.size());
  out.terms.dparams.resize(data.params.size());
  for (int l = c.layer.num_layers - 1; l >= 0; --l) {
    Reals dx(static_cast<std::size_t>(tokens * c.input_size(l)));
    for (int d = 0; d < c.directions(); ++d) {
      const Direction part = direction(l, d);
      const auto at = static_cast<std::size_t>(l * c.directions() + d);
      Sum dweight(part.weight->size()), dbias(part.bias ? part.bias->size() : 0);
      Sum dvectors(vectors ? part.vectors->size() : 0);
      part.backward(inputs[static_cast<std::size_t>(l)], states[at], dy, width, d * hidden,
                    data.dhn, dx, dh0.data() + part.h0_at, dh0_squares.data() + part.h0_at, dweight,
                    dvectors, part.bias ? &dbias : nullptr);
      std::size_t i = at * each;
      for (Sum* sum : {&dweight, &dvectors, &dbias}) {
        if (sum->values.empty()) continue;
        store(sum->values);
        out.dparams[i] = narrow(sum->values);
        out.terms.dparams[i++] = roots(sum->squares);
      }
    }
    dy = std::move(dx);
  }
  out.dx = narrow(dy);
  out.dh0 = narrow(dh0);
  out.terms.dh0 = roots(dh0_squares);
  return out;
}

}  // namespace scanrnn::test::oracle
