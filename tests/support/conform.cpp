// SPDX-License-Identifier: Apache-2.0
// Each tensor of a result beside the reference's.
#include "support/conform.h"

namespace scanrnn::test {

void expect_forward(const Case& c, const Result& got, const oracle::Answer& want,
                    const std::string& what) {
  Tolerance tolerance = forward_tolerance(c.layer.dtype, c.steps, c.layer.num_layers);
  tolerance.scale *= 1 + want.terms.growth;
  // The states of dense cells hold products of gates, each off by the rounding of its logit, which
  // is of about 1 where the product is small too.
  const double gates = is_dense(c.layer) ? 1 : 0;
  const double state = std::max(want.terms.state, gates);
  // What is read out of a state, as r g(c) + (1 - r) x', may be smaller than its terms; |g(c)| <=
  // |c|.
  const double largest = info(c.layer.cell).readout ? want.terms.state : gates;
  EXPECT_TRUE(close(what + "y", got.y, want.y, tolerance, largest)) << text(c);
  EXPECT_TRUE(close(what + "h_n", got.hn, want.hn, tolerance, state)) << text(c);
  for (std::size_t i = 0; i < got.moren.size(); ++i) {
    EXPECT_TRUE(close(what + letter(i + 1) + "_n", got.moren[i], want.moren[i], tolerance, state))
        << text(c);
  }
}

void expect_backward(const Case& c, const Result& got, const oracle::Answer& want,
                     const std::string& what, double more, bool as_cuda) {
  const auto close_gradient = [&](const std::string& name, const Values& result,
                                  const Values& reference, double floor, const Values& terms = {},
                                  double times = 1) {
    const double relative =
        more + times * (1 + want.terms.growth) *
                   gradient_tolerance(c.layer.dtype, c.layer.num_layers, want.terms.logit_error,
                                      reference.size(), as_cuda);
    return close_rms(what + name, result, reference, relative, floor, terms);
  };
  const double floor = accuracy(c.layer.dtype).floor;
  const double of_dx =
                   floor * cotangent_roundings(c.layer.hidden_size * info(c.layer.cell).gates, 1),
               of_dparams = floor * cotangent_roundings(c.steps * c.batch, 30);
  EXPECT_TRUE(close_gradient("dx", got.dx, want.dx, of_dx, want.terms.dx)) << text(c);
  EXPECT_TRUE(close_gradient("dh_0", got.dh0, want.dh0, floor, want.terms.dh0)) << text(c);
  for (std::size_t i = 0; i < got.dmore0.size(); ++i) {
    EXPECT_TRUE(close_gradient("d" + letter(i + 1) + "_0", got.dmore0[i], want.dmore0[i], floor,
                               want.terms.dmore0[i]))
        << text(c);
  }
  ASSERT_EQ(got.dparams.size(), want.dparams.size());
  const Layer layer(c.layer);
  const CellInfo& cell = info(c.layer.cell);
  for (std::size_t i = 0; i < want.dparams.size(); ++i) {
    const std::string& name = layer.parameters()[i].name;
    // Peepholes of a dense cell meet c, which is not bounded as h and x are, and its error.
    const bool of_c = is_dense(c.layer) && cell.vectors > 0 && name.find(cell.vectors_name) == 0;
    EXPECT_TRUE(close_gradient("d" + name, got.dparams[i], want.dparams[i], of_dparams,
                               want.terms.dparams[i], of_c ? 2 : 1))
        << text(c);
  }
}

}  // namespace scanrnn::test
