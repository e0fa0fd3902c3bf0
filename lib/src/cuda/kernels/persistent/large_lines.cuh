// SPDX-License-Identifier: Apache-2.0
// The lines that a warp group steps from turn to turn: each thread follows the one whose rows it
// brings and stores. A thread of each line of a ragged batch tells the others through shared memory
// what a turn is to it.
#pragma once

#include "cuda/kernels/persistent/large_share.cuh"
#include "cuda/kernels/persistent/line_cursor.cuh"

namespace scanrnn::persistent {

// Where a line's step lies in tensors of tokens.
struct LargePlace {
  int line, at;
  bool exists;
  // Backward: whether it is the first in time, before which a sequence has its initial state.
  bool first;
  int sequence;

  template <class U>
  __device__ __forceinline__ U* of(const Strided<U>& tensor) const {
    return tensor.at_line(line).at(at);
  }
};

// What a turn is to a line: these, and above them the line's place in the table.
namespace turn {
inline constexpr std::uint32_t kLives = 1;    // it has a step,
inline constexpr std::uint32_t kCut = 2;      // into which no state comes,
inline constexpr std::uint32_t kOpens = 4;    // the first of its sequence in this launch,
inline constexpr std::uint32_t kEnds = 8;     // or the last
inline constexpr std::uint32_t kCloses = 16;  // the turn before was the last of a sequence
inline constexpr int kLineBit = 5;
}  // namespace turn

template <Lines kLines>
struct LargeLine {
  const LineShare& own;
  int i;
  std::uint8_t reset;

  template <class Args>
  __device__ __forceinline__ LargeLine(const Args& a, const LineShare& own, int i)
      : own(own), i(i) {
    move_to(a, 0);
  }
  template <class Args>
  __device__ __forceinline__ void move_to(const Args& a, int t) {
    if constexpr (kLines == Lines::cut) {
      const LargePlace to = place(a, t);
      const bool has_flag = to.exists && a.may_reset(a.first_step + t, a.all_steps);
      reset = has_flag ? *to.of(a.reset) : 0;
    }
  }
  template <class Args>
  __device__ __forceinline__ LargePlace place(const Args& a, int t) const {
    return {own.first + i, t, i < own.count && t < a.steps, t + 1 == a.steps, own.first + i};
  }
  __device__ __forceinline__ std::uint32_t word() const { return reset != 0 ? turn::kCut : 0; }
};

// Few registers: the table is read anew in each turn.
template <>
struct LargeLine<Lines::ragged> {
  int line, start;      // as a cursor has them
  std::uint32_t flags;  // of turn::
  std::uint8_t reset = 0;

  template <class Args>
  __device__ __forceinline__ LargeLine(const Args& a, const LineShare& own, int i) {
    LineCursor cursor;
    const bool lives = cursor.open(a, own.line<true>(i < own.count ? i : 0)) && i < own.count;
    look(a, cursor, 0, lives, 0);
  }
  // From the turn before: to another sequence, if that one's is over.
  template <class Args>
  __device__ __forceinline__ void move_to(const Args& a, int t) {
    if (!(flags & turn::kLives)) {
      flags = 0;
      return;
    }
    LineCursor cursor{line, start, start + static_cast<int>(a.lines[line].count)};
    const bool closes = t == cursor.own_steps(a);
    const bool lives = !closes || (cursor.passes_on(a, t) && cursor.pass_on(a, t));
    look(a, cursor, t, lives, closes ? turn::kCloses : 0);
  }
  template <class Args>
  __device__ __forceinline__ LargePlace place(const Args& a, int t) const {
    const RaggedLine own = a.lines[line];
    const int at = t - start;
    return {own.line, own.first + (a.against_time ? own.count - 1 - at : at),
            (flags & turn::kLives) != 0, at + 1 == own.count, own.sequence};
  }
  // What the turn is, to be kept in shared memory.
  __device__ __forceinline__ std::uint32_t word() const {
    return static_cast<std::uint32_t>(line) << turn::kLineBit | flags |
           (reset != 0 ? turn::kCut : 0);
  }

 private:
  // The step's flag is kept as it is: to compare it here would be to wait for it.
  template <class Args>
  __device__ __forceinline__ void look(const Args& a, const LineCursor& cursor, int t, bool lives,
                                       std::uint32_t closes) {
    line = cursor.line;
    start = cursor.start;
    flags = closes;
    if (!lives) return;
    flags |= turn::kLives | (t == cursor.opened() ? turn::kOpens : 0) |
             (t + 1 == cursor.own_steps(a) ? turn::kEnds : 0);
    const bool has_flag = a.may_reset(cursor.at(t), cursor.end - cursor.start);
    reset = has_flag ? *a.resets_at(line, cursor.at(t)).data : 0;
  }
};

// The words of a block's lines, of two turns, where there is something to tell.
template <Lines kLines, int kCount>
struct LargeTurns {
  static constexpr bool kRagged = kLines == Lines::ragged, kTells = kLines != Lines::whole;
  std::uint32_t shared;
  const LineShare& own;
  int told;  // the line of which this thread tells the others, or none: -1

  __device__ __forceinline__ std::uint32_t of(int t, int line) const {
    return shared + static_cast<std::uint32_t>(t % 2 * kCount + line) * 4;
  }
  __device__ __forceinline__ void post(int t, const LargeLine<kLines>& line) const {
    if (kTells && told >= 0) store_shared_bits<float>(of(t, told), line.word());
  }
  __device__ __forceinline__ std::uint32_t at(int t, int line) const {
    std::uint32_t word = 0;
    if constexpr (kTells) load_shared(of(t, line), word);
    return word;
  }
  __device__ __forceinline__ bool cut(int t, int line) const { return at(t, line) & turn::kCut; }
  // Where the line's state is at the turn of a word; whether the line has a step.
  __device__ __forceinline__ int state_of(std::uint32_t word, int line) const {
    return kRagged ? static_cast<int>(word >> turn::kLineBit) : own.first + line;
  }
  __device__ __forceinline__ bool lives(std::uint32_t word, int line) const {
    return kRagged ? (word & turn::kLives) != 0 : line < own.count;
  }
};

}  // namespace scanrnn::persistent
