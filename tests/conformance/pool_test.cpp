// SPDX-License-Identifier: Apache-2.0
// Steps on rows of a pool of states against the same steps on these states by themselves.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/compare.h"
#include "support/library.h"

namespace scanrnn::test {
namespace {

using dispatch::Batch;

// A step on rows of a pool of states is the step on these states, in place; others stay.
TEST(Pool, StepsAreThoseOnItsRows) {
  Random random(1507);
  const std::vector<std::int32_t> indices{4, -1, 0, 2, -1};
  constexpr std::int64_t kStates = 6;
  for (const LayerOptions& options : few_variants()) {
    for (Dtype dtype : dtypes()) {
      Case c;
      c.layer = options;
      c.layer.dtype = dtype;
      c.layer.input_size = 5;
      c.layer.hidden_size = 9;
      fit(c.layer);
      c.layer.num_layers = 2;
      c.layer.batch_first = dtype == Dtype::float32;
      c.steps = 1;
      c.batch = static_cast<std::int64_t>(indices.size());
      const Data data = random_data(c, random);
      const auto drawn = [&] {
        Values out = random.uniform(2 * kStates * 9, -1, 1);
        for (double& value : out) value = rounded(value, dtype);
        return out;
      };
      const Values pool = drawn(), pool_c = drawn();
      // What it should be, by the same step on the rows themselves.
      Data rows = data;
      const auto for_rows = [&](const auto& use) {
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          for (std::int64_t row = 0; row < c.batch; ++row) {
            const std::int64_t state = indices[static_cast<std::size_t>(row)];
            if (state >= 0) use((layer * kStates + state) * 9, (layer * c.batch + row) * 9);
          }
        }
      };
      for_rows([&](std::int64_t from, std::int64_t to) {
        std::copy_n(pool.begin() + from, 9, rows.h0.begin() + to);
        if (c.pair()) std::copy_n(pool_c.begin() + from, 9, rows.c0.begin() + to);
      });
      const Result want = library_inference(c, rows);
      Values wanted = pool, wanted_c = pool_c;
      for_rows([&](std::int64_t to, std::int64_t from) {
        std::copy_n(want.hn.begin() + from, 9, wanted.begin() + to);
        if (c.pair()) std::copy_n(want.cn.begin() + from, 9, wanted_c.begin() + to);
      });

      Context& context = shared_context(1);
      const Layer layer(c.layer);
      const dispatch::Plan plan =
          layer.plan(context, BatchShape{1, c.batch, Batch::ragged}, Mode::inference);
      Buffers buffers(c, data);
      Tensor h(dtype, {2, kStates, 9}, pool), cells(dtype, {2, kStates, 9}, pool_c);
      Scratch workspace(context, layer.sizes(plan).workspace);
      Mirror mirror(context);
      ForwardArgs args = buffers.forward_args(mirror);
      args.h0 = {mirror.view(h), c.pair() ? mirror.view(cells) : TensorView{}};
      args.hn = {};
      const Uploaded rows_of(context, TensorView::of(indices.data(), Dtype::int32, {c.batch}));
      const Device device = context.options().device;
      args.x = TensorView::of(args.x.data, dtype, {c.batch, c.layer.input_size}, device);
      args.y = TensorView::of(args.y.data, dtype, {c.batch, 9}, device);
      args.state_indices = rows_of.view();
      args.workspace = workspace.span();
      layer.step(context, plan, args);
      mirror.bring_back();
      EXPECT_TRUE(workspace.intact() && h.intact() && cells.intact() && buffers.intact());
      EXPECT_EQ(h.values(), wanted) << text(c);
      EXPECT_EQ(cells.values(), wanted_c) << text(c);
      const Values y = buffers.result().y;
      for (std::size_t row = 0; row < indices.size(); ++row) {
        for (std::size_t k = 0; k < 9; ++k) {
          EXPECT_EQ(y[row * 9 + k], indices[row] < 0 ? 0 : want.y[row * 9 + k]) << text(c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
