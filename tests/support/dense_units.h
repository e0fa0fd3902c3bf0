// SPDX-License-Identifier: Apache-2.0
// One unit of a dense cell at one step in long double: docs/maths.md's equations and their chain
// rule.
#pragma once

#include <array>
#include <limits>

#include "support/oracle_parts.h"

namespace scanrnn::test::oracle {

// Sums of W x and of R h by gate, biases and all; the cell's vectors; the state before, (h, c, n,
// m). The same of cotangents.
struct DenseUnit {
  std::array<Real, 4> x{}, r{}, state{};
  std::array<Real, 3> w{};
};

inline Real fresh_state(const std::string& cell, std::size_t tensor) {
  return cell == "SLSTM" && tensor == 3 ? -std::numeric_limits<Real>::infinity() : 0;
}

// What both passes of an LSTM compute; without peepholes w is zero.
struct LstmStep {
  Real i, f, g, c, o, y;
  explicit LstmStep(const DenseUnit& u)
      : i(sigmoid(u.x[0] + u.r[0] + u.w[0] * u.state[1])),
        f(sigmoid(u.x[1] + u.r[1] + u.w[1] * u.state[1])),
        g(std::tanh(u.x[2] + u.r[2])),
        c(f * u.state[1] + i * g),
        o(sigmoid(u.x[3] + u.r[3] + u.w[2] * c)),
        y(std::tanh(c)) {}
};
struct SlstmStep {
  Real m, i, f, z, o, c, n;
  explicit SlstmStep(const DenseUnit& u) {
    const Real logit = u.x[0] + u.r[0], forget = u.x[1] + u.r[1];
    const Real kept =
        std::fmin(forget, Real(0)) - std::log1p(std::exp(-std::fabs(forget))) + u.state[3];
    m = std::fmax(kept, logit);
    i = std::exp(logit - m);
    f = std::exp(kept - m);
    z = std::tanh(u.x[2] + u.r[2]);
    o = sigmoid(u.x[3] + u.r[3]);
    c = f * u.state[1] + i * z;
    n = f * u.state[2] + i;
  }
};

inline std::array<Real, 4> state_after(const std::string& cell, const std::string& variant,
                                       const DenseUnit& u) {
  if (cell == "LSTM" || cell == "PeepholeLSTM") {
    const LstmStep s(u);
    return {s.o * s.y, s.c};
  }
  if (cell == "SLSTM") {
    const SlstmStep s(u);
    return {s.o * s.c / s.n, s.c, s.n, s.m};
  }
  if (cell == "GRU") {
    const Real r = sigmoid(u.x[0] + u.r[0]), z = u.x[1] + u.r[1];
    return {sigmoid(-z) * std::tanh(u.x[2] + r * u.r[2]) + sigmoid(z) * u.state[0]};
  }
  if (cell == "RNN") return {value_of(variant, u.x[0] + u.r[0])};
  throw std::logic_error("the oracle has no " + cell);
}

// From the cotangent of the state after a step; that of h is without what comes through R.
inline DenseUnit state_vjp(const std::string& cell, const std::string& variant, const DenseUnit& u,
                           const std::array<Real, 4>& d) {
  DenseUnit out;
  if (cell == "LSTM" || cell == "PeepholeLSTM") {
    const LstmStep s(u);
    const Real before = u.state[1], d_o = d[0] * s.y * s.o * (1 - s.o);
    const Real d_c = d[1] + d[0] * s.o * (1 - s.y * s.y) + d_o * u.w[2];
    const Real d_i = d_c * s.g * s.i * (1 - s.i), d_f = d_c * before * s.f * (1 - s.f);
    out.x = out.r = {d_i, d_f, d_c * s.i * (1 - s.g * s.g), d_o};
    out.w = {d_i * before, d_f * before, d_o * s.c};
    out.state[1] = d_c * s.f + d_i * u.w[0] + d_f * u.w[1];
  } else if (cell == "SLSTM") {  // m is a constant
    const SlstmStep s(u);
    const Real d_c = d[1] + d[0] * s.o / s.n, d_n = d[2] - d[0] * s.o * s.c / (s.n * s.n);
    const Real d_f = d_c * u.state[1] + d_n * u.state[2];
    out.x = out.r = {(d_c * s.z + d_n) * s.i, d_f * s.f * sigmoid(-u.x[1] - u.r[1]),
                     d_c * s.i * (1 - s.z * s.z), d[0] * s.c / s.n * s.o * (1 - s.o)};
    out.state[1] = d_c * s.f;
    out.state[2] = d_n * s.f;
  } else if (cell == "GRU") {
    const Real z = u.x[1] + u.r[1], r = sigmoid(u.x[0] + u.r[0]);
    const Real n = std::tanh(u.x[2] + r * u.r[2]), d_n = d[0] * sigmoid(-z) * (1 - n * n);
    out.x = {d_n * u.r[2] * r * (1 - r), d[0] * (u.state[0] - n) * sigmoid(z) * sigmoid(-z), d_n};
    out.r = {out.x[0], out.x[1], d_n * r};
    out.state[0] = d[0] * sigmoid(z);
  } else {
    out.x[0] = out.r[0] = d[0] * slope_of(variant, u.x[0] + u.r[0]);
  }
  return out;
}

}  // namespace scanrnn::test::oracle
