// SPDX-License-Identifier: Apache-2.0
// A captured call whose seed lies in memory draws anew where the seed was written to.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/cuda.h"
#include "support/library.h"

namespace scanrnn::test {
namespace {

using SeedOnCuda = CudaTest;

TEST_F(SeedOnCuda, CapturedCallsReadItAnew) {
  Random random(1571);
  for (const LayerOptions& options : few_variants()) {
    const Case c = drawing_case(options, {});
    const Data data = random_data(c, random);
    Stream stream;
    Context context = make_context(stream);
    Buffer memory(context, sizeof(std::uint64_t));
    Training training(c, data, context);
    training.draw_by(TensorView::of(memory.data(), Dtype::int64, {1}, test_device()));
    TimedGraph graph(context, [&] { training.enqueue(); });
    std::vector<std::vector<std::uint8_t>> found;
    for (std::uint64_t seed : {std::uint64_t{3}, ~std::uint64_t{0}, std::uint64_t{3}}) {
      Training by_value(c, data, context);
      by_value.draw_by(seed);
      by_value.enqueue();
      stream.synchronize();
      memory.upload(&seed, sizeof seed);
      training.poison();
      graph.run();
      stream.synchronize();
      found.push_back(training.bits());
      EXPECT_EQ(found.back(), by_value.bits()) << text(c);
    }
    EXPECT_NE(found[0], found[1]) << text(c);
  }
}

}  // namespace
}  // namespace scanrnn::test
