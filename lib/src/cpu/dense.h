// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of dense cells are called with. Every thread of a team owns a share of the
// units, or of the batch, through the whole sequence: of the units, so that its part of the
// recurrent weights stays in its cache and all it waits for is the state of the others, once a
// step; of the batch, where that costs less.
#pragma once

#include "cpu/wait.h"
#include "recurrence/linear.h"
#include "scanrnn/scan/cpu.h"

namespace scanrnn {

// Units as whole vectors of any instruction set.
inline constexpr Index kUnitPadding = 16;
constexpr Index padded(Index hidden) {
  return (hidden + kUnitPadding - 1) / kUnitPadding * kUnitPadding;
}

// Who walks, and how much. The carry, [lines][padded(hidden)] of each state, is the walked state's
// own: of h (backward: the cotangent that does not come through R) and of c.
template <class T>
struct DenseSchedule {
  scan::Team team;
  StepBarrier* barrier = nullptr;
  Index lines = 0, hidden = 0, steps = 0;
  T *h = nullptr, *c = nullptr;
};

// Steps [first, first + count) of a line of tokens, in the order of the forward walk.
struct Sequence {
  Index row = 0;  // of the states
  Index line = 0, first = 0, count = 0;
};

// The lines that a ragged batch is walked as: its sequences, the longest first. Lines that have
// ended are the last ones. Where groups of threads have lines of their own, each has every so
// many-th.
struct DenseLines {
  Sequence* sequences = nullptr;      // null: a rectangular batch
  Strided<const std::uint8_t> reset;  // in the order of the forward walk; null: none
  bool reverse = false;               // then a sequence's first step is not reset
  Index steps = 0;                    // of the layer call

  // Whether the state before a step of the sequence is zero.
  SCANRNN_HD bool resets(const Sequence& s, Index step) const {
    if (!reset.data || (reverse && step == s.first)) return false;
    return *reset.at_line(s.line).at(step) != 0;
  }
};

// The sums of a step are row blocks of H, as step_cell.h orders them.
template <class T>
struct DenseForwardArgs {
  const T* weight = nullptr;    // of pack_gates; null where `products` holds R h of the one step
  const T* products = nullptr;  // [lines][gates * H]
  const T* input_weight = nullptr;  // of pack_gates: W x is multiplied here; null: it is in `sums`
  Strided<const T> x;
  Index input = 0;          // columns of W
  const T* bias = nullptr;  // of all sums
  Strided<T> sums;          // in: W x, if need be; out, where they are kept: the sums
  bool keep = false;
  Strided<const T> initial;  // the state before the first step, [lines][H]; null: zeros
  Strided<T> y, cells;       // cells: of c, or null
  DenseLines ragged;
  Masks masks;
  const T* zeros = nullptr;  // [H], of a ragged batch
};

// Walked against time, with one more step at the end: the initial state's cotangent goes to the
// carry.
template <class T>
struct DenseBackwardArgs {
  const T* weight = nullptr;  // of pack_columns
  Strided<const T> sums, y, cells, dy;
  Strided<const T> initial, initial_cell;  // h_0 and c_0, or null
  Strided<T> dsums;
  DenseLines ragged;
  Masks masks;
};

template <class T>
struct CpuDenseKernels {
  void (*forward)(const DenseSchedule<T>&, const DenseForwardArgs<T>&) = nullptr;
  void (*backward)(const DenseSchedule<T>&, const DenseBackwardArgs<T>&) = nullptr;
};

// A weight [gates * H, columns], its rows `stride` apart. Packed in the order in which a kernel
// reads it, it takes gates * max(padded(H) columns, H padded(columns)) values.
template <class T>
struct DenseWeight {
  const T* data = nullptr;
  Index stride = 0, hidden = 0, columns = 0;
  int gates = 0;
};

// Tokens to multiply: to = from times a weight or its transpose.
template <class T>
struct DenseTokens {
  Strided<const T> from;
  Strided<T> to;
  Index lines = 0, steps = 0;
};

// A team packs together, and then waits for all of it.
template <class T>
struct CpuDenseTools {
  void (*pack_gates)(const scan::Team&, const DenseWeight<T>&, T* packed);
  // For dense_backward over as many lines, or with one for project_back.
  void (*pack_columns)(const scan::Team&, Index lines, const DenseWeight<T>&, T* packed);
  // W x from packed gates, and d W from packed columns by a team of the same size.
  void (*project)(const scan::Team&, const DenseWeight<T>&, const T* packed, const DenseTokens<T>&);
  void (*project_back)(const scan::Team&, const DenseWeight<T>&, const T* packed,
                       const DenseTokens<T>&, bool accumulate);
};

}  // namespace scanrnn
