// SPDX-License-Identifier: Apache-2.0
// Kernels whose blocks wait for one another need all of them on the device at the same time. Beside
// another stream that keeps a third of the multiprocessors they come later, and end with the same
// bits; and so they do after a million steps.
#include <thread>

#include "scanrnn/dispatch/stack_step.h"
#include "support/busy.h"
#include "support/compare.h"
#include "support/unset.h"

namespace scanrnn::test {
namespace {

using dispatch::Plan;
using dispatch::Strategy;
using std::chrono::milliseconds;
using Split = Way::Split;

class ResidencyTest : public CudaTest {
 protected:
  static Case case_of(Cell cell, Split split, std::int64_t steps, std::int64_t hidden) {
    Case c;
    c.layer.cell = cell;
    c.layer.dtype = Dtype::bfloat16;
    c.layer.input_size = c.layer.hidden_size = hidden;
    c.steps = steps;
    c.batch = 16;
    c.way = {steps == 1 ? Strategy::step_loop : Strategy::persistent, split};
    return c;
  }

  // `check` says of the plan that it is the one which is meant.
  template <class F>
  static void expect_same_beside_others(const Case& c, Mode mode, F&& check) {
    SCOPED_TRACE(text(c));
    Random random(1861);
    const Data data = random_data(c, random);
    const Stream stream;
    Context context = make_context(stream);
    Training work(c, data, context, mode);
    check(work.plan());
    work.enqueue();  // which loads the kernels, too: that may wait for a device to be at rest
    const auto want = work.bits();
    work.poison();
    stream.synchronize();

    const auto third = static_cast<int>(context.limits().units / 3);
    Busy others(third, std::chrono::seconds(10));
    work.enqueue();
    EXPECT_TRUE(others.running()) << "nothing was in the way";
    // Either it runs on what is left, or it waits.
    for (int i = 0; i < 200 && stream.busy(); ++i) std::this_thread::sleep_for(milliseconds(1));
    others.release();
    EXPECT_TRUE(same_bits("all outputs", work.bits(), want));
  }
};

constexpr Cell kCells[] = {Cell::LSTM, Cell::GRU};

TEST_F(ResidencyTest, APersistentKernel) {
  for (const Cell cell : kCells) {
    for (const std::int64_t hidden : {64, 512}) {  // a block has all of R, or a slice
      const Case c = case_of(cell, Split::planned, 64, hidden);
      expect_same_beside_others(c, Mode::training, [](const Plan& plan) {
        EXPECT_TRUE(dispatch::is_persistent(plan, false) && dispatch::is_persistent(plan, true));
      });
    }
  }
}

TEST_F(ResidencyTest, AChainAsOneLaunch) {
  for (const Cell cell : kCells) {
    Case c = case_of(cell, Split::as_one, 64, 256);
    c.layer.num_layers = 3;
    expect_same_beside_others(c, Mode::training, [](const Plan& plan) {
      EXPECT_GT(plan.persistent.layers, 1);
      EXPECT_GT(plan.persistent_vjp.layers, 1);
    });
  }
}

TEST_F(ResidencyTest, AChainByParts) {
  for (const Cell cell : kCells) {
    Case c = case_of(cell, Split::at_once, 40, 256);
    c.layer.num_layers = 3;
    expect_same_beside_others(c, Mode::training, [](const Plan& plan) {
      EXPECT_GT(plan.at_once, 1);
      EXPECT_GT(plan.part_steps, 0);
    });
  }
}

TEST_F(ResidencyTest, BothDirectionsAtOnce) {
  for (const Cell cell : kCells) {
    Case c = case_of(cell, Split::at_once, 64, 256);
    c.layer.num_layers = 2;
    c.layer.bidirectional = true;
    expect_same_beside_others(c, Mode::training,
                              [](const Plan& plan) { EXPECT_EQ(plan.at_once, 2); });
  }
}

TEST_F(ResidencyTest, AStepOfAStack) {
  for (const Cell cell : kCells) {
    Case c = case_of(cell, Split::as_one, 1, 1024);
    c.layer.num_layers = 4;
    c.batch = 4;
    expect_same_beside_others(c, Mode::inference,
                              [](const Plan& plan) { EXPECT_TRUE(dispatch::steps_as_one(plan)); });
  }
}

// A layer of a few units in each of the ways of a persistent kernel, and by a loop of steps.
TEST_F(ResidencyTest, AMillionSteps) {
  constexpr std::int64_t kSteps = 1000000;
  Case c = case_of(Cell::LSTM, Split::planned, 10, 24);
  c.layer.dtype = Dtype::float32;
  c.layer.input_size = 2;
  c.batch = 1;
  Random random(1862);
  const Data data = random_data(c, random);
  const Values x = random.uniform(kSteps * c.layer.input_size, -1.5, 1.5);
  Context& context = shared_context(1);
  const Layer layer(c.layer);
  const auto outputs = [&](const Plan& plan) {
    Unset memory(context);
    ForwardArgs args;
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      const auto& sizes = layer.parameters()[i].sizes;
      args.params.push_back(memory.given(c.layer.dtype, sizes, data.params[i]));
    }
    args.x = memory.given(c.layer.dtype, {kSteps, 1, c.layer.input_size}, x);
    args.y = memory.unset(c.layer.dtype, {kSteps, 1, c.layer.hidden_size});
    args.workspace = memory.span(layer.sizes(plan).workspace);
    layer.forward(context, plan, args);
    return memory.values(args.y);
  };
  const auto plan_by = [&](Strategy strategy) {
    return layer.plan(context, kSteps, 1, Mode::inference, strategy);
  };
  const Values want = outputs(plan_by(Strategy::step_loop));
  Plan plan = plan_by(Strategy::persistent);
  for (const bool in_block : {true, false}) {
    const auto shapes = dispatch::persistent_shapes(plan.problem, plan.device, false);
    const auto shape = std::find_if(shapes.begin(), shapes.end(),
                                    [&](const auto& s) { return s.in_block == in_block; });
    ASSERT_NE(shape, shapes.end());
    plan.persistent = *shape;
    EXPECT_TRUE(close("y", outputs(plan), want, {1e-5, 0, 0})) << dispatch::explain(plan);
  }
}

}  // namespace
}  // namespace scanrnn::test
