// SPDX-License-Identifier: Apache-2.0
// What is drawn inside a recurrence: which states a step leaves as they were (zoneout), and what
// is dropped of what a state gives to the output. A draw is a function of seed and place alone, so
// that every strategy and the backward pass find the same, and none is stored.
#pragma once

#include <cstdint>
#include <type_traits>

#include "scanrnn/scan/op.h"

namespace scanrnn {

using scan::fma;
using scan::Index;

// One pseudo-random number for each place (the finaliser of splitmix64).
SCANRNN_HD std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The number that one kind of draw of one layer call goes by. The caller's seed may lie in memory,
// and is read there when a kernel runs; `key` tells the draws of that seed apart.
struct Seed {
  std::uint64_t key = 0;                  // or, without memory, the number itself
  const std::uint64_t* memory = nullptr;  // on the device that draws

  SCANRNN_HD std::uint64_t value() const { return memory ? mix(*memory ^ key) : key; }
  SCANRNN_HD Seed read() const { return {value(), nullptr}; }
};

// The numbers of one unit inside a recurrence, one for each token. The upper half of the seed and
// the unit say where a walk of 32 bits begins and how far apart its tokens are, the lower half what
// the tokens are counted from; each is mixed for itself. A number takes a GPU seven instructions,
// where one of mix() takes it thirty.
struct UnitNumbers {
  std::uint32_t from = 0, apart = 1;

  UnitNumbers() = default;
  SCANRNN_HD UnitNumbers(std::uint64_t seed, std::uint64_t unit) {
    const std::uint64_t own = mix((seed >> 32 << 32) + unit);
    apart = 2 * static_cast<std::uint32_t>(own) + 1;
    from = static_cast<std::uint32_t>(own >> 32) + static_cast<std::uint32_t>(seed) * apart;
  }
  // The same with its tokens counted from `token` on, so many apart.
  SCANRNN_HD UnitNumbers walked(Index token, Index step) const {
    UnitNumbers out = *this;
    out.from += static_cast<std::uint32_t>(token) * apart;
    out.apart *= static_cast<std::uint32_t>(step);
    return out;
  }
  // Its upper bits are the better ones: it is compared, and not taken apart.
  SCANRNN_HD std::uint32_t at(Index token) const {
    std::uint32_t x = from + static_cast<std::uint32_t>(token) * apart;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    return (x ^ (x >> 15)) * 0x846ca68bu;
  }
};

// A share of the places, alike in every call with the same seed.
struct Draw {
  double share = 0;
  Seed seed = {};

  SCANRNN_HD std::uint64_t threshold() const {
    return static_cast<std::uint64_t>(share *
                                      18446744073709549568.0);  // the last double below 2^64
  }
  // For numbers of 32 bits.
  SCANRNN_HD std::uint32_t short_threshold() const {
    return static_cast<std::uint32_t>(threshold() >> 32);
  }
};

// value(unit) for the units of a row.
template <class Memory, class F>
SCANRNN_HD typename Memory::V each_unit(Index row, F&& value) {
  using V = typename Memory::V;
  if constexpr (Memory::kUnits == 1) {
    return static_cast<V>(value(row));
  } else {
    typename Memory::T of[Memory::kUnits];
    for (int i = 0; i < Memory::kUnits; ++i) {
      of[i] = static_cast<typename Memory::T>(value(row * Memory::kUnits + i));
    }
    return V::load(of);
  }
}

// h_t = h_{t-1} + m (what the step makes of it - h_{t-1}): m is 0 at a share of the places and 1
// elsewhere, or, where nothing is drawn, its mean.
struct Zoneout {
  double mean = 1;
  bool applies = false, draws = false;
  Seed seed = {};
  std::uint32_t threshold = 0;

  Zoneout() = default;
  Zoneout(const Draw& of, bool draws)
      : mean(1 - of.share),
        applies(of.share > 0),
        draws(draws && applies),
        seed(of.seed),
        threshold(of.short_threshold()) {}

  SCANRNN_HD explicit operator bool() const { return applies; }
  SCANRNN_HD UnitNumbers numbers(Index unit) const {
    return {seed.value(), static_cast<std::uint64_t>(unit)};
  }
  // m of a unit with these numbers at a token.
  SCANRNN_HD float update(const UnitNumbers& of, Index token) const {
    return draws ? of.at(token) < threshold ? 0.0f : 1.0f : static_cast<float>(mean);
  }
  // m of a row.
  template <class Memory>
  SCANRNN_HD typename Memory::V updates(Index token, Index row) const {
    if (!draws) return typename Memory::V(mean);
    return each_unit<Memory>(row, [&](Index unit) { return update(numbers(unit), token); });
  }
};

// What is drawn for one unit at one step; nothing where a Source draws nothing.
template <class V, bool kMasked>
struct Drawn {
  SCANRNN_HD V decay(V a) const { return a; }
  SCANRNN_HD scan::Affine<V> step(const scan::Affine<V>& f) const { return f; }
  SCANRNN_HD V updated(V d) const { return d; }
  SCANRNN_HD V keep() const { return V(1); }
};
template <class V>
struct Drawn<V, true> {
  V updates{1}, keeps{1};  // m, and what g(state) is times

