// SPDX-License-Identifier: Apache-2.0
// What ragged batches refuse: each error names the argument, and nothing is written.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/library.h"
#include "support/ragged_case.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

using dispatch::Batch;

const std::int64_t kDecreasing[] = {0, 4, 3, 9}, kLate[] = {1, 4, 6, 9}, kShort[] = {0, 4, 6, 8};
const std::int64_t kNegative[] = {4, -1, 5}, kTooLong[] = {4, 7, 5};

std::unique_ptr<Context>& kept_context = Shared<Context>::make();
Context& one_context() {
  if (!kept_context) kept_context = std::make_unique<Context>(make_context(1));
  return *kept_context;
}
// On the device of the tests, for as long as they run.
std::unique_ptr<std::vector<Uploaded>>& all_integers = Shared<std::vector<Uploaded>>::make();
TensorView integers(const std::int64_t* values, std::int64_t count) {
  if (!all_integers) all_integers = std::make_unique<std::vector<Uploaded>>();
  all_integers->emplace_back(one_context(), TensorView::of(values, Dtype::int64, {count}));
  return all_integers->back().view();
}
// A GPU looks at values only where the environment says so.
struct ChecksValues {
  ChecksValues() { setenv("SCANRNN_CHECK", "1", 1); }
  ~ChecksValues() { unsetenv("SCANRNN_CHECK"); }
};

struct Fault {
  const char* message;  // how it begins
  bool packed;
  std::function<void(Ragged&)> make;
};

const Fault kFaults[] = {
    {"lengths: expected none with cu_seqlens", true,
     [](Ragged& r) { r.lengths = integers(kNegative, 3); }},
    {"lengths: expected shape (3,) = (batch,), got (2,)", false,
     [](Ragged& r) { r.lengths.sizes[0] = 2; }},
    {"lengths: expected int32 or int64, got float32", false,
     [](Ragged& r) { r.lengths.dtype = Dtype::float32; }},
    {"lengths: expected device c", false,
     [](Ragged& r) { r.lengths.device = on_cuda() ? Device{} : Device::cuda(); }},
    {"lengths: expected integers in [0, 6], got -1 at 1", false,
     [](Ragged& r) { r.lengths = integers(kNegative, 3); }},
    {"lengths: expected integers in [0, 6], got 7 at 1", false,
     [](Ragged& r) { r.lengths = integers(kTooLong, 3); }},
    {"reset: expected shape (6, 3) = (steps, batch), got (3, 6)", false,
     [](Ragged& r) { std::swap(r.reset.sizes[0], r.reset.sizes[1]); }},
    {"reset: expected dtype bool, got int32", false,
     [](Ragged& r) { r.reset.dtype = Dtype::int32; }},
    {"cu_seqlens: expected them with a plan for a packed batch, got none", true,
     [](Ragged& r) { r.cu_seqlens = {}; }},
    {"cu_seqlens: expected a plan for a packed batch with them", false,
     [](Ragged& r) { r.lengths = {}, r.cu_seqlens = integers(kShort, 4); }},
    {"cu_seqlens: expected shape (4,) = (sequences + 1,), got (3,)", true,
     [](Ragged& r) { r.cu_seqlens.sizes[0] = 3; }},
    {"cu_seqlens: expected integers in [4, 9], got 3 at 2", true,
     [](Ragged& r) { r.cu_seqlens = integers(kDecreasing, 4); }},
    {"cu_seqlens: expected 0 at first and the number of tokens, 9, at last, got 1 and 9", true,
     [](Ragged& r) { r.cu_seqlens = integers(kLate, 4); }},
    {"cu_seqlens: expected 0 at first and the number of tokens, 9, at last, got 0 and 8", true,
     [](Ragged& r) { r.cu_seqlens = integers(kShort, 4); }},
    {"reset: expected shape (9,) = (tokens,), got (8,)", true,
     [](Ragged& r) { r.reset.sizes[0] = 8; }},
};

TEST(RaggedErrors, NameTheArgumentAndWriteNothing) {
  const ChecksValues checks;
  Random random(1521);
  for (const Fault& fault : kFaults) {
    RaggedCase c = ragged_case({}, {4, 2, 3}, fault.packed);
    c.whole.steps = fault.packed ? 9 : 6;
    reset_some(c, 0.1, random);
    Context& context = one_context();
    const Arguments arguments(c, true, context);
    Buffers buffers(c.whole, random_data(c.whole, random));
    const auto right = [&](auto& args) { args.ragged = arguments.ragged(); };
    const auto wrong = [&](auto& args) {
      right(args);
      fault.make(args.ragged);
    };
    EXPECT_EQ(message([&] {
                buffers.forward(context, Mode::inference, 0, wrong);
              }).rfind(fault.message, 0),
              0u)
        << fault.message;
    EXPECT_TRUE(buffers.outputs_untouched());
    buffers.forward(context, Mode::training, 0, right);
    buffers.poison_outputs();
    EXPECT_EQ(message([&] { buffers.backward(context, 0, wrong); }).rfind(fault.message, 0), 0u)
        << fault.message;
    EXPECT_TRUE(buffers.outputs_untouched());
  }
}

TEST(RaggedErrors, RectangularPlan) {
  Random random(1522);
  RaggedCase c = ragged_case({}, {4, 2, 3}, false);
  c.whole.layout = Batch::rectangular;
  Context& context = one_context();
  const Arguments arguments(c, true, context);
  Buffers buffers(c.whole, random_data(c.whole, random));
  const std::string got = message([&] {
    buffers.forward(context, Mode::inference, 0,
                    [&](ForwardArgs& args) { args.ragged = arguments.ragged(); });
  });
  EXPECT_EQ(got, "lengths: expected a plan for a ragged batch, got one for a rectangular one");
  EXPECT_TRUE(buffers.outputs_untouched());
}

