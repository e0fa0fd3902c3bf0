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

// Rows of a pool of so many states, of layers of these sizes.
struct Rows {
  std::vector<std::int32_t> indices;
  std::int64_t states, input, hidden;
};

// A step on rows of a pool of states is the step on these states, in place; others stay.
void expect_steps_on_rows(Case c, const Rows& rows_of_pool, Random& random) {
  const std::vector<std::int32_t>& indices = rows_of_pool.indices;
  const std::int64_t states = rows_of_pool.states, hidden = c.layer.hidden_size;
  const Data data = random_data(c, random);
  const auto drawn = [&] {
    Values out = random.uniform(2 * states * hidden, -1, 1);
    for (double& value : out) value = rounded(value, c.layer.dtype);
    return out;
  };
  std::vector<Values> pools;  // one for each tensor of the state
  for (std::size_t i = 0; i <= c.more_states(); ++i) pools.push_back(drawn());
  if (c.is_scaled()) {
    for (double& value : pools[2]) value = rounded(1 + std::fabs(value), c.layer.dtype);
  }
  // What it should be, by the same step on the rows themselves.
  Data rows = data;
  const auto for_rows = [&](const auto& use) {
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (std::int64_t row = 0; row < c.batch; ++row) {
        const std::int64_t state = indices[static_cast<std::size_t>(row)];
        if (state >= 0) use((layer * states + state) * hidden, (layer * c.batch + row) * hidden);
      }
    }
  };
  for_rows([&](std::int64_t from, std::int64_t to) {
    for (std::size_t i = 0; i < pools.size(); ++i) {
      Values& one = i == 0 ? rows.h0 : rows.more0[i - 1];
      std::copy_n(pools[i].begin() + from, hidden, one.begin() + to);
    }
  });
  const Result want = library_inference(c, rows);
  std::vector<Values> wanted = pools;
  for_rows([&](std::int64_t to, std::int64_t from) {
    for (std::size_t i = 0; i < pools.size(); ++i) {
      const Values& one = i == 0 ? want.hn : want.moren[i - 1];
      std::copy_n(one.begin() + from, hidden, wanted[i].begin() + to);
    }
  });

  Context& context = shared_context(1);
  const Layer layer(c.layer);
  for (const bool as_one : {false, true}) {
    dispatch::Plan plan =
        layer.plan(context, BatchShape{1, c.batch, Batch::ragged}, Mode::inference);
    plan.at_once = 1;
    if (as_one && !dispatch::step_as_one(plan)) continue;
    Buffers buffers(c, data);
    std::vector<Tensor> held;
    for (const Values& pool : pools)
      held.emplace_back(c.layer.dtype, std::vector<std::int64_t>{2, states, hidden}, pool);
    Scratch workspace(context, layer.sizes(plan).workspace);
    Mirror mirror(context);
    ForwardArgs args = buffers.forward_args(mirror);
    for (std::size_t i = 0; i < held.size(); ++i) {
      args.h0.*kStateTensors[i] = mirror.view(held[i]);
    }
    args.hn = {};
    const Uploaded there(context, TensorView::of(indices.data(), Dtype::int32, {c.batch}));
    const Device device = context.options().device;
    args.x = TensorView::of(args.x.data, c.layer.dtype, {c.batch, c.layer.input_size}, device);
    args.y = TensorView::of(args.y.data, c.layer.dtype, {c.batch, hidden}, device);
    args.state_indices = there.view();
    args.workspace = workspace.span();
    layer.step(context, plan, args);
    mirror.bring_back();
    EXPECT_TRUE(workspace.intact() && buffers.intact());
    for (std::size_t i = 0; i < held.size(); ++i) {
      EXPECT_TRUE(held[i].intact());
      EXPECT_EQ(held[i].values(), wanted[i]) << text(c) << letter(i);
    }
    const Values y = buffers.result().y;
    const auto width = static_cast<std::size_t>(hidden);
    for (std::size_t row = 0; row < indices.size(); ++row) {
      for (std::size_t k = 0; k < width; ++k) {
        EXPECT_EQ(y[row * width + k], indices[row] < 0 ? 0 : want.y[row * width + k]) << text(c);
      }
    }
  }
}

TEST(Pool, StepsAreThoseOnItsRows) {
  Random random(1507);
  for (const LayerOptions& options : few_layers()) {
    for (Dtype dtype : dtypes()) {
      for (const Rows& rows : {Rows{{4, -1, 0, 2, -1}, 6, 5, 9}, Rows{{2, -1, 0}, 3, 16, 16},
                               Rows{{1}, 3, 16, 16}, Rows{{-1, -1}, 2, 8, 8}}) {
        Case c;
        c.layer = options;
        c.layer.dtype = dtype;
        c.layer.input_size = rows.input;
        c.layer.hidden_size = rows.hidden;
        fit(c.layer);
        c.layer.num_layers = 2;
        c.layer.batch_first = dtype == Dtype::float32;
        c.steps = 1;
        c.batch = static_cast<std::int64_t>(rows.indices.size());
        expect_steps_on_rows(c, rows, random);
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
