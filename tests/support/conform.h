// SPDX-License-Identifier: Apache-2.0
// What it means that a result conforms: each tensor within the table's tolerance of the reference.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/library.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace scanrnn::test {

inline void expect_forward(const Case& c, const Result& got, const oracle::Answer& want,
                           const std::string& what = "") {
  const Tolerance tolerance = forward_tolerance(c.layer.dtype, c.steps, c.layer.num_layers);
  // The states of LSTM and GRU hold products of gates, each off by the rounding of its logit, which
  // is of about 1 where the product is small too.
  const double gates = is_dense(c.layer) ? 1 : 0;
  const double state = std::max(want.terms.state, gates);
  // What is read out of a state, r g(c) + (1 - r) x', may be smaller than its terms; |g(c)| <= |c|.
  const double largest = info(c.layer.cell).highway ? want.terms.state : gates;
  EXPECT_TRUE(close(what + "y", got.y, want.y, tolerance, largest)) << text(c);
  EXPECT_TRUE(close(what + "h_n", got.hn, want.hn, tolerance, state)) << text(c);
  EXPECT_TRUE(close(what + "c_n", got.cn, want.cn, tolerance, state)) << text(c);
}

inline void expect_backward(const Case& c, const Result& got, const oracle::Answer& want,
                            const std::string& what = "") {
  const double relative = gradient_tolerance(c.layer.dtype);
  const double floor = accuracy(c.layer.dtype).floor;
  const double of_dx =
                   floor * cotangent_roundings(c.layer.hidden_size * info(c.layer.cell).gates, 1),
               of_dparams = floor * cotangent_roundings(c.steps * c.batch, 30);
  EXPECT_TRUE(close_rms(what + "dx", got.dx, want.dx, relative, of_dx)) << text(c);
  EXPECT_TRUE(close_rms(what + "dh_0", got.dh0, want.dh0, relative, floor, want.terms.dh0))
      << text(c);
  EXPECT_TRUE(close_rms(what + "dc_0", got.dc0, want.dc0, relative, floor)) << text(c);
  ASSERT_EQ(got.dparams.size(), want.dparams.size());
  const Layer layer(c.layer);
  for (std::size_t i = 0; i < want.dparams.size(); ++i) {
    EXPECT_TRUE(close_rms(what + "d" + layer.parameters()[i].name, got.dparams[i], want.dparams[i],
                          relative, of_dparams, want.terms.dparams[i]))
        << text(c);
  }
}

inline void expect_conforms(const Case& c, const Result& got, const oracle::Answer& want,
                            const std::string& what = "") {
  expect_forward(c, got, want, what);
  expect_backward(c, got, want, what);
}

}  // namespace scanrnn::test
