// SPDX-License-Identifier: Apache-2.0
// How the bare recurrence's values lie in memory and in vectors, where that is not as Lanes says.
#pragma once

#include "cpu/kernels/simd.h"
#include "hwy/cache_control.h"
#include "recurrence/scan.h"

namespace scanrnn::HWY_NAMESPACE {

// Lanes where a tensor that is written is larger than the caches: whole vectors go past them, so
// that memory is not read before it is written. That pays where they fill cache lines before the
// processor has to let go of one: vectors of a line each, or of half a line in long rows. Smaller
// or unaligned ones took up to five times as long.
template <class Scalar>
struct StreamedLanes : Lanes<Scalar> {
  using T = Scalar;
  using V = Vec<T>;
  using D = typename V::D;
  static constexpr scan::Index kVectorBytes = V::kLanes * sizeof(T), kLine = 64, kLongRow = 1024;

  static bool pays(const Grid<T>& out, scan::Index hidden) {
    const scan::Index row = hidden * static_cast<scan::Index>(sizeof(T));
    const bool fills = kVectorBytes == kLine || (kVectorBytes == kLine / 2 && row >= kLongRow);
    return fills && reinterpret_cast<std::uintptr_t>(out.data) % kLine == 0;
  }
  SCANRNN_INLINE static void write(T* line, scan::Index row, scan::Index hidden, V value) {
    T* to = line + row * V::kLanes;
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % kVectorBytes == 0;
    if (aligned && (row + 1) * V::kLanes <= hidden) {
      hn::Stream(value.raw, D(), to);
    } else {
      Lanes<T>::write(line, row, hidden, value);
    }
  }
  // After the last of them, before other threads may read.
  static void flush() { hwy::FlushStream(); }
};

// How values move between the lanes of a vector that holds several adjacent steps of `rows` rows
// (scan/cpu_abreast.h). Against time the first of them has the highest address.
template <class T, int kLevelCount>
class StepMoves {
 public:
  using V = Vec<T>;
  static constexpr int kLevels = kLevelCount;

  StepMoves(scan::Index rows, bool reverse) : steps_(V::kLanes / rows) {
    using Lane = hn::TFromD<hn::RebindToSigned<D>>;
    Lane first[V::kLanes], last[V::kLanes], earlier[kLevels][V::kLanes];
    T later[kLevels][V::kLanes];
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
    }
    first_ = hn::SetTableIndices(D(), first);
    last_ = hn::SetTableIndices(D(), last);
    for (int level = 0; level < kLevels; ++level) {
      earlier_[level] = hn::SetTableIndices(D(), earlier[level]);
      later_[level] = hn::Ne(hn::LoadU(D(), later[level]), hn::Zero(D()));
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

 private:
  using D = typename V::D;
  using Indices = decltype(hn::IndicesFromVec(D(), hn::Zero(hn::RebindToSigned<D>())));
  scan::Index steps_;
  Indices first_, last_, earlier_[kLevels];
  Mask<T> later_[kLevels];
};

}  // namespace scanrnn::HWY_NAMESPACE