  SCANRNN_HD V decay(V a) const { return fma(updates, a, V(1) - updates); }
  SCANRNN_HD scan::Affine<V> step(const scan::Affine<V>& f) const {
    return {decay(f.a), updates * f.z, updates * f.b};
  }
  SCANRNN_HD V updated(V d) const { return updates * d; }
  SCANRNN_HD V keep() const { return keeps; }
};

// What is drawn for one unit at the steps of a tile, 32 at most: bit k is that of step k.
struct DrawnSteps {
  std::uint32_t stays = 0, drops = 0;  // the state; what it gives to the output

  template <int kSteps, class F>
  SCANRNN_HD static std::uint32_t bits(const F& drawn) {
    static_assert(kSteps <= 32, "a word has a bit for each step");
    std::uint32_t out = 0;
    for (int k = 0; k < kSteps; ++k) out |= drawn(k) ? 1u << k : 0u;
    return out;
  }
};

// The draws of a layer call, walked as its tokens are.
struct Masks {
  using Steps = DrawnSteps;

  Zoneout state, cell;  // of h or a state that is one tensor; of c of the pair (h, c)
  // What is dropped of g(state) for all steps of a sequence; the rest is times `scale`.
  double scale = 1;
  Seed readout_seed = {};
  std::uint32_t readout_threshold = 0;
  Index token = 0, line = 0, step = 0;  // where the walk is, and goes to
  Index sequence = 0;
  const std::uint32_t* marks = nullptr;  // that know a packed token's sequence; null: as above
  Steps made;                            // of a tile

  SCANRNN_HD explicit operator bool() const { return state || cell || readout_threshold > 0; }
  // Lines and steps on. Seeds stay where they lie: a host cannot read a device's.
  SCANRNN_HD Masks past(Index lines, Index steps) const {
    Masks out = *this;
    out.token += lines * line + steps * step;
    out.sequence += lines;
    return out;
  }
  // Seeds are read here, once for a walk.
  SCANRNN_HD Masks at_line(Index i) const {
    Masks out = past(i, 0);
    if (state.draws) out.state.seed = state.seed.read();
    if (cell.draws) out.cell.seed = cell.seed.read();
    if (readout_threshold > 0) out.readout_seed = readout_seed.read();
    return out;
  }
  // The masks of sequence n, counted from its step `first` on a line.
  SCANRNN_HD Masks part(Index i, Index n, Index first) const {
    Masks out = at_line(i);
    out.token += first * step;
    out.sequence = n;
    out.marks = nullptr;
    return out;
  }

  // The sequence of a token.
  SCANRNN_HD Index sequence_of(Index here) const {
    constexpr int kSequenceBit = 5;  // recurrence/ragged.h
    return marks ? static_cast<Index>(marks[here] >> kSequenceBit) : sequence;
  }
  SCANRNN_HD bool drops(Index unit, Index n) const {
    return UnitNumbers(readout_seed.value(), static_cast<std::uint64_t>(unit)).at(n) <
           readout_threshold;
  }
  template <class Memory>
  SCANRNN_HD Drawn<typename Memory::V, true> at(Index row, Index t) const;
  // The masks of one unit at `count` steps from t on.
  template <int kSteps>
  SCANRNN_HD Steps steps(Index unit, Index t, Index count) const;
  // Step k of what is made.
  template <class V>
  SCANRNN_HD Drawn<V, true> of_made(int k) const {
    return {made.stays >> k & 1 ? V(0) : V(state.draws ? 1 : state.mean),
            made.drops >> k & 1 ? V(0) : V(scale)};
  }
};

template <class Memory>
SCANRNN_HD Drawn<typename Memory::V, true> Masks::at(Index row, Index t) const {
  Drawn<typename Memory::V, true> out;
  const Index here = token + t * step;
  if (state) out.updates = state.template updates<Memory>(here, row);
  if (readout_threshold > 0) {
    const Index n = sequence_of(here);
    out.keeps = each_unit<Memory>(row, [&](Index unit) { return drops(unit, n) ? 0.0 : scale; });
  }
  return out;
}

template <int kSteps>
SCANRNN_HD DrawnSteps Masks::steps(Index unit, Index t, Index count) const {
  DrawnSteps out;
  const Index first = token + t * step;
  if (state.draws) {
    const UnitNumbers of = state.numbers(unit).walked(first, step);
    out.stays = Steps::bits<kSteps>([&](int k) { return of.at(k) < state.threshold; });
  }
  if (readout_threshold > 0) {
    if (!marks) {
      out.drops = drops(unit, sequence) ? ~0u : 0u;
    } else {
      for (int k = 0; k < kSteps && k < count; ++k) {
        out.drops |= (drops(unit, sequence_of(first + k * step)) ? 1u : 0u) << k;
      }
    }
  }
  return out;
}

// In place of Masks, where a Source draws nothing.
struct NoMasks {
  struct Steps {};
  Steps made;

  SCANRNN_HD NoMasks at_line(Index) const { return {}; }
  SCANRNN_HD NoMasks part(Index, Index, Index) const { return {}; }
};
template <bool kMasked>
using MasksIf = typename std::conditional<kMasked, Masks, NoMasks>::type;
// What is drawn for a row at step t, where Memory's rows are read from tiles (kTiles) that of the
// tile.
template <class Memory, class Of>
SCANRNN_HD auto drawn_at(const Of& masks, Index row, Index t) {
  if constexpr (std::is_same<Of, NoMasks>::value) {
    return Drawn<typename Memory::V, false>{};
  } else if constexpr (Memory::kTiles) {
    return masks.template of_made<typename Memory::V>(static_cast<int>(t));
  } else {
    return masks.template at<Memory>(row, t);
  }
}

}  // namespace scanrnn
