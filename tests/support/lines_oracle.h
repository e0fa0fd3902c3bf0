// SPDX-License-Identifier: Apache-2.0
// The oracle of layers with options that change a step: layer_norm, reset_after=False, heads, a
// projection of h, zoneout that draws nothing. docs/maths.md's equations on a tape (tape.h), which
// differentiates them.
#pragma once

#include "support/tape.h"

namespace scanrnn::test::oracle {

// Whether a layer has one of them.
inline bool has_line_options(const LayerOptions& o) {
  return o.layer_norm || !o.reset_after || o.proj_size > 0 || o.zoneout > 0 || o.zoneout_cell > 0;
}

class LineOracle {
 public:
  using Number = Tape::Number;
  using Row = std::vector<Number>;

  LineOracle(const Case& c, const Data& data)
      : c_(c), o_(c.layer), cell_(info(o_.cell)), data_(data), hidden_(index(o_.hidden_size)) {
    if (cell_.recurrence == dispatch::Recurrence::linear || o_.state_dropout > 0 ||
        (o_.draws && (o_.dropout > 0 || o_.dropconnect > 0 || o_.input_dropout > 0))) {
      throw std::logic_error("the oracle of lines has no such layer");
    }
    for (const Values& values : data.params) params_.push_back(leaves(values));
    x_ = leaves(data.x);
    for (std::size_t i = 0; i < tensors(); ++i) {
      const Values& given = i == 0 ? data.h0 : data.more0[i - 1];
      const Values fresh(index(c.states(i)), cell_.fresh[i]);
      initial_.push_back(leaves(c.h0 ? given : fresh));
      final_.push_back(initial_.back());
    }
  }

  Answer run(bool with_backward) {
    std::vector<Row> tokens = split(x_, index(o_.input_size));
    for (int layer = 0; layer < o_.num_layers; ++layer) {
      std::vector<Row> y(tokens.size());
      for (int direction = 0; direction < c_.directions(); ++direction) {
        walk(layer, direction, tokens, y);
      }
      tokens = y;
    }
    Answer out;
    for (const Row& row : tokens) append(row, out.y);
    append(final_[0], out.hn);
    for (std::size_t i = 1; i < tensors(); ++i) append(final_[i], out.moren[i - 1]);
    out.terms.state = static_cast<double>(largest_);
    out.terms.growth = static_cast<double>(growth_);
    if (with_backward) back(tokens, out);
    return out;
  }

