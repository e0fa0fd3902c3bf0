// SPDX-License-Identifier: Apache-2.0
// The second opinion on dense cells: docs/maths.md's equations in plain loops and their chain rule,
// in long double. One direction of one layer over tensors in [T,B,.] order.
#pragma once

#include "support/dense_units.h"

namespace scanrnn::test::oracle {

// A state's tensors, h first, each [H] of one sequence.
using StateOfLine = std::array<Reals, kStateTensors.size()>;
using InitialState = std::array<const Values*, kStateTensors.size()>;

struct DenseDirection {
  const CellInfo& about;
  std::string cell, variant;
  std::int64_t steps, batch, in, hidden, head_units;
  bool reverse;
  const Values *weight_ih, *weight_hh, *vectors, *bias_ih, *bias_hh;  // but weights may be null
  InitialState initial;                                               // may be empty
  std::size_t state_at;  // where this direction's [B,H] begins
  Storage* store;

  std::int64_t gates() const { return about.gates; }
  std::size_t tensors() const { return static_cast<std::size_t>(about.states); }

  // All steps of one sequence: the states before and after each, and W x + b, R h + b. What is kept
  // for backward of sums that the cell adds is their sum, in u.
  struct Trace {
    std::vector<StateOfLine> states;  // steps + 1
    std::vector<Reals> u, m;          // [steps][gates * H]
  };

  // The first unit that a row of R meets: that of its unit's head.
  std::int64_t first_met(std::size_t row) const {
    return static_cast<std::int64_t>(row) % hidden / head_units * head_units;
  }
  // first(row): of x, what a row of the weight begins with.
  template <class First>
  static Reals affine(const Values& weight, const Values* bias, const Real* all, std::int64_t width,
                      First&& first) {
    const std::size_t rows = weight.size() / static_cast<std::size_t>(width);
    Reals out(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      const Real* x = all + first(row);
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
  DenseUnit unit(std::size_t j, const Reals& u, const Reals& m, const StateOfLine& state) const {
    const auto H = static_cast<std::size_t>(hidden);
    DenseUnit out;
    for (std::size_t gate = 0; gate * H < u.size(); ++gate) {
      out.x.at(gate) = u[gate * H + j];
      out.r.at(gate) = m[gate * H + j];
    }
    for (std::size_t i = 0; vectors && i * H < vectors->size(); ++i) {
      out.w.at(i) = (*vectors)[i * H + j];
    }
    for (std::size_t i = 0; i < tensors(); ++i) out.state[i] = state[i][j];
    return out;
  }

  Trace trace(const Reals& x, std::int64_t b) const {
    Trace out;
    const auto H = static_cast<std::size_t>(hidden);
    StateOfLine state;
    for (std::size_t i = 0; i < tensors(); ++i) {
      state[i].assign(H, fresh_state(cell, i));
      for (std::size_t j = 0; !initial[i]->empty() && j < H; ++j) {
        state[i][j] = (*initial[i])[state_at + static_cast<std::size_t>(b) * H + j];
      }
    }
    out.states.push_back(state);
    for (std::int64_t s = 0; s < steps; ++s) {
      Reals u = affine(*weight_ih, nullptr, x.data() + (time(s) * batch + b) * in, in,
                       [](std::size_t) { return 0; });
      (*store)(u);
      for (std::size_t i = 0; bias_ih && i < u.size(); ++i) u[i] += (*bias_ih)[i];
      Reals fed = out.states.back()[0];
      (*store)(fed);
      Reals m = affine(*weight_hh, bias_hh, fed.data(), head_units,
                       [&](std::size_t row) { return first_met(row); });
      for (std::size_t j = 0; j < H; ++j) {
        const auto after = state_after(cell, variant, unit(j, u, m, out.states.back()));
        for (std::size_t i = 0; i < tensors(); ++i) state[i][j] = after[i];
      }
      keep(u, m);
      out.u.push_back(u);
      out.m.push_back(m);
      out.states.push_back(state);
    }
    return out;
  }

  // `final`: [B,H] of each tensor.
  void forward(const Reals& x, Reals& y, std::int64_t width, std::int64_t column,
               const std::array<Real*, kStateTensors.size()>& final, Real& largest) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      const Trace all = trace(x, b);
      for (std::int64_t s = 0; s < steps; ++s) {
        Reals h = all.states[static_cast<std::size_t>(s) + 1][0];
        (*store)(h);
        std::copy(h.begin(), h.end(), y.begin() + (time(s) * batch + b) * width + column);
      }
      for (const StateOfLine& state : all.states) {
        for (Real value : state[0]) largest = std::fmax(largest, std::fabs(value));
      }
      for (std::size_t i = 0; i < tensors(); ++i) {
        Reals last = all.states.back()[i];
        (*store)(last);
        std::copy(last.begin(), last.end(), final[i] + b * hidden);
      }
    }
  }

  struct Gradients {
    Sum weight_ih, weight_hh, vectors, bias;          // of both biases: bias_ih, then bias_hh
    std::array<Reals, kStateTensors.size()> initial;  // [B,H], of the whole stack
    Reals h0_squares;
  };

