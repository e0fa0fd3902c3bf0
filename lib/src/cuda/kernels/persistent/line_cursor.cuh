// SPDX-License-Identifier: Apache-2.0
// Where the lines of a ragged batch are in a launch: which sequence a line has at a turn, and which
// lines are still walked.
#pragma once

#include "cuda/kernels/persistent/line_share.cuh"

namespace scanrnn::persistent {

struct LineCursor {
  int line;  // of the table: the sequence that is walked
  // The turn of its first step, which may be of a launch before this one, and the turn behind its
  // last step, which may be of one after it.
  int start, end;

  // The step of the sequence that turn t has, and the turn at which it was opened.
  __device__ __forceinline__ int at(int t) const { return t - start; }
  __device__ __forceinline__ int opened() const { return max(start, 0); }
  // The turn behind its last step here.
  template <class Args>
  __device__ __forceinline__ int own_steps(const Args& a) const {
    return min(static_cast<int>(a.steps), end);
  }
  // A line of the table at turn 0: whether it has a step in this launch.
  template <class Args>
  __device__ __forceinline__ bool open(const Args& a, int at_line) {
    line = at_line;
    const bool live = a.steps_of(line) > 0;
    begin(a, -static_cast<int>(a.first_step));
    while (live && end <= 0) begin_next(a, end);
    return live;
  }
  // Once so many turns are made, with which the sequence ends: whether another one follows in this
  // launch, and the line's way to it; whether that has a step.
  template <class Args>
  __device__ __forceinline__ bool passes_on(const Args& a, int made) const {
    return made < static_cast<int>(a.steps) && a.lines[line].next > 0;
  }
  template <class Args>
  __device__ __forceinline__ bool pass_on(const Args& a, int made) {
    begin_next(a, made);
    return end > made;
  }
  // The sequence that follows.
  template <class Args>
  __device__ __forceinline__ int next_line(const Args& a) const {
    int out = line + a.lines[line].next;
    while (a.lines[out].count == 0 && a.lines[out].next > 0) out += a.lines[out].next;
    return out;
  }

 private:
  template <class Args>
  __device__ __forceinline__ void begin(const Args& a, int t) {
    start = t;
    end = t + static_cast<int>(a.lines[line].count);
  }
  template <class Args>
  __device__ __forceinline__ void begin_next(const Args& a, int t) {
    line = next_line(a);
    begin(a, t);
  }
};

// The lines of a group that are still walked. They end one after the other, the last one first, and
// of each the group waits for its words at turns before `end`; backward those of its last step are
// read a turn later.
template <bool kBackward>
struct ActiveLines {
  int count, end;

  template <class Args>
  __device__ __forceinline__ ActiveLines(const Args& a, const LineShare& own) : count(own.count) {
    look(a, own);
  }
  template <class Args>
  __device__ __forceinline__ void drop_ended(const Args& a, const LineShare& own, int t) {
    while (count > 0 && end <= t) {
      --count;
      look(a, own);
    }
  }

 private:
  template <class Args>
  __device__ __forceinline__ void look(const Args& a, const LineShare& own) {
    if (count == 0) return;
    const int steps = static_cast<int>(a.steps_of(own.line<true>(count - 1)));
    end = steps > 0 ? steps + kBackward : 0;
  }
};

}  // namespace scanrnn::persistent