 private:
  static std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }
  std::size_t tensors() const { return index(cell_.states); }
  Row leaves(const Values& values) {
    Row out;
    for (double value : values) out.push_back(tape_.leaf(value));
    return out;
  }
  static std::vector<Row> split(const Row& all, std::size_t width) {
    std::vector<Row> out;
    for (std::size_t i = 0; i < all.size(); i += width) {
      out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(i),
                       all.begin() + static_cast<std::ptrdiff_t>(i + width));
    }
    return out;
  }
  static void append(const Row& row, Values& to) {
    for (const Number& n : row) to.push_back(static_cast<double>(n.value));
  }

  // A direction's parameter, by its name without the layer; null where it has none.
  const Row* own(const std::string& kind) const {
    const Layer layer(o_);
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (layer.parameters()[i].name == kind + suffix_) return &params_[i];
    }
    return nullptr;
  }

  // ---- rows of a line

  Number sigmoid_of(Number v) {
    const Real value = sigmoid(v.value);
    return tape_.of(v, value, value * sigmoid(-v.value));
  }
  Number phi(const std::string& name, Number v) {
    return tape_.of(v, value_of(name, v.value), slope_of(name, v.value));
  }
  // Row blocks of a matrix times a row, where unit j of a block meets columns of its head alone.
  Row product(const Row& matrix, const Row& row, std::size_t heads, std::size_t first = 0) {
    const std::size_t width = row.size() / heads, rows = matrix.size() / width;
    Row out;
    terms_ = 0;
    for (std::size_t r = first; r < rows; ++r) {
      const std::size_t begin = heads == 1 ? 0 : r % hidden_ / (hidden_ / heads) * width;
      Number sum = tape_.leaf(0);
      Real squares = 0;
      for (std::size_t k = 0; k < width; ++k) {
        const Number term = tape_.multiply(matrix[r * width + k], row[begin + k]);
        squares += term.value * term.value;
        sum = tape_.add(sum, term);
      }
      terms_ = std::fmax(terms_, std::sqrt(squares));
      out.push_back(sum);
    }
    return out;
  }
  // Scaled norms of values that are off by a share of `terms`.
  Row norm(const Row& values, const Row& scale, Real terms) {
    const Real n = static_cast<Real>(values.size());
    const auto mean_of = [&](const Row& row) {
      Number sum = tape_.leaf(0);
      for (const Number& v : row) sum = tape_.add(sum, v);
      return tape_.times(sum, 1 / n);
    };
    const Number mean = mean_of(values);
    Row apart, squares;
    for (const Number& v : values) apart.push_back(tape_.subtract(v, mean));
    for (const Number& v : apart) squares.push_back(tape_.multiply(v, v));
    const Number variance = mean_of(squares);
    const Real root = std::sqrt(variance.value + 1e-5L);
    const Number by = tape_.of(variance, 1 / root, -1 / (2 * root * root * root));
    growth_ = std::fmax(growth_, terms / root);
    Row out;
    for (std::size_t i = 0; i < values.size(); ++i) {
      out.push_back(tape_.multiply(scale[i], tape_.multiply(apart[i], by)));
    }
    return out;
  }
  Row plus(Row row, const Row* bias) {
    for (std::size_t i = 0; bias && i < row.size(); ++i) row[i] = tape_.add(row[i], (*bias)[i]);
    return row;
  }

  // ---- one step of one line

  using State = std::vector<Row>;
  State step(const Row& x, const State& before) {
    const Row *recurrent = own("weight_hh"), *of_x = own("norm_ih"), *of_h = own("norm_hh");
    Row u = product(*own("weight_ih"), x, 1);
    if (of_x) u = norm(u, *of_x, terms_);
    u = plus(u, own("bias_ih"));
    State after = before;
    if (cell_.name == "IndRNN") {
      for (std::size_t j = 0; j < hidden_; ++j) {
        const Number sum = tape_.add(u[j], tape_.multiply((*recurrent)[j], before[0][j]));
        after[0][j] = phi(variant(), sum);
      }
    } else {
      const auto heads = index(o_.num_heads);
      Row m = product(*recurrent, before[0], heads);
      if (of_h) m = norm(m, *of_h, terms_);
      m = plus(m, own("bias_hh"));
      if (!o_.reset_after) {
        Row reset;
        for (std::size_t j = 0; j < hidden_; ++j) {
          const Number r = sigmoid_of(tape_.add(u[j], m[j]));
          reset.push_back(tape_.multiply(r, before[0][j]));
        }
        const Row last = product(*recurrent, reset, heads, 2 * hidden_);
        for (std::size_t j = 0; j < hidden_; ++j) {
          const Row* bias = own("bias_hh");
          m[2 * hidden_ + j] = bias ? tape_.add(last[j], (*bias)[2 * hidden_ + j]) : last[j];
        }
      }
      after = units(u, m, before);
    }
    if (const Row* projection = own("weight_hr")) after[0] = product(*projection, after[0], 1);
    moves(after[0], before[0], 1 - o_.zoneout);
    if (tensors() == 2) moves(after[1], before[1], 1 - o_.zoneout_cell);
    for (Number v : after[0]) largest_ = std::fmax(largest_, std::fabs(v.value));
    return after;
  }
  void moves(Row& after, const Row& before, double mean) {
    for (std::size_t i = 0; mean < 1 && i < after.size(); ++i) {
      const Number change = tape_.subtract(after[i], before[i]);
      after[i] = tape_.add(before[i], tape_.times(change, mean));
    }
  }
  const std::string& variant() const { return cell_.variants[index(o_.variant)]; }

  State units(const Row& u, const Row& m, const State& before) {
    State after = before;
    after[0].clear();
    Row seen, gate;
    for (std::size_t j = 0; j < hidden_; ++j) {
      const auto sum = [&](std::size_t block) {
        return tape_.add(u[block * hidden_ + j], m[block * hidden_ + j]);
      };
      if (cell_.name == "RNN") {
        after[0].push_back(phi(variant(), sum(0)));
      } else if (cell_.name == "GRU") {
        Number n = sum(2);
        if (o_.reset_after) {
          n = tape_.add(u[2 * hidden_ + j], tape_.multiply(sigmoid_of(sum(0)), m[2 * hidden_ + j]));
        }
        n = phi("tanh", n);
        const Number kept = tape_.subtract(before[0][j], n);
        after[0].push_back(tape_.add(n, tape_.multiply(sigmoid_of(sum(1)), kept)));
      } else if (cell_.name == "LSTM" || cell_.name == "PeepholeLSTM") {
        const Row* peeks = cell_.vectors > 0 ? own(cell_.vectors_name) : nullptr;
        const auto peeked = [&](std::size_t block, std::size_t vector, Number c) {
          if (!peeks) return sigmoid_of(sum(block));
          return sigmoid_of(
              tape_.add(sum(block), tape_.multiply((*peeks)[vector * hidden_ + j], c)));
        };
        const Number i = peeked(0, 0, before[1][j]), f = peeked(1, 1, before[1][j]);
        after[1][j] =
            tape_.add(tape_.multiply(f, before[1][j]), tape_.multiply(i, phi("tanh", sum(2))));
        gate.push_back(peeked(3, 2, after[1][j]));
      } else {
        throw std::logic_error("the oracle of lines has no " + cell_.name);
      }
    }
    if (gate.empty()) return after;
    seen = after[1];
    if (own("norm_c")) {
      Real most = 0;
      for (Number c : seen) most = std::fmax(most, std::fabs(c.value));
      seen = plus(norm(seen, *own("norm_c"), 1 + most), own("norm_c_bias"));
    }
    for (std::size_t j = 0; j < hidden_; ++j) {
      after[0].push_back(tape_.multiply(gate[j], phi("tanh", seen[j])));
    }
    return after;
  }

  // ---- all steps, and back

  void walk(int layer, int direction, const std::vector<Row>& tokens, std::vector<Row>& y) {
    suffix_ = "_l" + std::to_string(layer) + (direction ? "_reverse" : "");
    const auto at = index(layer * c_.directions() + direction), batch = index(c_.batch);
    const auto steps = index(c_.steps);
    for (std::size_t b = 0; b < batch; ++b) {
      State state;
      for (std::size_t i = 0; i < tensors(); ++i) {
        const std::size_t width = index(c_.features(i));
        state.push_back(split(initial_[i], width)[at * batch + b]);
      }
      for (std::size_t s = 0; s < steps; ++s) {
        const std::size_t token = (direction ? steps - 1 - s : s) * batch + b;
        state = step(tokens[token], state);
        y[token].insert(y[token].end(), state[0].begin(), state[0].end());
      }
      for (std::size_t i = 0; i < tensors(); ++i) {
        std::copy(
            state[i].begin(), state[i].end(),
            final_[i].begin() + static_cast<std::ptrdiff_t>((at * batch + b) * state[i].size()));
      }
    }
  }
  void back(const std::vector<Row>& y, Answer& out) {
    std::size_t at = 0;
    for (const Row& row : y) {
      for (const Number& n : row) tape_.give(n, data_.dy[at++]);
    }
    for (std::size_t i = 0; i < tensors(); ++i) {
      const Values& cotangents = i == 0 ? data_.dhn : data_.dmoren[i - 1];
      for (std::size_t k = 0; k < final_[i].size(); ++k) tape_.give(final_[i][k], cotangents[k]);
    }
    tape_.back();
    const auto taken = [&](const Row& leaves, Values& terms) {
      Values values;
      for (const Number& n : leaves) {
        values.push_back(static_cast<double>(tape_.cotangent(n)));
        terms.push_back(static_cast<double>(std::sqrt(tape_.square(n))));
      }
      return values;
    };
    out.dx = taken(x_, out.terms.dx);
    out.dh0 = taken(initial_[0], out.terms.dh0);
    for (std::size_t i = 1; i < tensors(); ++i) {
      out.dmore0[i - 1] = taken(initial_[i], out.terms.dmore0[i - 1]);
    }
    out.terms.dparams.resize(params_.size());
    for (std::size_t i = 0; i < params_.size(); ++i) {
      out.dparams.push_back(taken(params_[i], out.terms.dparams[i]));
    }
  }

  const Case& c_;
  const LayerOptions& o_;
  const CellInfo& cell_;
  const Data& data_;
  std::size_t hidden_;
  Tape tape_;
  std::vector<Row> params_, initial_, final_;
  Row x_;
  std::string suffix_;
  Real terms_ = 0, growth_ = 0, largest_ = 0;
};

}  // namespace scanrnn::test::oracle