  // `dfinal`: of the whole stack, may be empty.
  void backward(const Reals& x, const Reals& dy, std::int64_t width, std::int64_t column,
                const InitialState& dfinal, Reals& dx, Gradients& d) const {
    const auto H = static_cast<std::size_t>(hidden);
    for (std::int64_t b = 0; b < batch; ++b) {
      const Trace all = trace(x, b);
      const std::size_t at = state_at + static_cast<std::size_t>(b) * H;
      StateOfLine ds;
      for (std::size_t i = 0; i < tensors(); ++i) {
        ds[i].assign(H, 0);
        for (std::size_t j = 0; !dfinal[i]->empty() && j < H; ++j) ds[i][j] = (*dfinal[i])[at + j];
      }
      Reals squares(H);
      for (std::size_t j = 0; j < H; ++j) squares[j] = ds[0][j] * ds[0][j];
      for (std::int64_t s = steps - 1; s >= 0; --s) {
        const std::size_t token = static_cast<std::size_t>(time(s) * batch + b);
        const Real* out = dy.data() + token * static_cast<std::size_t>(width) + column;
        step_back(all, static_cast<std::size_t>(s), token, x, out, dx, ds, squares, d);
      }
      for (std::size_t i = 0; i < tensors(); ++i) {
        (*store)(ds[i]);
        std::copy(ds[i].begin(), ds[i].end(),
                  d.initial[i].begin() + static_cast<std::ptrdiff_t>(at));
      }
      std::copy(squares.begin(), squares.end(),
                d.h0_squares.begin() + static_cast<std::ptrdiff_t>(at));
    }
    (*store)(dx);
  }

 private:
  // One step of a sequence: ds goes from the state after it to that before it.
  void step_back(const Trace& all, std::size_t step, std::size_t token, const Reals& x,
                 const Real* dy, Reals& dx, StateOfLine& ds, Reals& squares, Gradients& d) const {
    const auto H = static_cast<std::size_t>(hidden), C = static_cast<std::size_t>(in);
    const auto D = static_cast<std::size_t>(head_units);
    const std::size_t rows = all.u[step].size();
    StateOfLine before = all.states[step];
    for (Reals& values : before) (*store)(values);
    Reals du(rows), dm(rows);
    for (std::size_t j = 0; j < H; ++j) {
      std::array<Real, 4> after{};
      for (std::size_t i = 0; i < tensors(); ++i) after[i] = ds[i][j];
      after[0] += dy[j];
      const DenseUnit back =
          state_vjp(cell, variant, unit(j, all.u[step], all.m[step], before), after);
      for (std::size_t gate = 0; gate * H < rows; ++gate) {
        du[gate * H + j] = back.x[gate];
        dm[gate * H + j] = back.r[gate];
      }
      for (std::size_t i = 0; i * H < d.vectors.values.size(); ++i) {
        d.vectors.add(i * H + j, (*store)(back.w[i]));
      }
      for (std::size_t i = 0; i < tensors(); ++i) ds[i][j] = back.state[i];
    }
    (*store)(du);
    (*store)(dm);
    for (std::size_t j = 0; j < H; ++j) squares[j] = ds[0][j] * ds[0][j];
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t k = 0; k < D; ++k) {
        const std::size_t met = static_cast<std::size_t>(first_met(row)) + k;
        const Real term = dm[row] * (*weight_hh)[row * D + k];
        ds[0][met] += term;
        squares[met] += term * term;
        d.weight_hh.add(row * D + k, dm[row] * before[0][met]);
      }
      for (std::size_t k = 0; k < C; ++k) {
        dx[token * C + k] += du[row] * (*weight_ih)[row * C + k];
        d.weight_ih.add(row * C + k, du[row] * x[token * C + k]);
      }
      d.bias.add(row, du[row]);
      d.bias.add(rows + row, dm[row]);
    }
  }
};

// The whole stack of a dense cell.
class DenseStack {
 public:
  DenseStack(const Case& c, const Data& data, bool as_cuda)
      : c_(c),
        data_(data),
        cell_(info(c.layer.cell)),
        more_(cell_.vectors > 0 ? 1 : 0),
        store_(c.layer.dtype, as_cuda) {}

