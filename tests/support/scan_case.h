// SPDX-License-Identifier: Apache-2.0
// A bare scan in any form, dtype and layout: its numbers, its tensors on the device of the tests,
// and the plainest loop in long double, forward and backward.
#pragma once

#include <gtest/gtest.h>

#include <complex>
#include <functional>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/conform.h"

namespace scanrnn::test {

// How [T,B,N] lies in memory; packed: each row right behind the one before, whichever line it is
// of.
enum class Order { rows_adjacent, time_adjacent, time_packed, rows_apart, lines_inside };
inline constexpr Order kOrders[] = {Order::rows_adjacent, Order::time_adjacent, Order::time_packed,
                                    Order::rows_apart, Order::lines_inside};
constexpr bool has_adjacent_steps(Order order) {
  return order == Order::time_adjacent || order == Order::time_packed;
}

struct ScanCase {
  std::int64_t steps = 0, lines = 1, rows = 1;
  Dtype dtype = Dtype::float32;
  ScanForm form = ScanForm::linear;
  Way way = {};
  bool reverse = false, signs = true, h0 = true;
  double reset_share = -1;     // of the steps; below 0: there is no tensor
  bool shares_resets = false;  // all rows of a line
  Order order = Order::rows_adjacent;

  bool logs() const { return form != ScanForm::linear; }
  bool log_states() const { return form == ScanForm::log_output; }
  int parts() const { return is_complex(dtype) ? 2 : 1; }
  std::size_t states() const { return static_cast<std::size_t>(lines * rows); }
  std::size_t count() const { return static_cast<std::size_t>(steps) * states(); }
  // The place of a step of the walk in time.
  std::size_t at(std::int64_t step, std::size_t state) const {
    return static_cast<std::size_t>(reverse ? steps - 1 - step : step) * states() + state;
  }
};

std::string text(const ScanCase& c);

using Wide = std::complex<long double>;
using Numbers = std::vector<Wide>;

// Numbers as the dtype holds them; real ones have no imaginary part.
struct ScanNumbers {
  Numbers a, b, sign_b, h0, sign_h0, dh;
  std::vector<std::uint8_t> reset;
  Numbers h, sign_h, da, db, dh0;  // what comes out
};

ScanNumbers draw(const ScanCase& c, Random& random, double least_decay = 0.3);

// The states themselves by form linear or log; of log_output log|h| and the sign. h is what is
// walked: of log_output (log|h|, sign) in long double, whose range its tests stay in.
void walk_exactly(const ScanCase& c, ScanNumbers& n);

// A tensor [T,B,N] or [1,B,N] in some order, on the device; every byte between is 0xFF.
class ScanTensor {
 public:
  ScanTensor(Context& context, Dtype dtype, std::int64_t steps, std::int64_t lines,
             std::int64_t rows, Order order);
  void fill(const Numbers& values);
  void fill(const std::vector<std::uint8_t>& flags);
  Numbers values();
  // Whether nothing between the elements was written; after values().
  bool intact();
  TensorView view(bool has_time = true) const;

 private:
  Dtype part() const { return dtype_ == Dtype::complex64 ? Dtype::float32 : Dtype::float64; }
  template <class F>
  void each(F&& use);

  Dtype dtype_;
  std::array<std::int64_t, 3> sizes_, strides_{};
  std::vector<std::uint8_t> bytes_;
  Buffer memory_;
  Device device_;
};

dispatch::Plan plan_of(const Context& context, const ScanCase& c, bool training);

// Runs forward, and backward with the states that it left, or those of `given` where it has some.
ScanNumbers run(
    const ScanCase& c, const ScanNumbers& n, Context& context, bool training = true,
    const std::function<void(ScanArgs&)>& change = [](ScanArgs&) {},
    const std::function<void(ScanBackwardArgs&)>& change_back = [](ScanBackwardArgs&) {});

// Real and imaginary parts in a row, for the comparisons of support/compare.h.
Values flat(const Numbers& numbers);

}  // namespace scanrnn::test
