// SPDX-License-Identifier: Apache-2.0
// One unit of a linear or diagonal cell at one step, whatever walks it. The gates of a diagonal
// cell are what they are once the state before is known: then it is linear like any other, and so
// is its adjoint, in which the state before has a part by the gates, too.
#pragma once

#include "recurrence/masks.h"
#include "scanrnn/cells/linear_cell.h"

namespace scanrnn {

template <class Cell, class V, bool kMasked = false>
struct Unit : Drawn<V, kMasked> {
  using Gates = typename Cell::template Gates<V>;
  Gates gates;
  cell::Own<V, Cell::kVectors> own;

  // The gates as everything else reads them.
  SCANRNN_HD Gates seen(V before) const {
    if constexpr (Cell::kDiagonal) {
      V sums[Cell::kGates];
      Cell::template scatter<V>(gates, [&](int row, V value) { sums[row] = value; });
      for (int k = 0; k < Cell::kVectors; ++k) {
        sums[Cell::peek(k)] = fma(own.vector[k], before, sums[Cell::peek(k)]);
      }
      return Cell::template gather<V>([&](int row) { return sums[row]; });
    } else {
      return gates;
    }
  }
  SCANRNN_HD scan::Affine<V> lift(const Gates& seen) const {
    if constexpr (Cell::kReadsOwn) {
      return Cell::lift(seen, own);
    } else {
      return Cell::lift(seen);
    }
  }
  SCANRNN_HD cell::OwnCotangent<V, Gates, Cell::kVectors> lift_vjp(
      const Gates& seen, const cell::AffineCotangent<V>& d) const {
    if constexpr (Cell::kReadsOwn) {
      return Cell::lift_vjp(seen, own, d);
    } else {
      return {Cell::lift_vjp(seen, d), {}};
    }
  }
  // What cotangents of the gates give back to the state before.
  SCANRNN_HD V peeked(const Gates& d) const {
    V out(0);
    if constexpr (Cell::kDiagonal) {
      V of[Cell::kGates];
      Cell::template scatter<V>(d, [&](int row, V value) { of[row] = value; });
      for (int k = 0; k < Cell::kVectors; ++k) {
        out = fma(own.vector[k], of[Cell::peek(k)], out);
      }
    }
    return out;
  }
};

// A step forward: the affine map, or of a diagonal cell what becomes one when it is applied.
template <class Cell, class V, bool kMasked>
struct DiagonalStep {
  Unit<Cell, V, kMasked> unit;
};
template <class Cell, class V, bool kMasked>
SCANRNN_HD scan::Carried<V> apply(const DiagonalStep<Cell, V, kMasked>& f,
                                  const scan::Carried<V>& s) {
  const auto step = f.unit.step(f.unit.lift(f.unit.seen(s.h)));
  if constexpr (Cell::kForgets && !kMasked) return scan::carried(step.b);
  return scan::apply(step, s);
}
template <class Cell, class V, bool kMasked>
SCANRNN_HD auto step_of(const Unit<Cell, V, kMasked>& unit) {
  if constexpr (Cell::kDiagonal) {
    return DiagonalStep<Cell, V, kMasked>{unit};
  } else {
    return unit.step(unit.lift(unit.gates));
  }
}

}  // namespace scanrnn