// On CUDA no kernel splits time inside a block where a batch is ragged or draws.
TEST(RaggedErrors, PlansWithoutAKernel) {
  if (!on_cuda()) GTEST_SKIP() << "a CPU has no blocks";
  LayerOptions options;
  options.input_size = options.hidden_size = 7;
  for (const Batch layout : {Batch::ragged, Batch::packed, Batch::rectangular}) {
    options.zoneout = layout == Batch::rectangular ? 0.1 : 0;
    const Layer layer(options);
    dispatch::Plan plan = layer.plan(one_context(), BatchShape{40, 3, layout}, Mode::inference,
                                     dispatch::Strategy::parallel_scan);
    EXPECT_TRUE(plan.across_blocks);
    plan.across_blocks = false;
    const std::string got = message([&] { layer.forward(one_context(), plan, ForwardArgs()); });
    EXPECT_EQ(got.rfind("plan: expected one that splits time over blocks", 0), 0u) << got;
  }
}

TEST(RaggedErrors, StateIndices) {
  const ChecksValues checks;
  const std::int64_t good[] = {0, 2, -1}, twice[] = {1, -1, 1}, above[] = {0, 4, 1},
                     below[] = {0, -2, 1};
  Context& context = one_context();
  LayerOptions options;
  options.input_size = 5;
  options.hidden_size = 7;
  const Layer layer(options);
  Tensor x(Dtype::float32, {3, 5}, Values(15, 0.5)), y(Dtype::float32, {3, 7});
  Tensor pool(Dtype::float32, {1, 4, 7}, Values(28, 0.25));
  std::vector<Tensor> params;
  for (const ParameterInfo& parameter : layer.parameters()) {
    std::int64_t count = 1;
    for (std::int64_t size : parameter.sizes) count *= size;
    params.emplace_back(Dtype::float32, parameter.sizes,
                        Values(static_cast<std::size_t>(count), 0.1));
  }
  const auto step = [&](Batch layout, const auto& change, std::int64_t rows = 3) {
    const auto plan = layer.plan(context, BatchShape{1, rows, layout}, Mode::inference);
    Scratch workspace(context, layer.sizes(plan).workspace);
    Mirror mirror(context);
    ForwardArgs args;
    for (Tensor& parameter : params) args.params.push_back(mirror.view(parameter));
    args.x = mirror.view(x);
    args.y = mirror.view(y);
    args.h0.h = mirror.view(pool);
    args.state_indices = integers(good, 3);
    args.workspace = workspace.span();
    change(args);
    const std::string out = message([&] { layer.step(context, plan, args); });
    mirror.bring_back();
    return out;
  };
  const auto of = [&](const std::int64_t* values) {
    return [=](ForwardArgs& args) { args.state_indices = integers(values, 3); };
  };
  const auto nothing = [](ForwardArgs&) {};
  EXPECT_EQ(step(Batch::ragged, of(above)),
            "state_indices: expected integers in [-1, 3], got 4 at 1");
  EXPECT_EQ(step(Batch::ragged, of(below)),
            "state_indices: expected integers in [-1, 3], got -2 at 1");
  EXPECT_EQ(step(Batch::ragged, of(twice)),
            "state_indices: expected each state once, got 1 again at 2");
  EXPECT_EQ(step(Batch::ragged, [](ForwardArgs& args) { args.state_indices.sizes[0] = 2; }),
            "state_indices: expected shape (3,) = (batch,), got (2,)");
  EXPECT_EQ(step(Batch::ragged, [](ForwardArgs& args) { args.hn = args.h0; }),
            "h_n: expected none with state_indices, the pool is updated in place");
  EXPECT_EQ(step(Batch::ragged, [](ForwardArgs& args) { args.h0 = {}; }),
            "h: expected a pool of states, 3 axes, with state_indices, got none");
  EXPECT_EQ(step(Batch::ragged, [](ForwardArgs& args) { args.h0.h.rank = 2; }),
            "h: expected a pool of states, 3 axes, with state_indices, got shape (1, 4)");
  EXPECT_EQ(step(Batch::ragged, [](ForwardArgs& args) { args.h0.h.sizes[1] = -4; }),
            "h: expected a pool of states, got -4 of them");
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_EQ(step(Batch::ragged, [&](ForwardArgs& args) { args.h0.h.sizes[1] = most; }),
            "h: 4611686018427387904 states take more bytes than can be counted");
  EXPECT_EQ(step(Batch::rectangular, nothing),
            "state_indices: expected a plan for a ragged batch, got another");
  EXPECT_TRUE(y.untouched());
  EXPECT_EQ(pool.values(), Values(28, 0.25));
  EXPECT_EQ(step(Batch::ragged, nothing), "nothing was thrown");
  // An empty vector, for no rows, may have no address.
  const auto none = [](ForwardArgs& args) {
    args.x.sizes[0] = args.y.sizes[0] = 0;
    args.state_indices = TensorView::of(nullptr, Dtype::int64, {0}, args.x.device);
  };
  EXPECT_EQ(step(Batch::ragged, none, 0), "nothing was thrown");
  EXPECT_NE(pool.values(), Values(28, 0.25));
}

}  // namespace
}  // namespace scanrnn::test
