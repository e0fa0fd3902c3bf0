// SPDX-License-Identifier: Apache-2.0
// How the bare recurrence's values lie in memory and in vectors, where that is not as Lanes says.
#pragma once

#include "cpu/half.h"
#include "cpu/kernels/simd.h"
#include "hwy/cache_control.h"
#include "recurrence/scan.h"

namespace scanrnn::HWY_NAMESPACE {

// Numbers of 16 bits in memory as vectors of floats.
template <class Stored>
struct HalfLanes : Lanes<float> {
  using T = Stored;
  using V = Vec<float>;

  SCANRNN_INLINE static void prefetch(const T* line, scan::Index row) {
    scanrnn::prefetch(line + row * V::kLanes);
  }
  SCANRNN_INLINE static V read(const T* line, scan::Index row, scan::Index hidden) {
    const scan::Index first = row * V::kLanes;
    const std::uint16_t* from = &line->bits + first;
    if (first + V::kLanes <= hidden) return widened(hn::LoadU(Bits(), from));
#if HWY_TARGET <= HWY_AVX3
    return widened(hn::MaskedLoad(hn::FirstN(Bits(), hidden - first), Bits(), from));
#else  // whose masked loads of 16 bits are whole ones, past the line's end
    std::uint16_t lanes[V::kLanes] = {};
    for (scan::Index i = first; i < hidden; ++i) lanes[i - first] = from[i - first];
    return widened(hn::LoadU(Bits(), lanes));
#endif
  }
  SCANRNN_INLINE static void write(T* line, scan::Index row, scan::Index hidden, V value) {
    const scan::Index first = row * V::kLanes;
    std::uint16_t* to = &line->bits + first;
    if (first + V::kLanes <= hidden) {
      hn::StoreU(narrowed(value), Bits(), to);
    } else {
      hn::BlendedStore(narrowed(value), hn::FirstN(Bits(), hidden - first), Bits(), to);
    }
  }
  SCANRNN_INLINE static void stream(T* to, V value) {
    hn::Stream(narrowed(value), Bits(), &to->bits);
  }

 private:
  using D = typename V::D;
  using Bits = hn::Rebind<std::uint16_t, D>;
  using Words = hn::RebindToUnsigned<D>;

  SCANRNN_INLINE static V widened(hn::Vec<Bits> x) {
    if constexpr (std::is_same<T, BFloat16>::value) {
      return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), x)));
    } else {
#ifdef __F16C__
      return hn::PromoteTo(D(), hn::BitCast(hn::Rebind<hwy::float16_t, D>(), x));
#else
      std::uint16_t halves[V::kLanes];
      float floats[V::kLanes];
      hn::StoreU(x, Bits(), halves);
      halves_to_floats(halves, floats, V::kLanes);
      return V::load(floats);
#endif
    }
  }
  SCANRNN_INLINE static hn::Vec<Bits> narrowed(V x) {
    if constexpr (std::is_same<T, BFloat16>::value) {  // as narrow() does
      const auto bits = hn::BitCast(Words(), x.raw);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1));
      const auto rounded = hn::Add(hn::Add(bits, hn::Set(Words(), 0x7fff)), odd);
      const auto quiet = hn::Or(bits, hn::Set(Words(), 0x400000));
      const auto is_number = hn::RebindMask(Words(), hn::Eq(x.raw, x.raw));
      const auto kept = hn::ShiftRight<16>(hn::IfThenElse(is_number, rounded, quiet));
      return hn::DemoteTo(Bits(), hn::BitCast(hn::RebindToSigned<D>(), kept));
    } else {
#ifdef __F16C__
      return hn::BitCast(Bits(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x.raw));
#else
      std::uint16_t halves[V::kLanes];
      float floats[V::kLanes];
      x.store(floats);
      floats_to_halves(floats, halves, V::kLanes);
      return hn::LoadU(Bits(), halves);
#endif
    }
  }
};

// Memory where a tensor that is written is larger than the caches: whole vectors go past them, so
// that memory is not read before it is written. That pays where they fill cache lines before the
// processor has to let go of one: vectors of a line each, or of half a line in long rows. Smaller
// or unaligned ones took up to five times as long.
template <class Memory>
struct Streamed : Memory {
  using T = typename Memory::T;
  using V = typename Memory::V;
  static constexpr scan::Index kVectorBytes = V::kLanes * sizeof(T), kLine = 64, kLongRow = 1024;

  static constexpr bool kWhole = kVectorBytes == kLine, kHalf = kVectorBytes == kLine / 2;

  static bool pays(const Grid<T>& out, scan::Index hidden) {
    const scan::Index row = hidden * static_cast<scan::Index>(sizeof(T));
    const bool fills = kWhole || (kHalf && row >= kLongRow);
    return fills && reinterpret_cast<std::uintptr_t>(out.data) % kLine == 0;
  }
  SCANRNN_INLINE static void write(T* line, scan::Index row, scan::Index hidden, V value) {
    T* to = line + row * V::kLanes;
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % kVectorBytes == 0;
    if (aligned && (row + 1) * V::kLanes <= hidden) {
      Memory::stream(to, value);
    } else {
      Memory::write(line, row, hidden, value);
    }
  }
  // After the last of them, before other threads may read.
  static void flush() { hwy::FlushStream(); }
};

