// SPDX-License-Identifier: Apache-2.0
// What is drawn in a ragged batch is of its sequence and its time, whatever strategy is asked for,
// with resets and without; and of a batch without a sequence nothing.
#include "support/one_by_one.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

void expect_same_draws(RaggedCase c, Random& random) {
  const Data data = random_data(c.whole, random);
  Context& context = shared_context(c.whole.threads);
  const Arguments arguments(c, false, context);
  const auto add = [&](auto& args) { args.ragged = arguments.ragged(); };
  const auto result = [&](const Way& way) {
    c.whole.way = way;
    Buffers buffers(c.whole, data);
    buffers.forward(context, Mode::training, 7, add);
    buffers.backward(context, 7, add);
    return buffers.result();
  };
  std::vector<Way> others = ways(c.whole.layer);
  const Result want = result(others.front());
  others.erase(others.begin());
  for (const Way& way : others) expect_alike(c, result(way), want);
}

TEST(RaggedDraws, AreThoseOfEveryStrategy) {
  Random random(1581);
  for (LayerOptions options : few_variants()) {
    if (is_dense(options)) continue;
    options.zoneout = 0.3;
    if (info(options.cell).readout) options.state_dropout = 0.25;
    options.bidirectional = true;
    for (const bool packed : {false, true}) {
      for (const int kind : {0, 1, 2}) {
        const std::vector<std::int64_t> lengths{37, 0, 20, 36, 1};
        RaggedCase c = ragged_case(options, kind < 2 ? lengths : decltype(lengths){}, packed);
        if (kind == 1) reset_some(c, 0.2, random);
        expect_same_draws(c, random);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
