// SPDX-License-Identifier: Apache-2.0
// Cuts by warp groups: they cover the layer and fit the device, and are there for plain layers in
// 16 bits alone, forward, where a device has warp groups.
#include <gtest/gtest.h>

#include <algorithm>

#include "scanrnn/dispatch/large.h"
#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/profile.h"

namespace scanrnn::dispatch {
namespace {

DeviceLimits device() { return {Processor::cuda, 132, 227 << 10, true}; }

Problem lstm(std::int64_t batch, std::int64_t hidden) {
  Problem out;
  out.recurrence = Recurrence::dense;
  out.hidden_size = out.input_size = hidden;
  out.batch = batch;
  out.steps = 1000;
  out.gates = out.sums = 4;
  out.storage_bytes = 2;
  return out;
}

int large_ones(const Problem& p, const DeviceLimits& on, bool backward = false) {
  int out = 0;
  for (const PersistentShape& s : persistent_shapes(p, on, backward)) out += s.large;
  return out;
}

TEST(LargeShapes, CoverTheLayerAndFitTheDevice) {
  bool found[std::size(kLargeTiles)] = {};
  for (const std::int64_t hidden : {16, 32, 256, 288, 500, 512, 768, 1024, 2048}) {
    for (const std::int64_t batch : {0, 1, 63, 64, 65, 200, 1000}) {
      const Problem p = lstm(batch, hidden);
      for (const PersistentShape& s : persistent_shapes(p, device(), false)) {
        if (!s.large) continue;
        ASSERT_LT(static_cast<std::size_t>(s.tile), std::size(kLargeTiles));
        const LargeTile tile = kLargeTiles[s.tile];
        found[s.tile] = true;
        EXPECT_EQ(s.units * s.slices, hidden);
        EXPECT_LE(s.slices * s.groups, 132);
        EXPECT_LE(s.lines, std::int64_t{tile.lines} * s.groups);
        EXPECT_GE(s.lines, std::min<std::int64_t>(batch, tile.lines));
        EXPECT_LE(large_memory(tile, hidden).all(), s.shared_bytes);
        EXPECT_EQ(s.shared_bytes, device().shared_bytes);
        // A slot of 16 bits for each unit and line in every step.
        EXPECT_GE(exchange_bytes(p, s, false),
                  2 * hidden * std::min(batch, s.lines) * std::min(p.steps, s.steps));
      }
    }
  }
  for (const bool one : found) EXPECT_TRUE(one);
}

TEST(LargeShapes, AreOfPlainLayersInHalvesForward) {
  const Problem plain = lstm(256, 512);
  ASSERT_GT(large_ones(plain, device()), 0);
  EXPECT_EQ(large_ones(plain, device(), true), 0);
  DeviceLimits other = device();
  other.warp_groups = false;
  EXPECT_EQ(large_ones(plain, other), 0);
  const auto expect_none = [&](auto&& change) {
    Problem p = plain;
    change(p);
    EXPECT_EQ(large_ones(p, device()), 0);
    EXPECT_FALSE(persistent_shapes(p, device(), false).empty());
  };
  expect_none([](Problem& p) { p.storage_bytes = 4; });
  expect_none([](Problem& p) { p.heads = 4; });
  expect_none([](Problem& p) { p.draws = true; });
  expect_none([](Problem& p) { p.layout = Batch::ragged; });
  expect_none([](Problem& p) { p.layout = Batch::packed; });
  expect_none([](Problem& p) { p.hidden_size = 500; });
  expect_none([](Problem& p) { p.batch = 64, p.normed = true; });
}

// As they were measured: units, lines, and the lines of a block, or 0 where its warps on their own
// are faster.
TEST(LargeShapes, ArePickedWhereTheyAreFaster) {
  struct Picked {
    int gates;
    std::int64_t hidden, batch;
    int lines;
  };
  constexpr Picked all[] = {
      {4, 512, 256, 64}, {4, 512, 200, 64}, {4, 512, 128, 32}, {4, 256, 512, 64},
      {4, 384, 256, 64}, {4, 768, 128, 64}, {4, 768, 64, 32},  {4, 1024, 128, 64},
      {4, 1024, 64, 32}, {3, 512, 256, 64}, {3, 512, 128, 32}, {3, 256, 512, 64},
      {3, 1024, 64, 32}, {4, 512, 64, 0},   {4, 256, 256, 0},  {4, 256, 128, 0},
      {4, 1024, 16, 0},  {4, 512, 16, 0},   {4, 128, 512, 0}};
  for (const Picked& one : all) {
    Problem p = lstm(one.batch, one.hidden);
    p.gates = one.gates;
    for (const bool training : {false, true}) {
      p.training = training;
      const PersistentShape s = persistent_shape(p, device(), false);
      EXPECT_EQ(s.large, one.lines > 0) << one.gates << ", " << one.hidden << ", " << one.batch;
      if (s.large) {
        EXPECT_EQ(kLargeTiles[s.tile].lines, one.lines);
      }
    }
  }
  EXPECT_NE(explain(plan(lstm(256, 512), device(), generic_cuda_profile())).find("warp groups"),
            std::string::npos);
}

// Costs know how much faster they are: here nothing else makes the kernel for whole sequences win.
TEST(LargeShapes, ArePlannedWhereTheyBeatStepsInALoop) {
  const Profile* const measured = find_profile("sm_90");
  ASSERT_NE(measured, nullptr);
  DeviceLimits without = device();
  without.warp_groups = false;
  struct Size {
    int gates;
    std::int64_t hidden, batch;
  };
  for (const Size& one : {Size{4, 512, 512}, Size{4, 768, 256}, Size{3, 1024, 256}}) {
    Problem p = lstm(one.batch, one.hidden);
    p.gates = p.sums = one.gates;
    EXPECT_EQ(plan(p, device(), *measured).strategy, Strategy::persistent)
        << explain(plan(p, device(), *measured));
    EXPECT_EQ(plan(p, without, *measured).strategy, Strategy::step_loop);
  }
}

}  // namespace
}  // namespace scanrnn::dispatch
