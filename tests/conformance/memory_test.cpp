// SPDX-License-Identifier: Apache-2.0
// Memory that is the caller's: views of any strides, what is absent, what is asked for and no more.
#include <gtest/gtest.h>

#include <memory>

#include "support/by_lines.h"
#include "support/cases.h"
#include "support/conform.h"

namespace scanrnn::test {
namespace {

using dispatch::Strategy;

Case memory_case(const LayerOptions& options) {
  Case c;
  c.layer = options;
  c.layer.input_size = 6;
  c.layer.hidden_size = 10;
  c.layer.bidirectional = true;
  c.layer.num_layers = 2;
  fit(c.layer);
  c.steps = 29;
  c.batch = 3;
  c.threads = 2;
  return c;
}

TEST(Memory, SizesThatThePlanBringsAreNotCountedAgain) {
  for (const LayerOptions& options : few_layers()) {
    const Case c = memory_case(options);
    Random random(40);
    Buffers buffers(c, random_data(c, random));
    Context context = make_context(c.threads);
    buffers.forward(context, Mode::training, 0);
    buffers.backward(context, 0);
    const auto y = buffers.y.bits(), dx = buffers.dx.bits();

    const Layer layer(c.layer);
    CountedPlan counted;
    counted.plan = buffers.plan_for(context, Mode::training);
    counted.sizes = layer.sizes(counted.plan);
    Workspace workspace(counted.sizes.workspace), reserve(counted.sizes.reserve);
    Mirror there(context), back(context);
    ForwardArgs in = buffers.forward_args(there);
    in.workspace = there.span(workspace);
    in.reserve = there.span(reserve);
    forward(layer, context, counted, in);
    there.bring_back();
    EXPECT_TRUE(same_bits("y", buffers.y.bits(), y));
    BackwardArgs cotangents = buffers.backward_args(back);
    cotangents.workspace = back.span(workspace);
    cotangents.reserve = back.span(reserve);
    backward(layer, context, counted, cotangents);
    back.bring_back();
    EXPECT_TRUE(same_bits("dx", buffers.dx.bits(), dx));

    counted.sizes.workspace += 256;  // what is brought is what is checked
    EXPECT_THROW(forward(layer, context, counted, in), value_error);
  }
}

// A tensor that lies [B,T,.] in memory, seen as [T,B,.]: the layer must walk the strides it is
// given.
TEST(Memory, AnyOrderOfTheOuterAxes) {
  for (const LayerOptions& options : few_variants()) {
    for (const Way& way : ways(options)) {
      Case c = memory_case(options);
      c.way = way;
      Random random(41);
      const Data data = random_data(c, random);
      const oracle::Answer want = oracle::run(c, data);
      Case swapped = c;
      swapped.layer.batch_first = true;  // how the buffers are laid out
      Buffers buffers(swapped, data, {2, 1});
      const Layer layer(c.layer);  // and what the layer is told
      Context context = make_context(c.threads);
      const dispatch::Plan plan = buffers.plan_for(context, Mode::training);
      const Sizes bytes = layer.sizes(plan);
      Workspace workspace(bytes.workspace), reserve(bytes.reserve);
      const auto transposed = [](TensorView view) {
        std::swap(view.sizes[0], view.sizes[1]);
        std::swap(view.strides[0], view.strides[1]);
        return view;
      };
      Mirror there(context), back(context);
      ForwardArgs forward = buffers.forward_args(there);
      forward.x = transposed(forward.x);
      forward.y = transposed(forward.y);
      forward.workspace = there.span(workspace);
      forward.reserve = there.span(reserve);
      layer.forward(context, plan, forward);
      there.bring_back();
      BackwardArgs backward = buffers.backward_args(back);
      for (TensorView* view : {&backward.x, &backward.y, &backward.dy, &backward.dx}) {
        *view = transposed(*view);
      }
      backward.workspace = back.span(workspace);
      backward.reserve = back.span(reserve);
      layer.backward(context, plan, backward);
      back.bring_back();
      EXPECT_TRUE(workspace.intact() && reserve.intact());
      expect_conforms(c, buffers.result(), want);
    }
  }
}

// What is absent is not computed, or is zero; the rest stays the same to the bit.
TEST(Memory, AbsentOutputs) {
  for (const LayerOptions& options : few_layers()) {
    const Case c = memory_case(options);
    Random random(42);
    const Data data = random_data(c, random);
    Context context = make_context(c.threads);
    Buffers all(c, data);
    all.forward(context, Mode::training);
    all.backward(context);
    const auto run = [&](auto drop_forward, auto drop_backward) {
      auto buffers = std::make_unique<Buffers>(c, data);
      buffers->forward(context, Mode::training, 0, drop_forward);
      buffers->backward(context, 0, drop_backward);
      return buffers;
    };
    const auto keep = [](auto&) {};
    const auto no_hn = run([](ForwardArgs& args) { args.hn = {}; }, keep);
    for (const Tensor& tensor : no_hn->moren) EXPECT_TRUE(tensor.untouched());
    EXPECT_TRUE(no_hn->hn.untouched());
    EXPECT_EQ(no_hn->y.bits(), all.y.bits());
    EXPECT_EQ(no_hn->dx.bits(), all.dx.bits());
    const auto no_dx = run(keep, [](BackwardArgs& args) { args.dx = {}; });
    EXPECT_TRUE(no_dx->dx.untouched());
    EXPECT_EQ(no_dx->dh0.bits(), all.dh0.bits());
    EXPECT_EQ(no_dx->dparams[0].bits(), all.dparams[0].bits());
    const auto no_dh0 = run(keep, [](BackwardArgs& args) { args.dh0 = {}; });
    for (const Tensor& tensor : no_dh0->dmore0) EXPECT_TRUE(tensor.untouched());
    EXPECT_TRUE(no_dh0->dh0.untouched());
    EXPECT_EQ(no_dh0->dx.bits(), all.dx.bits());
    const auto no_dparams = run(keep, [](BackwardArgs& args) { args.dparams.clear(); });
    for (const Tensor& parameter : no_dparams->dparams) EXPECT_TRUE(parameter.untouched());
    EXPECT_EQ(no_dparams->dx.bits(), all.dx.bits());
  }
}

TEST(Memory, AbsentCotangentsAreZeros) {
  for (const LayerOptions& options : few_layers()) {
    const Case c = memory_case(options);
    Random random(43);
    Data data = random_data(c, random);
    Context context = make_context(c.threads);
    for (std::size_t which = 0; which < 2 + c.more_states(); ++which) {
      Data zeros = data;
      Values& cotangent = which == 0 ? zeros.dy : which == 1 ? zeros.dhn : zeros.dmoren[which - 2];
      std::fill(cotangent.begin(), cotangent.end(), 0.0);
      Buffers explicit_zeros(c, zeros), absent(c, data);
      explicit_zeros.forward(context, Mode::training);
      explicit_zeros.backward(context);
      absent.forward(context, Mode::training);
      absent.backward(context, 0, [&](BackwardArgs& args) {
        (which == 0 ? args.dy : args.dhn.*kStateTensors[which - 1]) = {};
      });
      // Values, not bits: a sum with an absent zero may differ in the sign of a zero.
      EXPECT_EQ(absent.result().dx, explicit_zeros.result().dx) << text(c);
      EXPECT_EQ(absent.result().dh0, explicit_zeros.result().dh0) << text(c);
      EXPECT_EQ(absent.result().dmore0, explicit_zeros.result().dmore0) << text(c);
      EXPECT_EQ(absent.result().dparams, explicit_zeros.result().dparams) << text(c);
    }
  }
}

TEST(Memory, AbsentInitialStateIsZeros) {
  for (const LayerOptions& options : with_layers_by_lines(all_variants())) {
    Case c = memory_case(options);
    Random random(44);
    Data data = random_data(c, random);
    std::fill(data.h0.begin(), data.h0.end(), 0.0);
    for (std::size_t i = 0; i < c.more_states(); ++i) {
      std::fill(data.more0[i].begin(), data.more0[i].end(), info(options.cell).fresh[i + 1]);
    }
    const Result zeros = library(c, data);
    c.h0 = false;
    const Result absent = library(c, data);
    EXPECT_EQ(absent.y, zeros.y);
    EXPECT_EQ(absent.dx, zeros.dx);
    EXPECT_EQ(absent.dh0, zeros.dh0) << "the cotangent of an absent state can still be asked for";
    EXPECT_EQ(absent.dmore0, zeros.dmore0);
    EXPECT_EQ(absent.dparams, zeros.dparams);
  }
}

// The reserve is not consumed: another pullback from the same forward pass gives the same.
TEST(Memory, BackwardTwice) {
  for (const LayerOptions& options : few_layers()) {
    const Case c = memory_case(options);
    Random random(45);
    const Data data = random_data(c, random);
    Context context = make_context(c.threads);
    Buffers buffers(c, data);
    buffers.forward(context, Mode::training);
    buffers.backward(context);
    const auto first = buffers.bits();
    for (Tensor* tensor : {&buffers.dx, &buffers.dh0}) tensor->poison();
    for (Tensor& tensor : buffers.dmore0) tensor.poison();
    for (Tensor& parameter : buffers.dparams) parameter.poison();
    buffers.backward(context);
    EXPECT_TRUE(same_bits("all outputs", buffers.bits(), first)) << text(c);
  }
}

TEST(Memory, SizesArePureAlignedAndLastInTraining) {
  const Context context = make_context(3);
  for (const LayerOptions& options : with_layers_by_lines(all_variants())) {
    for (Dtype dtype : dtypes()) {
      for (const Way& way : ways_of_layer(options)) {
        Case c = memory_case(options);
        c.layer.dtype = dtype;
        const Layer layer(c.layer);
        for (std::int64_t steps : {0, 1, 17, 1000}) {
          const auto plan = [&](Mode mode) {
            return way.splits(layer.plan(context, steps, 3, mode, way.strategy));
          };
          const auto inference = plan(Mode::inference), training = plan(Mode::training);
          const Sizes a = layer.sizes(inference), b = layer.sizes(training);
          EXPECT_EQ(a.workspace % 256, 0u);
          EXPECT_EQ(b.workspace % 256, 0u);
          EXPECT_EQ(b.reserve % 256, 0u);
          EXPECT_EQ(a.reserve, 0u) << "nothing is kept in inference";
          const Sizes again = layer.sizes(training);
          EXPECT_EQ(again.workspace, b.workspace);
          EXPECT_EQ(again.reserve, b.reserve);
        }
      }
    }
  }
}

// A forward pass in inference keeps no more than a tile of pre-activations, whatever T is.
TEST(Memory, InferenceDoesNotGrowWithTheSequence) {
  if (on_cuda()) GTEST_SKIP() << "there one product is for all tokens";
  const Context context = make_context(2);
  for (const CellInfo& cell : cells()) {
    LayerOptions options;
    options.cell = cell.cell;
    options.input_size = options.hidden_size = 64;
    const Layer layer(options);
    const auto workspace = [&](std::int64_t steps) {
      const Strategy tiled = is_dense(options) ? Strategy::step_loop : Strategy::fused_sequential;
      return layer.sizes(layer.plan(context, steps, 8, Mode::inference, tiled)).workspace;
    };
    EXPECT_EQ(workspace(10000), workspace(100000)) << cell.name;
  }
}

}  // namespace
}  // namespace scanrnn::test
