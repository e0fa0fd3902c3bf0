// SPDX-License-Identifier: Apache-2.0
// The numbers that draws inside a recurrence go by: each kind of neighbour draws for itself, and a
// tile draws what its places draw.
#include <gtest/gtest.h>

#include <cmath>

#include "recurrence/masks.h"

namespace scanrnn::test {
namespace {

constexpr std::uint64_t kSeed = 0x9f3c5a7e12b46d08u;

constexpr int kUnits = 500, kTokens = 2000;

// How often this is drawn(unit, token), in standard deviations from what it should be.
template <class F>
double deviation(double share, const F& drawn) {
  double count = 0;
  for (Index unit = 0; unit < kUnits; ++unit) {
    for (Index token = 0; token < kTokens; ++token) count += drawn(unit, token);
  }
  constexpr double kAll = double{kUnits} * kTokens;
  return std::fabs(count - share * kAll) / std::sqrt(share * (1 - share) * kAll);
}
bool drawn(std::uint64_t seed, Index unit, Index token, double share) {
  return UnitNumbers(seed, static_cast<std::uint64_t>(unit)).at(token) <
         Draw{share, {}}.short_threshold();
}

TEST(Draws, HaveTheirShare) {
  for (const double share : {0.01, 0.1, 0.5, 0.9}) {
    const double found =
        deviation(share, [&](Index u, Index token) { return drawn(kSeed, u, token, share); });
    EXPECT_LT(found, 5) << share;
  }
}

TEST(Draws, OfNeighboursAreIndependent) {
  for (const double share : {0.1, 0.5}) {
    const auto both = [&](std::uint64_t seeds, Index units, Index tokens) {
      return deviation(share * share, [&](Index unit, Index token) {
        return drawn(kSeed, unit, token, share) &&
               drawn(kSeed ^ seeds, unit + units, token + tokens, share);
      });
    };
    for (const Index apart : {1, 2, 3, 8, 17, 1024, 65536}) {
      EXPECT_LT(both(0, 0, apart), 5) << "tokens " << apart << " apart";
    }
    for (const Index apart : {1, 2, 64, 1024}) {
      EXPECT_LT(both(0, apart, 0), 5) << "units " << apart << " apart";
    }
    for (const std::uint64_t other : {std::uint64_t{1}, std::uint64_t{1} << 32, ~kSeed}) {
      EXPECT_LT(both(other, 0, 0), 5) << "seeds that differ by " << other;
    }
  }
}

// A tile's words are compared with what is drawn at each place.
struct One {
  using T = double;
  using V = double;
  static constexpr int kUnits = 1;
};

TEST(Draws, OfATileAreThoseOfItsPlaces) {
  constexpr int kSteps = 16, kTokens = 64;
  std::uint32_t marks[kTokens];
  for (int i = 0; i < kTokens; ++i) marks[i] = static_cast<std::uint32_t>(i / 5) << 5;
  const Draw half{0.5, Seed{kSeed}}, third{0.3, Seed{kSeed + 1}};
  for (const bool training : {true, false}) {
    for (const Index step : {1, 2, -2}) {
      for (const bool packed : {false, true}) {
        Masks masks;
        masks.state = {half, training};
        masks.readout_seed = third.seed;
        masks.readout_threshold = training ? third.short_threshold() : 0;
        masks.scale = training ? 1 / 0.7 : 1;
        masks.step = step;
        masks.token = step > 0 ? 7 : kTokens - 7;
        masks.sequence = 3;
        masks.marks = packed ? marks : nullptr;
        for (Index unit = 0; unit < 20; ++unit) {
          Masks tile = masks;
          tile.made = masks.steps<kSteps>(unit, 2, kSteps);
          for (int k = 0; k < kSteps; ++k) {
            const auto got = tile.of_made<double>(k), want = masks.at<One>(unit, 2 + k);
            ASSERT_EQ(got.updates, want.updates) << unit << " " << k;
            ASSERT_EQ(got.keeps, want.keeps) << unit << " " << k;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace scanrnn::test
