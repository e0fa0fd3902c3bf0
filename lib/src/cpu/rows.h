// SPDX-License-Identifier: Apache-2.0
// Two tensors of equal shapes as rows that lie in one piece in both, as long as they get.
#pragma once

#include <algorithm>
#include <array>

#include "scanrnn/scan/cpu.h"
#include "scanrnn/tensor.h"

namespace scanrnn {

// An axis of both, with a stride in each.
struct SharedAxis {
  scan::Index size = 1, a = 0, b = 0;

  bool is_run() const { return size == 1 || (a == 1 && b == 1); }
  // Whether this axis goes on where `inner` ends, in both; then `inner` becomes the two as one.
  bool joins(SharedAxis& inner) const {
    const bool follows = a == inner.a * inner.size && b == inner.b * inner.size;
    if (size > 1 && inner.size > 1 && !follows) return false;
    inner = inner.size == 1 ? *this : SharedAxis{size * inner.size, inner.a, inner.b};
    return true;
  }
};

// Rows run along the last axis that is contiguous in both, and on through those outside it that
// follow without a gap. Where there is none they are single elements.
class SharedRows {
 public:
  SharedRows(const TensorView& a, const TensorView& b) {
    std::array<SharedAxis, kMaxRank> all{};
    const auto axes = static_cast<std::size_t>(std::min(a.rank, b.rank));
    for (std::size_t i = 0; i < axes; ++i) all[i] = {a.sizes[i], a.strides[i], b.strides[i]};
    std::size_t run = kMaxRank - 1;
    while (run > 0 && !(all[run].a == 1 && all[run].b == 1)) --run;
    std::rotate(all.begin() + static_cast<std::ptrdiff_t>(run),
                all.begin() + static_cast<std::ptrdiff_t>(run) + 1, all.end());
    row_ = all[2], middle_ = all[1], outer_ = all[0];
    if (outer_.joins(middle_)) outer_ = {};
    if (middle_.joins(row_)) {
      middle_ = outer_;
      outer_ = {};
    }
  }
  scan::Index elements() const { return outer_.size * middle_.size * row_.size; }

  // Calls use(element offset in a, in b, count) for a thread's share of them.
  template <class F>
  void share(const scan::Team& team, F&& use) const {
    const scan::Index rows = outer_.size * middle_.size;
    const scan::Range all{0, rows}, mine = rows > 1 ? team.share(rows) : all;
    const scan::Range part = rows > 1 ? scan::Range{0, row_.size} : team.share(row_.size);
    const bool runs = row_.is_run();
    for (scan::Index i = mine.begin; i < mine.end; ++i) {
      const scan::Index o = i / middle_.size, m = i % middle_.size;
      const scan::Index a = o * outer_.a + m * middle_.a, b = o * outer_.b + m * middle_.b;
      for (scan::Index k = part.begin; k < part.end; k = runs ? part.end : k + 1) {
        use(a + k * row_.a, b + k * row_.b, runs ? part.end - part.begin : 1);
      }
    }
  }

 private:
  SharedAxis outer_, middle_, row_;
};

}  // namespace scanrnn
