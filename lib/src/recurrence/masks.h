// SPDX-License-Identifier: Apache-2.0
// What is drawn inside a recurrence: which states a step leaves as they were (zoneout), and what
// is dropped of what a state gives to the output. A draw is a function of seed and place alone, so
// that every strategy and the backward pass find the same, and none is stored.
#pragma once

#include <cstdint>

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

// A share of the places, alike in every call with the same seed.
struct Draw {
  double share = 0;
  Seed seed = {};

  SCANRNN_HD std::uint64_t threshold() const {
    return static_cast<std::uint64_t>(share *
                                      18446744073709549568.0);  // the last double below 2^64
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
  bool draws = false;
  Seed seed = {};
  std::uint64_t threshold = 0;

  Zoneout() = default;
  Zoneout(const Draw& of, bool draws)
      : mean(1 - of.share), draws(draws), seed(of.seed), threshold(of.threshold()) {}

  SCANRNN_HD explicit operator bool() const { return mean < 1; }
  // m of a row, its first unit being at `place`.
  template <class Memory>
  SCANRNN_HD typename Memory::V updates(std::uint64_t place, Index row) const {
    if (!draws) return typename Memory::V(mean);
    const std::uint64_t begin = seed.value() + place;
    return each_unit<Memory>(row, [&](Index unit) {
      return mix(begin + static_cast<std::uint64_t>(unit)) < threshold ? 0.0f : 1.0f;
    });
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

// The draws of a layer call, walked as its tokens are.
struct Masks {
  Zoneout state, cell;  // of h or a state that is one tensor; of c of the pair (h, c)
  // Of g(state) what is dropped for all steps of a sequence; the rest is times `scale`.
  double scale = 1;
  Seed readout_seed = {};
  std::uint64_t readout_threshold = 0;
  Index hidden = 0;
  Index token = 0, line = 0, step = 0;  // where the walk is, and goes to
  Index first_unit = 0, sequence = 0;
  const std::uint32_t* marks = nullptr;  // that know a packed token's sequence; null: as above

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
    out.state.seed = state.seed.read();
    out.cell.seed = cell.seed.read();
    out.readout_seed = readout_seed.read();
    return out;
  }
  SCANRNN_HD Masks from(Index row, Index t) const {
    Masks out = *this;
    out.token += t * step;
    out.first_unit += row;
    return out;
  }
  // Of sequence n, counted from its step `first` on a line.
  SCANRNN_HD Masks part(Index i, Index n, Index first) const {
    Masks out = at_line(i).from(0, first);
    out.sequence = n;
    out.marks = nullptr;
    return out;
  }

  SCANRNN_HD std::uint64_t place(Index of) const {
    return static_cast<std::uint64_t>(of * hidden + first_unit);
  }
  template <class Memory>
  SCANRNN_HD Drawn<typename Memory::V, true> at(Index row, Index t) const;
};

template <class Memory>
SCANRNN_HD Drawn<typename Memory::V, true> Masks::at(Index row, Index t) const {
  Drawn<typename Memory::V, true> out;
  const Index here = token + t * step;
  if (state) out.updates = state.template updates<Memory>(place(here), row);
  if (readout_threshold > 0) {
    constexpr int kSequenceBit = 5;  // recurrence/ragged.h
    const Index n = marks ? static_cast<Index>(marks[here] >> kSequenceBit) : sequence;
    const std::uint64_t begin = readout_seed.value() + place(n);
    out.keeps = each_unit<Memory>(row, [&](Index unit) {
      return mix(begin + static_cast<std::uint64_t>(unit)) < readout_threshold ? 0.0 : scale;
    });
  }
  return out;
}

// In place of Masks, where a Source draws nothing.
struct NoMasks {
  SCANRNN_HD NoMasks at_line(Index) const { return {}; }
  SCANRNN_HD NoMasks from(Index, Index) const { return {}; }
  SCANRNN_HD NoMasks part(Index, Index, Index) const { return {}; }
  template <class Memory>
  SCANRNN_HD Drawn<typename Memory::V, false> at(Index, Index) const {
    return {};
  }
};
template <bool kMasked>
using MasksIf = typename std::conditional<kMasked, Masks, NoMasks>::type;

}  // namespace scanrnn