// How values move between the lanes of a vector that holds `steps` adjacent steps of `rows` rows
// (scan/cpu_abreast.h). Against time the first of them has the highest address.
template <class T, int kLevelCount>
class StepMoves {
 public:
  using V = Vec<T>;
  static constexpr int kLevels = kLevelCount;

  StepMoves(scan::Index rows, scan::Index steps, bool reverse) : steps_(steps) {
    using Lane = hn::TFromD<hn::RebindToSigned<D>>;
    Lane first[V::kLanes], last[V::kLanes], earlier[kLevels][V::kLanes];
    Lane pair[2][V::kLanes];
    T later[kLevels][V::kLanes], second[2][V::kLanes];
    for (scan::Index lane = 0; lane < V::kLanes; ++lane) {
      const scan::Index row = lane % rows, place = lane / rows;
      const scan::Index step = reverse ? steps_ - 1 - place : place;  // < 0: no step's lane
      first[lane] = static_cast<Lane>(row);
      last[lane] = static_cast<Lane>(row + (reverse ? 0 : steps_ - 1) * rows);
      for (int level = 0; level < kLevels; ++level) {
        const scan::Index back = scan::Index{1} << level;
        const bool found = place < steps_ && step >= back;
        later[level][lane] = found ? T(1) : T(0);
        earlier[level][lane] =
            static_cast<Lane>(found ? lane + (reverse ? back : -back) * rows : lane);
      }
      for (int odd = 0; odd < 2; ++odd) {
        const scan::Index of_two = std::max<scan::Index>(2 * step + odd, 0),
                          of_one = of_two % steps_;
        pair[odd][lane] = static_cast<Lane>(row + (reverse ? steps_ - 1 - of_one : of_one) * rows);
        second[odd][lane] = of_two < steps_ ? T(0) : T(1);
      }
    }
    first_ = hn::SetTableIndices(D(), first);
    last_ = hn::SetTableIndices(D(), last);
    for (int level = 0; level < kLevels; ++level) {
      earlier_[level] = hn::SetTableIndices(D(), earlier[level]);
      later_[level] = hn::Ne(hn::LoadU(D(), later[level]), hn::Zero(D()));
    }
    for (int odd = 0; odd < 2; ++odd) {
      pair_[odd] = hn::SetTableIndices(D(), pair[odd]);
      second_[odd] = hn::Ne(hn::LoadU(D(), second[odd]), hn::Zero(D()));
    }
  }
  scan::Index steps() const { return steps_; }
  SCANRNN_INLINE V earlier(int level, V x) const {
    return hn::TableLookupLanes(x.raw, earlier_[level]);
  }
  SCANRNN_INLINE V choose(int level, V yes, V no) const {
    return hn::IfThenElse(later_[level], yes.raw, no.raw);
  }
  SCANRNN_INLINE V first(V x) const { return hn::TableLookupLanes(x.raw, first_); }
  SCANRNN_INLINE V last(V x) const { return hn::TableLookupLanes(x.raw, last_); }
  SCANRNN_INLINE V every_other(int odd, V x, V y) const {
    return hn::IfThenElse(second_[odd], hn::TableLookupLanes(y.raw, pair_[odd]),
                          hn::TableLookupLanes(x.raw, pair_[odd]));
  }

 private:
  using D = typename V::D;
  using Indices = decltype(hn::IndicesFromVec(D(), hn::Zero(hn::RebindToSigned<D>())));
  scan::Index steps_;
  Indices first_, last_, earlier_[kLevels], pair_[2];
  Mask<T> later_[kLevels], second_[2];
};

}  // namespace scanrnn::HWY_NAMESPACE

namespace scanrnn {

// A Source of backward with several adjacent steps to a vector, without resets. The vector that
// holds the last step of all is put together: the state before that step lies elsewhere.
template <class Source>
struct BackwardAbreast {
  using Item = BareBackwardItem<typename Source::V>;
  Source source;
  Index count;  // of steps

  BackwardAbreast(const Source& one, Index steps) : source(one), count(steps) {
    for (auto* grid : {&source.a, &source.previous, &source.dh, &source.b, &source.sign_b}) {
      *grid = grid->abreast(count);
    }
    source.width = one.width * count;
  }
  SCANRNN_INLINE Item load(Index row, Index t) const {
    return t + count <= source.last ? source.load(row, t) : load_last(row, t);
  }
  SCANRNN_INLINE auto step(const Item& item) const { return source.step(item); }

 private:
  Item load_last(Index row, Index t) const {
    typename Source::T units[Source::V::kLanes] = {};
    const Index rows = source.width / count;
    const Index first = source.previous.step < 0 ? 0 : source.width - rows;  // of the last step
    for (Index i = 0; i < source.width; ++i) {
      const bool is_last = i >= first && i < first + rows;
      if (!is_last) units[i] = source.previous.at(t)[i];
      if (is_last && source.initial.data) units[i] = *source.initial.from(i - first, 0).data;
    }
    Source whole = source;
    whole.previous = {units};
    whole.last = t + count;
    return whole.load(row, t);
  }
};

}  // namespace scanrnn
