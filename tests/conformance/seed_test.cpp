// SPDX-License-Identifier: Apache-2.0
// A seed that lies in memory: the same numbers are drawn as by its value, and what cannot be one is
// refused.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/compare.h"
#include "support/conform.h"
#include "support/thrown.h"

namespace scanrnn::test {
namespace {

constexpr std::uint64_t kSeed = 0xfedcba9876543210;

TEST(SeedInMemory, DrawsWhatItsValueDraws) {
  for (const LayerOptions& options : few_variants()) {
    for (const Way& way : ways(options)) {
      const Case c = drawing_case(options, way);
      Random random(71);
      const Data data = random_data(c, random);
      Context context = make_context(c.threads);
      const Uploaded seed(context, TensorView::of(&kSeed, Dtype::int64, {1}));
      const auto in_memory = [&](auto& args) { args.seed_in = seed.view(); };
      Buffers by_value(c, data), by_memory(c, data), other(c, data);
      by_value.forward(context, Mode::training, kSeed);
      by_value.backward(context, kSeed);
      by_memory.forward(context, Mode::training, 5, in_memory);
      by_memory.backward(context, 6, in_memory);
      EXPECT_EQ(by_memory.bits(), by_value.bits()) << text(c);
      other.forward(context, Mode::training, 5);
      EXPECT_NE(other.result().y, by_value.result().y) << text(c);
    }
  }
}

TEST(SeedInMemory, OnlyTrainingReadsIt) {
  const Case c = drawing_case(few_variants()[0], {});
  Random random(72);
  const Data data = random_data(c, random);
  Context context = make_context(c.threads);
  const Uploaded seed(context, TensorView::of(&kSeed, Dtype::int64, {1}));
  Buffers plain(c, data), told(c, data);
  plain.forward(context, Mode::inference);
  told.forward(context, Mode::inference, 0, [&](auto& args) { args.seed_in = seed.view(); });
  EXPECT_EQ(told.result().y, plain.result().y);
}

TEST(SeedInMemory, WhatIsNoneIsNamed) {
  const Case c = drawing_case(few_variants()[0], {});
  Random random(73);
  const Data data = random_data(c, random);
  Context context = make_context(c.threads);
  alignas(8) static const char memory[32] = {};
  const auto words = [&](const TensorView& seed) {
    Buffers buffers(c, data);
    const auto told = [&](auto& args) { args.seed_in = seed; };
    const std::string of_forward =
        message([&] { buffers.forward(context, Mode::training, 0, told); });
    buffers.forward(context, Mode::training);
    EXPECT_EQ(message([&] { buffers.backward(context, 0, told); }), of_forward);
    return of_forward;
  };
  const Device here = test_device(), there = on_cuda() ? Device{} : Device::cuda();
  EXPECT_EQ(words(TensorView::of(memory, Dtype::int64, {2}, here)),
            "seed_in: expected shape (1,) = (1,), got (2,)");
  EXPECT_EQ(words(TensorView::of(memory, Dtype::int32, {1}, here)),
            "seed_in: expected dtype int64, got int32");
  EXPECT_EQ(words(TensorView::of(memory, Dtype::int64, {1}, there)),
            "seed_in: expected device " + name(here) + ", got " + name(there));
  const std::string said = words(TensorView::of(memory + 4, Dtype::int64, {1}, here));
  EXPECT_EQ(said.find("seed_in: expected an address in whole elements of 8 bytes, got 0x"), 0u)
      << said;
}

}  // namespace
}  // namespace scanrnn::test
