// SPDX-License-Identifier: Apache-2.0
// How dense layers are cut for a persistent kernel: whatever the sizes, a cut covers the layer and
// fits the device, and what does not fit has none.
#include <gtest/gtest.h>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {
namespace {

DeviceLimits device_of(std::int64_t units, std::int64_t shared_bytes = 227 << 10) {
  DeviceLimits out;
  out.processor = Processor::cuda;
  out.units = units;
  out.shared_bytes = shared_bytes;
  return out;
}

Problem dense(std::int64_t hidden, std::int64_t batch, int gates = 4, int bytes = 2) {
  Problem out;
  out.recurrence = Recurrence::dense;
  out.hidden_size = out.input_size = hidden;
  out.batch = batch;
  out.steps = 1000;
  out.gates = gates;
  out.storage_bytes = bytes;
  out.training = true;
  return out;
}

TEST(PersistentShape, CoversTheLayerAndFitsTheDevice) {
  int cuts = 0;
  for (std::int64_t units : {1, 7, 46, 108, 132}) {
    for (std::int64_t shared : {48 << 10, 99 << 10, 227 << 10}) {
      for (std::int64_t hidden : {1, 7, 8, 31, 64, 129, 500, 512, 768, 1000, 1024, 1056, 4096}) {
        for (std::int64_t batch : {1, 3, 16, 64, 1000}) {
          for (int gates : {3, 4}) {
            for (int bytes : {2, 4}) {
              for (bool backward : {false, true}) {
                const Problem p = dense(hidden, batch, gates, bytes);
                const PersistentShape s = persistent_shape(p, device_of(units, shared), backward);
                if (s.tile < 0) continue;
                ++cuts;
                EXPECT_GE(s.units * s.slices, hidden);
                EXPECT_LE(std::int64_t{s.slices} * s.groups, units * (s.alone ? 2 : 1));
                EXPECT_LE(s.groups, batch);
                EXPECT_GE(s.steps, 1);
                const std::int64_t lines = (std::min(batch, s.lines) + s.groups - 1) / s.groups;
                if (s.alone) {
                  const PersistentAlone alone =
                      persistent_alone(kPersistentBlockUnits[s.tile], gates, backward);
                  EXPECT_TRUE(s.in_block);
                  EXPECT_EQ(s.units, alone.units);
                  EXPECT_LE(s.groups, units * alone.resident);
                  EXPECT_EQ(lines, 1);
                  EXPECT_LE(alone.shared_bytes, shared);
                  EXPECT_LT(alone.shared_pieces, alone.pieces);
                  EXPECT_EQ(exchange_bytes(p, s, backward), 0);
                  continue;
                }
                if (s.in_block) {
                  EXPECT_EQ(bytes, 2);
                  const int unit_blocks = kPersistentBlockUnits[s.tile];
                  const PersistentBlock block = persistent_block(unit_blocks, gates, bytes);
                  EXPECT_FALSE(backward);
                  EXPECT_EQ(s.units, 8 * unit_blocks * kPersistentWarps);
                  EXPECT_LE(lines, block.lines);
                  EXPECT_LE(block.shared_bytes, shared);
                  EXPECT_GE(block.chunks * 64, hidden * bytes);
                  EXPECT_EQ(exchange_bytes(p, s, backward), 0);
                  continue;
                }
                const PersistentTile& tile =
                    backward ? kPersistentBackward[s.tile] : kPersistentForward[s.tile];
                const std::int64_t along_sum = kPersistentWarps / s.warps_along_units;
                EXPECT_EQ(s.units, 8 * tile.unit_blocks * s.warps_along_units);
                EXPECT_GE(s.block_words * 4, hidden * bytes);
                EXPECT_EQ(s.block_words % 4, 0);
                EXPECT_GE(along_sum * tile.chunks * 16, (backward ? gates : 1) * s.block_words);
                EXPECT_EQ(tile.chunks % tile.fetched, 0);
                EXPECT_LE(lines * s.units, tile.items * 32 * kPersistentWarps);
                EXPECT_LE(persistent_shared_bytes(tile, backward ? 1 : gates) +
                              2 * along_sum * ((lines + 1) / 2 * 2) * s.line_floats * 4,
                          shared);
                EXPECT_LE(exchange_bytes(p, s, backward),
                          std::max<std::int64_t>(kPersistentExchangeBytes,
                                                 exchange_bytes(p, s, backward) / s.steps * 2));
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(cuts, 1000);
}

TEST(PersistentShape, LayersOfSixteenBitsUpTo2048FitA132UnitDevice) {
  for (std::int64_t hidden = 1; hidden <= 2048; ++hidden) {
    for (int gates : {3, 4}) {
      for (bool backward : {false, true}) {
        EXPECT_GE(persistent_shape(dense(hidden, 16, gates), device_of(132), backward).tile, 0)
            << hidden;
      }
    }
  }
  EXPECT_LT(persistent_shape(dense(4096, 16), device_of(132), false).tile, 0);
  EXPECT_LT(persistent_shape(dense(1024, 16), device_of(16), false).tile, 0);
}

// What is taken is one of the cuts, some of which keep a part of R in shared memory.
TEST(PersistentShape, IsOneOfAll) {
  for (const bool backward : {false, true}) {
    const Problem p = dense(300, 19);
    const PersistentShape best = persistent_shape(p, device_of(132), backward);
    bool found = false;
    int shared = 0;
    for (const PersistentShape& s : persistent_shapes(p, device_of(132), backward)) {
      EXPECT_GE(s.tile, 0);
      found |= s.tile == best.tile && s.in_block == best.in_block && s.units == best.units;
      const auto& tile = backward ? kPersistentBackward[s.tile] : kPersistentForward[s.tile];
      shared += !s.in_block && tile.shared_chunks > 0;
    }
    EXPECT_TRUE(found);
    EXPECT_GE(shared, 4);
  }
  EXPECT_TRUE(persistent_shapes(dense(4096, 16), device_of(132), false).empty());
}

// Up to sixteen lines; where R comes from memory eight in 16 bits, and in TF32 32 where its blocks
// fill the device and a half of it stays in the cache.
TEST(StepLoop, StepsFuseForFewLines) {
  const DeviceLimits device = device_of(132);
  const auto lines = [&](std::int64_t hidden, int bytes, bool split) {
    Problem problem = dense(hidden, 0, 4, bytes);
    problem.split_products = split;
    while (fuses_steps(problem, device)) ++problem.batch;
    return problem.batch - 1;
  };
  EXPECT_EQ(lines(1024, 2, false), 16);
  EXPECT_EQ(lines(4096, 2, false), 8);
  EXPECT_EQ(lines(512, 4, false), 16);
  EXPECT_EQ(lines(2048, 4, false), 32);
  EXPECT_EQ(lines(1536, 4, false), 16) << "192 blocks, where there is room for 264";
  EXPECT_EQ(lines(2560, 4, false), 16) << "320 blocks, of which 264 are at work at a time";
  EXPECT_EQ(lines(4096, 4, false), 16) << "half of R is 128 MB";
  EXPECT_EQ(lines(2050, 4, false), 8) << "no vectors";
  EXPECT_EQ(lines(2048, 4, true), 4);
}

// Heads are cut as layers of their own, on shares of the device, and all have their turn.
TEST(PersistentShape, HeadsShareTheDevice) {
  int cuts = 0;
  for (std::int64_t units : {1, 46, 132}) {
    for (std::int64_t heads : {1, 2, 4, 12, 100, 1000}) {
      for (std::int64_t of_head : {1, 16, 64, 100, 256, 600}) {
        for (std::int64_t batch : {1, 16, 70, 1000}) {
          for (int bytes : {2, 4}) {
            for (bool backward : {false, true}) {
              Problem p = dense(heads * of_head, batch, 4, bytes);
              p.heads = heads;
              const PersistentShape s = persistent_shape(p, device_of(units), backward);
              const Problem one = dense(of_head, batch, 4, bytes);
              // One after the other they fit wherever one does.
              EXPECT_EQ(s.tile >= 0, persistent_shape(one, device_of(units), backward).tile >= 0);
              if (s.tile < 0) continue;
              ++cuts;
              EXPECT_GE(s.units * s.slices, of_head);
              EXPECT_GE(s.heads, 1);
              EXPECT_LE(s.heads, heads);
              EXPECT_LE(std::int64_t{s.slices} * s.groups * s.heads, units * (s.alone ? 2 : 1));
              EXPECT_LE(s.groups, batch);
              if (s.alone) {
                EXPECT_EQ(s.lines, s.groups);
                continue;
              }
              if (s.in_block) {
                const auto block = persistent_block(kPersistentBlockUnits[s.tile], 4, bytes);
                EXPECT_LE((batch + s.groups - 1) / s.groups, block.lines);
                continue;
              }
              // Each line of a head has words of its own in the exchange.
              const std::int64_t lines = std::min(batch, s.lines);
              const std::int64_t slots = std::min(p.steps, s.steps) + 1;
              const std::int64_t words = (backward ? 4 : 1) * std::int64_t{s.block_words};
              EXPECT_GE(s.block_words * 4, of_head * bytes);
              EXPECT_EQ(exchange_bytes(p, s, backward),
                        slots * s.heads * lines * ((words + 15) / 16 * 64));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(cuts, 500);
}

// On an H200: heads of 64 units are blocks of their own, those of 256 a few blocks each.
TEST(PersistentShape, WhatHeadsTake) {
  const auto shape_of = [](std::int64_t heads, std::int64_t of_head, bool backward) {
    Problem p = dense(heads * of_head, 16);
    p.heads = heads;
    return persistent_shape(p, device_of(132), backward);
  };
  for (const bool backward : {false, true}) {
    const PersistentShape small = shape_of(12, 64, backward);
    EXPECT_TRUE(small.alone);
    EXPECT_EQ(small.heads, 12);
    EXPECT_EQ(small.groups, 16);
    const PersistentShape large = shape_of(4, 256, backward);
    EXPECT_FALSE(large.in_block);
    EXPECT_EQ(large.heads, 4);
    EXPECT_GT(large.slices, 1);
    EXPECT_GT(large.groups, 1);
    EXPECT_GT(large.slices * large.groups, 20);
  }
  EXPECT_LT(shape_of(300, 64, true).heads, 300);
  Problem p = dense(12 * 64, 16);
  p.heads = 12;
  const Profile profile{"none", "this file", 0, {}, nullptr};
  EXPECT_NE(explain(plan(p, device_of(132), profile)).find("x 16 groups of lines x 12 heads"),
            std::string::npos);
  p.hidden_size = 300 * 300;
  p.heads = 300;
  p.batch = 8;
  EXPECT_NE(explain(plan(p, device_of(132), profile)).find(" heads, "), std::string::npos);
  EXPECT_NE(explain(plan(p, device_of(132), profile)).find(" at a time"), std::string::npos);
}

// Small layers, as long as a block that has all of R is not slower than an exchange between many:
// by multiply-adds, or where these are many, of several lines by tensor cores.
TEST(PersistentShape, SmallLayersNeedNoExchange) {
  enum { kSlices, kBlock, kAlone };
  const auto way = [](Problem p, bool backward = false) {
    const PersistentShape shape = persistent_shape(p, device_of(132), backward);
    return shape.alone ? kAlone : shape.in_block ? kBlock : kSlices;
  };
  for (const bool backward : {false, true}) {
    EXPECT_EQ(way(dense(1, 1), backward), kAlone);
    EXPECT_EQ(way(dense(64, 16), backward), kAlone);
    EXPECT_EQ(way(dense(64, 16, 4, 4), backward), kAlone);
    EXPECT_EQ(way(dense(129, 16), backward), kSlices);
    EXPECT_EQ(way(dense(64, 5000), backward), kSlices);
    for (const int gates : {3, 4}) {  // of an LSTM's R in float32 too much is in shared memory
      Problem exact = dense(128, 16, gates, 4);
      exact.split_products = true;
      EXPECT_EQ(way(exact, backward), gates == 4 && !backward ? kSlices : kAlone);
    }
  }
  EXPECT_EQ(way(dense(128, 16)), kBlock);
  EXPECT_EQ(way(dense(64, 400)), kBlock);
}

// TF32 is allowed: a group that has a line to itself takes exact products all the same.
TEST(PersistentShape, ALineAloneIsExact) {
  const auto exact = [](Problem p, bool backward) {
    const PersistentShape shape = persistent_shape(p, device_of(132), backward);
    EXPECT_GE(shape.tile, 0);
    return shape.split_products;
  };
  for (const bool backward : {false, true}) {
    for (const int gates : {3, 4}) {
      EXPECT_TRUE(exact(dense(512, 1, gates, 4), backward));
      EXPECT_TRUE(exact(dense(512, 4, gates, 4), backward)) << "four groups of 32 blocks";
      EXPECT_FALSE(exact(dense(512, 16, gates, 4), backward));
      EXPECT_FALSE(exact(dense(512, 1, gates, 2), backward));
    }
  }
}

// What decides where no rule does.
TEST(PersistentShape, ChosenWhereItFits) {
  const Profile profile{"none", "this file", 0, {}, nullptr};
  const auto choice = [&](Problem p, std::int64_t units = 132) {
    const Plan out = plan(p, device_of(units), profile);
    EXPECT_FALSE(explain(out).empty());
    return std::pair{out.strategy, out.reason};
  };
  using Choice = std::pair<Strategy, Reason>;
  EXPECT_EQ(choice(dense(768, 16)), (Choice{Strategy::persistent, Reason::on_chip}));
  EXPECT_EQ(choice(dense(768, 16), 8), (Choice{Strategy::step_loop, Reason::not_on_chip}));
  EXPECT_EQ(choice(dense(768, 5000)), (Choice{Strategy::step_loop, Reason::many_lines}));
  Problem p = dense(768, 16);
  p.steps = 1;
  EXPECT_EQ(choice(p), (Choice{Strategy::step_loop, Reason::few_steps}));
  p = dense(768, 16, 4, 8);
  EXPECT_EQ(choice(p), (Choice{Strategy::step_loop, Reason::not_on_chip}));
  p.forced = Strategy::persistent;
  EXPECT_NE(misfit(p, device_of(132)).find("float64"), std::string::npos);
  p = dense(3000, 16);
  p.forced = Strategy::persistent;
  EXPECT_NE(misfit(p, device_of(132)).find("72000000 bytes"), std::string::npos);
}

TEST(StepLoop, FewLinesAreOneKernelAStep) {
  const auto plan_of = [](Problem p, Processor processor = Processor::cuda) {
    p.steps = 1;
    DeviceLimits device = device_of(132);
    device.processor = processor;
    return plan(p, device, generic_cuda_profile());
  };
  Problem exact = dense(64, 4, 4, 4);
  exact.split_products = true;
  for (Problem p : {dense(64, 16), dense(2048, 32, 3, 4), dense(64, 4, 4, 8), exact}) {
    EXPECT_EQ(plan_of(p).strategy, Strategy::step_loop);
    EXPECT_TRUE(plan_of(p).fused_steps) << p.storage_bytes;
    EXPECT_NE(explain(plan_of(p)).find("one kernel a step"), std::string::npos);
    EXPECT_FALSE(plan_of(p, Processor::cpu).fused_steps);
    ++p.batch;
    EXPECT_FALSE(plan_of(p).fused_steps) << p.storage_bytes;
    EXPECT_EQ(explain(plan_of(p)).find("one kernel a step"), std::string::npos);
  }
}

}  // namespace
}  // namespace scanrnn::dispatch
