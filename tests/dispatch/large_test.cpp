// SPDX-License-Identifier: Apache-2.0
// Cuts by warp groups: they cover the layer and fit the device, and are there for plain layers in
// 16 bits alone where a device has warp groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "scanrnn/dispatch/large.h"
#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/profile.h"

namespace scanrnn::dispatch {
namespace {

DeviceLimits device() { return {Processor::cuda, 132, 227 << 10, true}; }

Problem lstm(std::int64_t batch, std::int64_t hidden, int gates = 4) {
  Problem out;
  out.recurrence = Recurrence::dense;
  out.hidden_size = out.input_size = hidden;
  out.batch = batch;
  out.steps = 1000;
  out.gates = gates;
  out.sums = 4;
  out.storage_bytes = 2;
  return out;
}

std::vector<PersistentShape> large_shapes(const Problem& p, const DeviceLimits& on, bool backward) {
  std::vector<PersistentShape> out = persistent_shapes(p, on, backward);
  out.erase(std::remove_if(out.begin(), out.end(), [](const auto& one) { return !one.large; }),
            out.end());
  return out;
}

// Expects that `shape` covers a layer; its tile.
LargeTile expect_cover(const Problem& p, const PersistentShape& shape, bool backward) {
  const LargeTile* const tiles = backward ? kLargeBackward : kLargeTiles;
  const std::size_t count = backward ? std::size(kLargeBackward) : std::size(kLargeTiles);
  const auto index = static_cast<std::size_t>(shape.tile);
  EXPECT_LT(index, count);
  const LargeTile tile = tiles[std::min(index, count - 1)];
  const LargeMemory memory = backward ? large_back_memory(tile, p.hidden_size, p.gates)
                                      : large_memory(tile, p.hidden_size);
  EXPECT_EQ(shape.units * shape.slices, p.hidden_size);
  EXPECT_LE(shape.slices * shape.groups, 132);
  EXPECT_LE(shape.lines, std::int64_t{tile.lines} * shape.groups);
  EXPECT_GE(shape.lines, std::min<std::int64_t>(p.batch, tile.lines));
  EXPECT_LE(memory.all(), shape.shared_bytes);
  EXPECT_EQ(shape.shared_bytes, device().shared_bytes);
  // A slot of 16 bits for each value that is sent of a unit and line in every step.
  EXPECT_GE(exchange_bytes(p, shape, backward), 2 * p.hidden_size * (backward ? p.gates : 1) *
                                                    std::min(p.batch, shape.lines) *
                                                    std::min(p.steps, shape.steps));
  return tile;
}

TEST(LargeShapes, CoverTheLayerAndFitTheDevice) {
  for (const bool backward : {false, true}) {
    std::vector<bool> found(backward ? std::size(kLargeBackward) : std::size(kLargeTiles));
    for (const std::int64_t hidden : {16, 32, 256, 288, 320, 500, 512, 768, 1024, 2048}) {
      for (const std::int64_t batch : {0, 1, 63, 64, 65, 200, 1000}) {
        for (const int gates : {1, 3, 4}) {
          const Problem p = lstm(batch, hidden, gates);
          for (const PersistentShape& s : large_shapes(p, device(), backward)) {
            const LargeTile tile = expect_cover(p, s, backward);
            found[static_cast<std::size_t>(s.tile)] = true;
            if (!backward) continue;
            // All blocks are in clusters, and their groups in whole pieces of the sum.
            EXPECT_EQ(s.slices % kLargeCluster, 0);
            EXPECT_EQ(gates * hidden % (kLargePiece * kLargeGroups * kLargeCluster), 0);
            EXPECT_LE(large_back_pieces(hidden, gates),
                      large_back_most_chunks(tile) * large_chunk(tile.lines));
          }
        }
      }
    }
    for (const bool one : found) EXPECT_TRUE(one);
  }
}

TEST(LargeShapes, AreOfPlainLayersInHalves) {
  for (const bool backward : {false, true}) {
    Problem plain = lstm(256, 512);
    plain.training = backward;
    ASSERT_FALSE(large_shapes(plain, device(), backward).empty());
    DeviceLimits other = device();
    other.warp_groups = false;
    EXPECT_TRUE(large_shapes(plain, other, backward).empty());
    const auto expect_none = [&](auto&& change) {
      Problem p = plain;
      change(p);
      EXPECT_TRUE(large_shapes(p, device(), backward).empty());
      EXPECT_FALSE(persistent_shapes(p, device(), backward).empty());
    };
    expect_none([](Problem& p) { p.storage_bytes = 4; });
    expect_none([](Problem& p) { p.heads = 4; });
    expect_none([](Problem& p) { p.draws = true; });
    expect_none([](Problem& p) { p.hidden_size = 500; });
    expect_none([](Problem& p) { p.batch = 64, p.normed = true; });
    // A cluster has 64 units.
    if (backward) expect_none([](Problem& p) { p.hidden_size = 480; });
    for (const Batch layout : {Batch::ragged, Batch::packed}) {
      Problem ragged = plain;
      ragged.layout = layout;
      EXPECT_FALSE(large_shapes(ragged, device(), backward).empty());
    }
  }
}

// What was measured as the fastest: the lines of a block, or 0 where its warps on their own are.
struct Picked {
  int gates;
  std::int64_t hidden, batch;
  int lines;
};
void expect_picked(const Picked& one, bool training, bool backward) {
  Problem p = lstm(one.batch, one.hidden, one.gates);
  p.training = training;
  const PersistentShape s = persistent_shape(p, device(), backward);
  const LargeTile* const tiles = backward ? kLargeBackward : kLargeTiles;
  EXPECT_EQ(s.large ? tiles[s.tile].lines : 0, one.lines)
      << one.gates << ", " << one.hidden << ", " << one.batch;
}

TEST(LargeShapes, ArePickedForwardWhereTheyAreFaster) {
  constexpr Picked all[] = {
      {4, 512, 256, 64}, {4, 512, 200, 64}, {4, 512, 128, 32}, {4, 256, 512, 64},
      {4, 384, 256, 64}, {4, 768, 128, 64}, {4, 768, 64, 32},  {4, 1024, 128, 64},
      {4, 1024, 64, 32}, {3, 512, 256, 64}, {3, 512, 128, 32}, {3, 256, 512, 64},
      {3, 1024, 64, 32}, {4, 512, 64, 0},   {4, 256, 256, 0},  {4, 256, 128, 0},
      {4, 1024, 16, 0},  {4, 512, 16, 0},   {4, 128, 512, 0}};
  for (const Picked& one : all) {
    for (const bool training : {false, true}) expect_picked(one, training, false);
  }
  EXPECT_NE(explain(plan(lstm(256, 512), device(), generic_cuda_profile())).find("warp groups"),
            std::string::npos);
}

TEST(LargeShapes, ArePickedBackwardWhereTheyAreFaster) {
  constexpr Picked all[] = {
      {4, 512, 128, 16},  {4, 512, 96, 16},  {4, 512, 192, 32},  {4, 512, 256, 32},
      {4, 256, 512, 32},  {4, 256, 384, 32}, {4, 384, 256, 32},  {4, 384, 128, 16},
      {4, 1024, 64, 16},  {4, 1024, 96, 32}, {4, 1024, 128, 32}, {4, 768, 64, 16},
      {4, 768, 80, 16},   {4, 768, 128, 32}, {3, 512, 256, 32},  {3, 256, 512, 32},
      {3, 768, 64, 16},   {3, 768, 128, 32}, {3, 1024, 64, 16},  {3, 1024, 96, 32},
      {3, 1024, 128, 32}, {4, 512, 64, 0},   {4, 256, 256, 0},   {4, 1024, 32, 0},
      {3, 512, 128, 0},   {3, 1024, 32, 0}};
  for (const Picked& one : all) expect_picked(one, true, true);
}

// Costs know how much faster they are than whatever is the best without them.
TEST(LargeShapes, ArePlannedWhereTheyBeatStepsInALoop) {
  const Profile* const measured = find_profile("sm_90");
  ASSERT_NE(measured, nullptr);
  DeviceLimits without = device();
  without.warp_groups = false;
  struct Size {
    int gates;
    std::int64_t hidden, batch;
    bool training;
  };
  for (const Size& one :
       {Size{4, 512, 512, false}, Size{3, 512, 512, false}, Size{3, 1024, 256, false},
        Size{4, 512, 512, true}, Size{4, 768, 128, true}, Size{4, 1024, 128, true},
        Size{3, 512, 512, true}, Size{3, 1024, 128, true}}) {
    Problem p = lstm(one.batch, one.hidden, one.gates);
    p.sums = one.gates;
    p.training = one.training;
    const Plan planned = plan(p, device(), *measured);
    EXPECT_EQ(planned.strategy, Strategy::persistent) << explain(planned);
    const Plan by_others = plan(p, without, *measured);
    EXPECT_LT(planned.expected_us, 0.95 * by_others.expected_us) << explain(planned) << "\n"
                                                                 << explain(by_others);
    EXPECT_EQ(planned.persistent_vjp.large, one.training);
  }
}

}  // namespace
}  // namespace scanrnn::dispatch
