// SPDX-License-Identifier: Apache-2.0
// Steps on rows of a pool of states against the same steps on these states by themselves.
#include <gtest/gtest.h>

#include "support/by_lines.h"
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
  for (const LayerOptions& options : few_layers()) {
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
      std::vector<Values> pools;  // one for each tensor of the state
      for (std::size_t i = 0; i <= c.more_states(); ++i) pools.push_back(drawn());
      if (c.is_scaled()) {
        for (double& value : pools[2]) value = rounded(1 + std::fabs(value), dtype);
      }
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
        for (std::size_t i = 0; i < pools.size(); ++i) {
          Values& one = i == 0 ? rows.h0 : rows.more0[i - 1];
          std::copy_n(pools[i].begin() + from, 9, one.begin() + to);
        }
      });
      const Result want = library_inference(c, rows);
      std::vector<Values> wanted = pools;
      for_rows([&](std::int64_t to, std::int64_t from) {
        for (std::size_t i = 0; i < pools.size(); ++i) {
          const Values& one = i == 0 ? want.hn : want.moren[i - 1];
          std::copy_n(one.begin() + from, 9, wanted[i].begin() + to);
        }
      });

      Context& context = shared_context(1);
      const Layer layer(c.layer);
      const dispatch::Plan plan =
          layer.plan(context, BatchShape{1, c.batch, Batch::ragged}, Mode::inference);
      Buffers buffers(c, data);
      std::vector<Tensor> held;
      for (const Values& pool : pools)
        held.emplace_back(dtype, std::vector<std::int64_t>{2, kStates, 9}, pool);
      Scratch workspace(context, layer.sizes(plan).workspace);
      Mirror mirror(context);
      ForwardArgs args = buffers.forward_args(mirror);
      for (std::size_t i = 0; i < held.size(); ++i) {
        args.h0.*kStateTensors[i] = mirror.view(held[i]);
      }
      args.hn = {};
      const Uploaded rows_of(context, TensorView::of(indices.data(), Dtype::int32, {c.batch}));
      const Device device = context.options().device;
      args.x = TensorView::of(args.x.data, dtype, {c.batch, c.layer.input_size}, device);
      args.y = TensorView::of(args.y.data, dtype, {c.batch, 9}, device);
      args.state_indices = rows_of.view();
      args.workspace = workspace.span();
      layer.step(context, plan, args);
      mirror.bring_back();
      EXPECT_TRUE(workspace.intact() && buffers.intact());
      for (std::size_t i = 0; i < held.size(); ++i) {
        EXPECT_TRUE(held[i].intact());
        EXPECT_EQ(held[i].values(), wanted[i]) << text(c) << letter(i);
      }
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
