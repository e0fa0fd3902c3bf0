// SPDX-License-Identifier: Apache-2.0
// Nothing to compute: no steps, no sequences, or neither. States pass through, gradients are zeros,
// and tensors without elements may have an address or none.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/cases.h"
#include "support/library.h"

namespace scanrnn::test {
namespace {

bool all_zero(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

// Odd widths: an element of the wrong size is then misaligned as well.
Case empty_case(const LayerOptions& options, std::int64_t steps, std::int64_t batch) {
  Case c;
  c.layer = options;
  c.layer.input_size = 9;
  c.layer.hidden_size = 15;
  fit(c.layer);
  c.steps = steps;
  c.batch = batch;
  return c;
}

template <class Args>
void give_addresses(Args& args) {
  static char anywhere;
  const auto give = [](TensorView& view) {
    if (view.rank > 0 && !view) view.data = &anywhere;
  };
  for (State* state : {&args.h0, [&] {
                         if constexpr (std::is_same_v<Args, ForwardArgs>)
                           return &args.hn;
                         else
                           return &args.dhn;
                       }()}) {
    give(state->h);
    give(state->c);
  }
  give(args.x);
  give(args.y);
  if constexpr (std::is_same_v<Args, BackwardArgs>) {
    give(args.dx);
    give(args.dy);
    give(args.dh0.h);
    give(args.dh0.c);
  }
}

void check(const Case& c, bool addresses) {
  SCOPED_TRACE(text(c) + (addresses ? ", with addresses" : ""));
  Random random(7);
  const Data data = random_data(c, random);
  Context& context = shared_context(c.threads);
  Buffers buffers(c, data);
  buffers.forward(context, Mode::training, 0, [&](ForwardArgs& args) {
    if (addresses) give_addresses(args);
  });
  buffers.backward(context, 0, [&](BackwardArgs& args) {
    if (addresses) give_addresses(args);
  });
  const Result got = buffers.result();
  EXPECT_EQ(got.hn, c.h0 ? data.h0 : Values(data.dhn.size()));
  EXPECT_EQ(got.dh0, data.dhn);
  EXPECT_EQ(got.dmore0, data.dmoren);
  for (std::size_t i = 0; i < c.more_states(); ++i) {
    EXPECT_EQ(got.moren[i],
              c.h0 ? data.more0[i] : Values(data.dhn.size(), info(c.layer.cell).fresh[i + 1]));
  }
  EXPECT_TRUE(got.y.empty() && got.dx.empty());
  for (const Values& gradient : got.dparams) EXPECT_TRUE(all_zero(gradient));
}

class EmptyTest : public testing::TestWithParam<Dtype> {};

TEST_P(EmptyTest, StatesPassAndGradientsAreZeros) {
  for (const CellInfo& cell : cells()) {
    for (const auto& [steps, batch] : {std::pair{0, 13}, {5, 0}, {0, 0}}) {
      for (int layers : {1, 2}) {
        for (bool bidirectional : {false, true}) {
          LayerOptions options;
          options.cell = cell.cell;
          options.dtype = GetParam();
          options.num_layers = layers;
          options.bidirectional = bidirectional;
          Case c = empty_case(options, steps, batch);
          for (const Way& way : ways(options)) {
            c.way = way;
            c.h0 = layers == 2;
            c.layer.batch_first = bidirectional;
            check(c, false);
            check(c, true);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtype, EmptyTest, testing::ValuesIn(dtypes()),
                         [](const auto& info) { return name(info.param); });

// A shape is checked although there is nothing behind it, and an empty tensor in the place of a
// full one is not an absent one.
TEST(Empty, WrongShapeIsNamed) {
  Context& context = shared_context(1);
  Random random(7);
  const auto expect_refused = [&](std::int64_t steps, auto&& change) {
    const Case c = empty_case({}, steps, 3);
    Buffers buffers(c, random_data(c, random));
    EXPECT_THROW(buffers.forward(context, Mode::training, 0, change), value_error);
  };
  expect_refused(0, [](ForwardArgs& args) { args.x.sizes[2] -= 1; });
  expect_refused(0, [](ForwardArgs& args) { args.y.sizes[2] -= 1; });
  for (void* address : {static_cast<void*>(nullptr), static_cast<void*>(&context)}) {
    expect_refused(2, [=](ForwardArgs& args) {
      args.h0.h.sizes[1] = 0;
      args.h0.h.data = address;
    });
  }
}

}  // namespace
}  // namespace scanrnn::test
