// SPDX-License-Identifier: Apache-2.0
// Every wrong argument of a call throws before any work: the message names it, says what came and
// what was wanted, and nothing was written.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/library.h"
#include "support/wrong.h"

namespace scanrnn::test {
namespace {

// What can be wrong with a view, and what is to be read about it.
struct Fault {
  const char* name;
  std::function<void(TensorView&)> make;
  bool type;  // type_error, else value_error
  std::vector<std::string> words;
};

std::vector<Fault> faults() {
  return {
      {"rank", [](TensorView& v) { --v.rank; }, false, {"shape"}},
      {"one more",
       [](TensorView& v) { ++v.sizes[static_cast<std::size_t>(v.rank - 1)]; },
       false,
       {"expected shape", "got"}},
      {"one less", [](TensorView& v) { --v.sizes[0]; }, false, {"expected shape", "got"}},
      {"dtype", [](TensorView& v) { v.dtype = Dtype::float64; }, true, {"float32", "float64"}},
      {"device",
       [](TensorView& v) { v.device = on_cuda() ? Device::cpu() : Device::cuda(1); },
       true,
       {name(test_device()), on_cuda() ? "cpu" : "cuda:1"}},
      {"address",
       [](TensorView& v) { v.data = static_cast<char*>(v.data) + 2; },
       false,
       {"an address in whole elements of 4 bytes"}},
      {"last axis apart",
       [](TensorView& v) { v.strides[static_cast<std::size_t>(v.rank - 1)] = 2; },
       false,
       {"contiguous", "2"}},
      {"rows on each other",
       [](TensorView& v) {
         if (v.rank > 1) {
           v.strides[0] = 1;
         } else {
           v.strides[0] = 0;  // a row of one element each
         }
       },
       false,
       {"stride"}},
  };
}

template <class Args>
struct Argument {
  const char* name;
  TensorView* (*of)(Args&);
  bool optional;
};

// Calls of a pass in training mode, by how their arguments are changed.
auto forward_of(Buffers& buffers, Context& context) {
  return [&](auto change) {
    return [&, change] { buffers.forward(context, Mode::training, 0, change); };
  };
}
auto backward_of(Buffers& buffers, Context& context) {
  return [&](auto change) { return [&, change] { buffers.backward(context, 0, change); }; };
}

class ErrorTest : public testing::Test {
 protected:
  // Calls with each fault of each argument; `run(change)` is the call.
  template <class Args, class F>
  void check_arguments(const std::vector<Argument<Args>>& arguments, F&& run) {
    for (const auto& argument : arguments) {
      for (const Fault& fault : faults()) {
        SCOPED_TRACE(std::string(argument.name) + ": " + fault.name);
        std::vector<std::string> words = fault.words;
        words.insert(words.begin(), std::string(argument.name) + ": ");
        const auto call = [&] { run([&](Args& args) { fault.make(*argument.of(args)); }); };
        if (fault.type) {
          expect_error<type_error>(call, words);
        } else {
          expect_error<value_error>(call, words);
        }
      }
      if (argument.optional) continue;
      SCOPED_TRACE(std::string(argument.name) + ": absent");
      expect_error<value_error>([&] { run([&](Args& args) { *argument.of(args) = {}; }); },
                                {std::string(argument.name) + ": ", "none"});
    }
  }
};

TEST_F(ErrorTest, ForwardTensors) {
  for (bool batch_first : {false, true}) {
    const Case c = error_case(batch_first);
    Random random(51);
    Buffers buffers(c, random_data(c, random));
    Context context = make_context(1);
    const std::vector<Argument<ForwardArgs>> arguments{
        {"weight_ih_l0", [](ForwardArgs& a) { return &a.params[0]; }, false},
        {"bias_ih_l0", [](ForwardArgs& a) { return &a.params[1]; }, false},
        {"weight_ih_l1_reverse", [](ForwardArgs& a) { return &a.params[6]; }, false},
        {"x", [](ForwardArgs& a) { return &a.x; }, false},
        {"h_0", [](ForwardArgs& a) { return &a.h0.h; }, true},
        {"y", [](ForwardArgs& a) { return &a.y; }, false},
        {"h_n", [](ForwardArgs& a) { return &a.hn.h; }, true},
    };
    check_arguments(arguments,
                    [&](auto&& change) { buffers.forward(context, Mode::training, 0, change); });
    EXPECT_TRUE(buffers.outputs_untouched());
  }
}

TEST_F(ErrorTest, BackwardTensors) {
  const Case c = error_case();
  Random random(52);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  buffers.forward(context, Mode::training);
  const auto before = buffers.y.bits();
  const std::vector<Argument<BackwardArgs>> arguments{
      {"weight_ih_l0", [](BackwardArgs& a) { return &a.params[0]; }, false},
      {"x", [](BackwardArgs& a) { return &a.x; }, false},
      {"h_0", [](BackwardArgs& a) { return &a.h0.h; }, true},
      {"y", [](BackwardArgs& a) { return &a.y; }, false},
      {"dy", [](BackwardArgs& a) { return &a.dy; }, true},
      {"dh_n", [](BackwardArgs& a) { return &a.dhn.h; }, true},
      {"dx", [](BackwardArgs& a) { return &a.dx; }, true},
      {"dh_0", [](BackwardArgs& a) { return &a.dh0.h; }, true},
      {"dweight_ih_l0", [](BackwardArgs& a) { return &a.dparams[0]; }, false},
      {"dbias_ih_l1_reverse", [](BackwardArgs& a) { return &a.dparams[7]; }, false},
  };
  check_arguments(arguments, [&](auto&& change) { buffers.backward(context, 0, change); });
  EXPECT_EQ(buffers.y.bits(), before);
  EXPECT_TRUE(buffers.dx.untouched() && buffers.dh0.untouched());
  for (const Tensor& parameter : buffers.dparams) EXPECT_TRUE(parameter.untouched());
}

// The whole sentence, once, as a user reads it.
TEST_F(ErrorTest, SaysWhatWasWanted) {
  const Case c = error_case();
  Random random(53);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  expect_error<value_error>(
      [&] {
        buffers.forward(context, Mode::inference, 0, [](ForwardArgs& a) { a.h0.h.sizes[0] = 1; });
      },
      {"h_0: expected shape (4, 3, 7) = (num_layers * num_directions, batch, hidden_size), got (1, "
       "3, "
       "7)"});
}

// Two outputs in one piece of memory, or rows of one that lie in one another.
TEST_F(ErrorTest, OutputsOnEachOther) {
  Case c = error_case();
  c.layer.cell = Cell::LSTM;
  Random random(59);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  const auto forward = forward_of(buffers, context);
  const auto backward = backward_of(buffers, context);
  expect_error<value_error>(forward([](ForwardArgs& a) { a.hn.c = a.hn.h; }),
                            {"c_n: expected memory of its own, got that of h_n"});
  expect_error<value_error>(forward([](ForwardArgs& a) { a.hn.h.data = a.y.data; }),
                            {"h_n: expected memory of its own, got that of y"});
  expect_error<value_error>(forward([](ForwardArgs& a) { a.y.strides[0] = a.y.strides[1]; }),
                            {"y: expected elements that do not overlap", "got stride 14 on axis"});
  EXPECT_TRUE(buffers.outputs_untouched());
  buffers.forward(context, Mode::training);
  expect_error<value_error>(backward([](BackwardArgs& a) { a.dh0.h.data = a.dx.data; }),
                            {"dh_0: expected memory of its own, got that of dx"});
  expect_error<value_error>(
      backward([](BackwardArgs& a) { a.dparams[3].data = a.dparams[2].data; }),
      {"dbias_hh_l0: expected memory of its own, got that of dbias_ih_l0"});
  EXPECT_TRUE(buffers.dx.untouched() && buffers.dparams[2].untouched());
  // Inputs may lie in one another.
  buffers.forward(context, Mode::training, 0,
                  [](ForwardArgs& a) { a.x.strides[0] = a.x.strides[1]; });
}

TEST_F(ErrorTest, CountsOfParameters) {
  const Case c = error_case();
  Random random(54);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  expect_error<value_error>(
      [&] {
        buffers.forward(context, Mode::training, 0, [](ForwardArgs& a) { a.params.pop_back(); });
      },
      {"params", "8", "7"});
  buffers.forward(context, Mode::training);
  expect_error<value_error>(
      [&] { buffers.backward(context, 0, [](BackwardArgs& a) { a.dparams.pop_back(); }); },
      {"dparams", "8", "7"});
}

TEST_F(ErrorTest, PairAsState) {
  const Case c = error_case();
  Random random(55);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  expect_error<value_error>(
      [&] {
        buffers.forward(context, Mode::inference, 0, [](ForwardArgs& a) { a.h0.c = a.h0.h; });
      },
      {"h_0", "pair"});
}

TEST_F(ErrorTest, WorkspaceAndReserve) {
  for (const Way& way : linear_ways()) {
    Case c = error_case();
    c.way = way;
    Random random(56);
    Buffers buffers(c, random_data(c, random));
    Context context = make_context(2);
    const auto forward = forward_of(buffers, context);
    const auto backward = backward_of(buffers, context);
    // The plan is in the message, since it is what the bytes come from.
    const std::vector<std::string> small{"workspace", "bytes", name(way.strategy)};
    expect_error<value_error>(forward([](ForwardArgs& a) { --a.workspace.bytes; }), small);
    expect_error<value_error>(forward([](ForwardArgs& a) { a.workspace = {}; }), small);
    expect_error<value_error>(forward([](ForwardArgs& a) { --a.reserve.bytes; }),
                              {"reserve", "bytes"});
    expect_error<value_error>(forward([](ForwardArgs& a) { a.reserve = {}; }),
                              {"reserve", "bytes"});
    const auto shift = [](Span& span) {
      span.data = static_cast<char*>(span.data) + 16;
      span.bytes += 256;
    };
    expect_error<value_error>(forward([&](ForwardArgs& a) { shift(a.workspace); }),
                              {"workspace", "-byte alignment"});
    EXPECT_TRUE(buffers.outputs_untouched());
    buffers.forward(context, Mode::training);
    expect_error<value_error>(backward([](BackwardArgs& a) { --a.workspace.bytes; }), small);
    expect_error<value_error>(backward([](BackwardArgs& a) { --a.reserve.bytes; }),
                              {"reserve", "bytes"});
    expect_error<value_error>(backward([&](BackwardArgs& a) { shift(a.reserve); }),
                              {"reserve", "-byte alignment"});
    EXPECT_TRUE(buffers.dx.untouched() && buffers.dparams[0].untouched());
  }
}

TEST_F(ErrorTest, MoreAxesThanThereAre) {
  expect_error<value_error>([] { TensorView::of(nullptr, Dtype::float32, {1, 1, 1, 4}); },
                            {"sizes: expected at most 3, got 4"});
  const Case c = error_case();
  Random random(58);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  for (const int rank : {-1, kMaxRank + 1, 7}) {
    const auto change = [&](ForwardArgs& args) { args.x.rank = rank; };
    expect_error<value_error>([&] { buffers.forward(context, Mode::inference, 0, change); },
                              {"x: expected a tensor of 3 axes, got " + std::to_string(rank)});
  }
  // The sizes of axes that a view has not are nobody's.
  buffers.forward(context, Mode::inference);
  const Values want = buffers.y.values();
  const auto change = [&](ForwardArgs& args) {
    for (TensorView& view : args.params)
      std::fill(view.sizes.begin() + view.rank, view.sizes.end(), 7);
  };
  buffers.forward(context, Mode::inference, 0, change);
  EXPECT_EQ(buffers.y.values(), want);
}

TEST_F(ErrorTest, PlanOfAnother) {
  const Case c = error_case();
  Random random(57);
  Buffers buffers(c, random_data(c, random));
  Context context = make_context(1);
  const Layer layer(c.layer);
  const auto mine = layer.plan(context, c.steps, c.batch, Mode::inference);
  Mirror mirror(context);
  const ForwardArgs args = buffers.forward_args(mirror);
  const auto with_plan_of = [&](auto change) {
    LayerOptions other = c.layer;
    change(other);
    const auto plan = Layer(other).plan(context, c.steps, c.batch, Mode::inference);
    return [&, plan] { layer.forward(context, plan, args); };
  };
  expect_error<value_error>(with_plan_of([](auto& o) { o.hidden_size = 8; }), {"plan", "another"});
  expect_error<value_error>(with_plan_of([](auto& o) { o.input_size = 8; }), {"plan", "another"});
  expect_error<value_error>(with_plan_of([](auto& o) { o.cell = Cell::MinLSTM; }), {"plan"});
  expect_error<value_error>(with_plan_of([](auto& o) { o.dtype = Dtype::float16; }), {"plan"});
  expect_error<value_error>(with_plan_of([](auto& o) { o.num_layers = 1; }), {"plan"});
  expect_error<value_error>(with_plan_of([](auto& o) { o.bidirectional = false; }), {"plan"});
  expect_error<value_error>(with_plan_of([](auto& o) { o.zoneout = 0.5; }), {"plan"});
  // A plan for another T or B is the shapes' business.
  const auto longer = layer.plan(context, c.steps + 1, c.batch, Mode::inference);
  expect_error<value_error>([&] { layer.forward(context, longer, args); }, {"x: expected shape"});
  // Backward has nothing to go by when the plan kept nothing.
  expect_error<value_error>([&] { layer.backward(context, mine, buffers.backward_args(mirror)); },
                            {"plan", "training"});
  EXPECT_TRUE(buffers.outputs_untouched());
}

TEST_F(ErrorTest, Step) {
  Case c = error_case();
  Random random(58);
  Context context = make_context(1);
  {
    c.steps = 1;
    Buffers buffers(c, random_data(c, random));
    expect_error<value_error>([&] { buffers.step_in_place(context); }, {"bidirectional", "step"});
  }
  c.layer.bidirectional = false;
  c.steps = 2;
  Buffers buffers(c, random_data(c, random));
  expect_error<value_error>([&] { buffers.step_in_place(context); }, {"plan", "one step", "2"});
  // As a user sees them: a step has no axis of time.
  const Layer layer(c.layer);
  const auto plan = layer.plan(context, 1, c.batch, Mode::inference);
  Mirror mirror(context);
  ForwardArgs args = buffers.forward_args(mirror);
  const auto step = [&] { layer.step(context, plan, args); };
  expect_error<value_error>(step,
                            {"x_t: expected shape (3, 5) = (batch, input_size), got (2, 3, 5)"});
  args.x = TensorView::of(args.x.data, Dtype::float32, {3, 5}, test_device());
  expect_error<value_error>(step, {"y: expected shape (3, 7) = (batch, hidden_size), got"});
  EXPECT_TRUE(buffers.outputs_untouched());
}

}  // namespace
}  // namespace scanrnn::test
