// SPDX-License-Identifier: Apache-2.0
// The tensors of a cell's state in errors.
#pragma once

#include <string>
#include <utility>

#include "api/check.h"

namespace scanrnn {

// Named after the first of them: "dh_n", of which the others are "dc_n" and so on.
class StateNames {
 public:
  StateNames(const CellInfo& cell, std::string h)
      : cell_(cell), h_(std::move(h)), count_(static_cast<std::size_t>(cell.states)) {}

  std::size_t count() const { return count_; }
  std::string operator[](std::size_t tensor) const {
    std::string out = h_;
    out[h_.find('h')] = "hcnm"[tensor];
    return out;
  }
  void check_no_more(const State& state) const {
    for (std::size_t i = count_; i < kStateTensors.size(); ++i) {
      require(!(state.*kStateTensors[i]),
              [&] { return h_ + ": " + what() + ", got " + (i == 1 ? "a pair" : (*this)[i]); });
    }
  }
  // All of them, or none.
  void check_whole(const State& state) const {
    std::string given, missing;
    std::size_t found = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const bool is_given = static_cast<bool>(state.*kStateTensors[i]);
      if (is_given) given += (found++ > 0 ? ", " : "") + (*this)[i];
      if (!is_given && missing.empty()) missing = (*this)[i];
    }
    if (given.empty() || missing.empty()) return;
    throw value_error(missing + ": " + what() + ", got " + given + (found == 1 ? " alone" : ""));
  }

 private:
  // "the state of LSTM is the pair (h_0, c_0)"
  std::string what() const {
    std::string out = "the state of " + cell_.name + " is ";
    if (count_ == 1) return out + "one tensor";
    out += count_ == 2 ? "the pair (" : "(";
    for (std::size_t i = 0; i < count_; ++i) out += (i > 0 ? ", " : "") + (*this)[i];
    return out + ")";
  }

  const CellInfo& cell_;
  std::string h_;
  std::size_t count_;
};

}  // namespace scanrnn