  void forward(Answer& out) {
    Real largest = 0;
    PerTensor final = per_state();
    inputs_ = {{data_.x.begin(), data_.x.end()}};
    for (int l = 0; l < c_.layer.num_layers; ++l) {
      Reals y(static_cast<std::size_t>(c_.steps * c_.batch * width()));
      for (int d = 0; d < c_.directions(); ++d) {
        const DenseDirection part = direction(l, d);
        std::array<Real*, kStateTensors.size()> to{};
        for (std::size_t i = 0; i < tensors(); ++i) to[i] = final[i].data() + part.state_at;
        part.forward(inputs_.back(), y, width(), d * hidden(), to, largest);
      }
      if (l + 1 == c_.layer.num_layers) out.y = narrow(y);
      inputs_.push_back(std::move(y));
    }
    out.hn = narrow(final[0]);
    for (std::size_t i = 1; i < tensors(); ++i) out.moren[i - 1] = narrow(final[i]);
    out.terms.state = static_cast<double>(largest);
    out.terms.logit_error = store_.logit_error();
  }
  // After forward.
  void backward(Answer& out) {
    Reals dy(data_.dy.begin(), data_.dy.end());
    out.dparams.resize(data_.params.size());
    out.terms.dparams.resize(data_.params.size());
    PerTensor dinitial = per_state();
    Reals dh0_squares(static_cast<std::size_t>(c_.states()));
    for (int l = c_.layer.num_layers - 1; l >= 0; --l) {
      Reals dx(static_cast<std::size_t>(c_.steps * c_.batch * c_.input_size(l)));
      for (int d = 0; d < c_.directions(); ++d) {
        const DenseDirection part = direction(l, d);
        DenseDirection::Gradients gradients{Sum(part.weight_ih->size()),
                                            Sum(part.weight_hh->size()),
                                            Sum(static_cast<std::size_t>(cell_.vectors * hidden())),
                                            Sum(2 * rows()),
                                            std::move(dinitial),
                                            std::move(dh0_squares)};
        part.backward(inputs_[static_cast<std::size_t>(l)], dy, width(), d * hidden(),
                      {&data_.dhn, &data_.dmoren[0], &data_.dmoren[1], &data_.dmoren[2]}, dx,
                      gradients);
        dinitial = std::move(gradients.initial);
        dh0_squares = std::move(gradients.h0_squares);
        give_parameters(gradients, first(l, d), out);
      }
      dy = std::move(dx);
    }
    out.dx = narrow(dy);
    out.dh0 = narrow(dinitial[0]);
    for (std::size_t i = 1; i < tensors(); ++i) out.dmore0[i - 1] = narrow(dinitial[i]);
    out.terms.dh0 = roots(dh0_squares);
  }

 private:
  using PerTensor = std::array<Reals, kStateTensors.size()>;

  std::int64_t hidden() const { return c_.layer.hidden_size; }
  std::int64_t width() const { return c_.directions() * hidden(); }
  std::size_t rows() const { return static_cast<std::size_t>(cell_.gates * hidden()); }
  std::size_t tensors() const { return static_cast<std::size_t>(cell_.states); }
  PerTensor per_state() const {
    PerTensor out;
    for (Reals& values : out) values.resize(static_cast<std::size_t>(c_.states()));
    return out;
  }
  // Where the parameters of a direction begin among all.
  std::size_t first(int l, int d) const {
    return static_cast<std::size_t>(l * c_.directions() + d) * each();
  }
  std::size_t each() const { return 2 + more_ + (c_.layer.bias ? 2 : 0); }

  DenseDirection direction(int l, int d) {
    const Values* own = &data_.params[first(l, d)];
    return DenseDirection{cell_,
                          cell_.name,
                          cell_.variants[static_cast<std::size_t>(c_.layer.variant)],
                          c_.steps,
                          c_.batch,
                          c_.input_size(l),
                          hidden(),
                          hidden() / c_.layer.num_heads,
                          d == 1,
                          own,
                          own + 1,
                          more_ > 0 ? own + 2 : nullptr,
                          c_.layer.bias ? own + 2 + more_ : nullptr,
                          c_.layer.bias ? own + 3 + more_ : nullptr,
                          {&data_.h0, &data_.more0[0], &data_.more0[1], &data_.more0[2]},
                          first(l, d) / each() * static_cast<std::size_t>(c_.batch * hidden()),
                          &store_};
  }
  // The gradients of a direction, stored, to its parameters' places from `at` on.
  void give_parameters(DenseDirection::Gradients& d, std::size_t at, Answer& out) {
    for (Sum* sum : {&d.weight_ih, &d.weight_hh, &d.vectors, &d.bias}) store_(sum->values);
    const auto give = [&](std::size_t i, const Sum& sum, std::size_t begin, std::size_t end) {
      const auto part_of = [&](const Reals& all) {
        return Reals(all.begin() + static_cast<std::ptrdiff_t>(begin),
                     all.begin() + static_cast<std::ptrdiff_t>(end));
      };
      out.dparams[at + i] = narrow(part_of(sum.values));
      out.terms.dparams[at + i] = roots(part_of(sum.squares));
    };
    give(0, d.weight_ih, 0, d.weight_ih.values.size());
    give(1, d.weight_hh, 0, d.weight_hh.values.size());
    if (more_ > 0) give(2, d.vectors, 0, d.vectors.values.size());
    if (!c_.layer.bias) return;
    give(2 + more_, d.bias, 0, rows());
    give(3 + more_, d.bias, rows(), 2 * rows());
  }

  const Case& c_;
  const Data& data_;
  const CellInfo& cell_;
  const std::size_t more_;  // parameters of a direction beside weights and biases
  Storage store_;
  std::vector<Reals> inputs_;  // of each layer, and the output
};

inline Answer run_dense(const Case& c, const Data& data, bool with_backward, bool as_cuda) {
  DenseStack stack(c, data, as_cuda);
  Answer out;
  stack.forward(out);
  if (with_backward) stack.backward(out);
  return out;
}

}  // namespace scanrnn::test::oracle
