// SPDX-License-Identifier: Apache-2.0
// The integers that say which steps of a ragged batch there are (docs/ragged.md), and what kernels
// on a device are told of them.
#pragma once

#include "recurrence/linear.h"
#include "scanrnn/ragged.h"

namespace scanrnn {

// int32 or int64 of one axis.
class Integers {
 public:
  explicit Integers(const TensorView& view)
      : data_(view.data), stride_(view.strides[0]), wide_(view.dtype == Dtype::int64) {}
  SCANRNN_HD std::int64_t operator[](std::int64_t i) const {
    return wide_ ? static_cast<const std::int64_t*>(data_)[i * stride_]
                 : static_cast<const std::int32_t*>(data_)[i * stride_];
  }
  SCANRNN_HD explicit operator bool() const { return data_ != nullptr; }

 private:
  const void* data_;
  std::int64_t stride_;
  bool wide_;
};

// Where each sequence is. Integers that make no sense are brought to what is there: packed tokens
// begin with the first sequence and end with the last.
struct SequenceBounds {
  Integers lengths, ends;
  Index steps, count;
  bool packed;

  SequenceBounds(const Ragged& told, Index steps, Index count, bool packed)
      : lengths(told.lengths), ends(told.cu_seqlens), steps(steps), count(count), packed(packed) {}

  SCANRNN_HD Index first(Index n) const { return packed && n > 0 ? inside(ends[n]) : 0; }
  SCANRNN_HD Index end(Index n) const {
    if (packed) return n + 1 < count ? inside(ends[n + 1]) : steps;
    return lengths ? inside(lengths[n]) : steps;
  }
  SCANRNN_HD Index length(Index n) const {
    const Index length = end(n) - first(n);
    return length < 0 ? 0 : length;
  }
  // The sequence of a packed token: the last one that begins there or before.
  SCANRNN_HD Index at(Index token) const {
    Index low = 0, high = count;
    while (high - low > 1) {
      const Index middle = (low + high) / 2;
      (first(middle) <= token ? low : high) = middle;
    }
    return low;
  }

 private:
  SCANRNN_HD Index inside(Index value) const {
    return value < 0 ? 0 : value < steps ? value : steps;
  }
};

// How a linear cell walks a ragged batch without resets: each sequence for itself, or all tokens by
// their marks. Where both are launched, the longest sequence decides, which a device alone knows.
struct RaggedWays {
  bool sequences = false, tokens = true;  // what is launched
  const Index* longest = nullptr;         // null: what is launched runs
  Index most = 0;                         // that is walked for itself

  SCANRNN_HD bool runs(bool by_sequence) const {
    return !longest || (*longest <= most) == by_sequence;
  }
};

// A mark says of a step, in the order of time, what a linear cell must know: the lower bits are
// these, the upper ones the sequence that the step belongs to.
namespace mark {
inline constexpr std::uint32_t kAbsent = 1;      // there is no such step
inline constexpr std::uint32_t kReset = 2;       // no state comes into it from the step before,
inline constexpr std::uint32_t kResetAfter = 4;  // and none into the step after it
inline constexpr std::uint32_t kFirst = 8, kLast = 16;  // of its sequence
inline constexpr int kSequenceBit = 5;
inline constexpr std::uint32_t kFlags = (1u << kSequenceBit) - 1;
}  // namespace mark

// The marks of a line, walked as its tokens are. A layer that goes against time has the ends of a
// sequence, and both sides of a reset, the other way round; backward is told as forward is.
struct Marks {
  const std::uint32_t* data = nullptr;
  Index line = 0, step = 1;
  bool reverse = false;  // the layer's direction

  SCANRNN_HD Marks at_line(Index i) const { return {data + i * line, line, step, reverse}; }
  SCANRNN_HD Marks from(Index t) const { return {data + t * step, line, step, reverse}; }
  // The same in a tile.
  SCANRNN_HD Marks staged(const std::uint32_t* tile) const { return {tile, 0, 1, reverse}; }
  SCANRNN_HD std::uint32_t at(Index t) const { return data[t * step]; }

  SCANRNN_HD static bool absent(std::uint32_t m) { return m & mark::kAbsent; }
  SCANRNN_HD static Index sequence(std::uint32_t m) { return m >> mark::kSequenceBit; }
  // Forward's walk enters a sequence with its initial state and leaves its final one.
  SCANRNN_HD bool enters(std::uint32_t m) const {
    return m & (reverse ? mark::kLast : mark::kFirst);
  }
  SCANRNN_HD bool leaves(std::uint32_t m) const {
    return m & (reverse ? mark::kFirst : mark::kLast);
  }
  // The state before the step is zero; the state after it goes nowhere.
  SCANRNN_HD bool cut(std::uint32_t m) const {
    return m & (reverse ? mark::kResetAfter : mark::kReset);
  }
  SCANRNN_HD bool cut_after(std::uint32_t m) const {
    return m & (reverse ? mark::kReset : mark::kResetAfter);
  }
};

// A sequence as a dense cell walks it: whose states it has, and where its `count` tokens are. The
// sequence that begins a line of the walk has the steps of all that follow one another there; the
// others have none. The one that follows lies `next` places further on in the table; 0: none does.
struct RaggedLine {
  std::int32_t sequence, line, first, count, next, steps;
};

// What a device has prepared for all layers of a stack: a mark for each token, a line's one after
// another; for a dense cell all sequences, those that begin a line first, and of these the longest
// line; for a linear one, how it is walked.
struct RaggedTables {
  const std::uint32_t* marks = nullptr;
  const RaggedLine* lines = nullptr;
  RaggedWays ways;
};

}  // namespace scanrnn
