// SPDX-License-Identifier: Apache-2.0
// The scan engine on the CPU: every thread of a team calls the same function with its own rank.
//
// The engine sees lines of adjacent rows that are walked along time, and two things that it is
// given:
//   Source::line(i) -> cursor with  Item load(row, t)  and  Step step(item)
//                                   and maybe  void prefetch(row, t), also beyond the last step
//   Sink::line(i)   -> cursor with  void store(row, t, item, State before, State after)
// It knows no cell, no type and no direction: reversed time is a negative stride in the Source.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

// One thread of a team that has entered the same call. barrier() waits for all of them.
struct Team {
  int rank = 0, size = 1;

  void barrier() const {
    if (size > 1) {
#pragma omp barrier
    }
  }
  // This thread's part of `count` items; parts differ by at most one.
  Range share(Index count) const { return {count * rank / size, count * (rank + 1) / size}; }
};

template <class Cursor, class = void>
inline constexpr bool kHasPrefetch = false;
template <class Cursor>
inline constexpr bool
    kHasPrefetch<Cursor, std::void_t<decltype(std::declval<const Cursor&>().prefetch(0, 0))>> =
        true;

// Moves one row's state on by one step.
template <class Op, class Cursor, class Output>
SCANRNN_HD void advance(const Cursor& source, const Output& sink, Index row, Index t,
                        typename Op::State& state) {
  const auto item = source.load(row, t);
  const auto before = state;
  const auto after = Op::apply_step(source.step(item), before);
  state = after;
  sink.store(row, t, item, before, after);
}

// Walks rows through time, carry[row] in and out. Time is the outer loop, so memory is streamed, in
// pieces of so many rows that their states stay in the first-level cache, and asked for some rows
// ahead: where a step's piece ends, no processor guesses where the next begins. The state of a lone
// row stays in registers: there is no other row to work on while it comes back from memory.
template <class Op, class Cursor, class Output>
void walk(const Cursor& line, const Output& to, Range rows, Range steps,
          typename Op::State* carry) {
  const Cursor source = line;  // copies, which no store of a vector may change: in registers
  const Output sink = to;
  constexpr Index kBlock = 128, kAhead = 32;
  if (rows.end - rows.begin == 1) {
    auto state = carry[rows.begin];
    for (Index t = steps.begin; t < steps.end; ++t) {
      advance<Op>(source, sink, rows.begin, t, state);
    }
    carry[rows.begin] = state;
    return;
  }
  for (Index block = rows.begin; block < rows.end; block += kBlock) {
    const Index end = std::min(block + kBlock, rows.end);
    const Index ahead = (kAhead + end - block - 1) / (end - block);
    for (Index t = steps.begin; t < steps.end; ++t) {
      for (Index row = block; row < end; ++row) {
        if constexpr (kHasPrefetch<Cursor>) source.prefetch(row, t + ahead);
        advance<Op>(source, sink, row, t, carry[row]);
      }
    }
  }
}

// Composes the steps of each row to total[row]: one promotion for the whole chunk, since each would
// round a logarithm.
template <class Op, class Cursor>
void reduce(const Cursor& source, Range rows, Range steps, typename Op::Element* total) {
  constexpr Index kBlock = 16;  // locals of this many rows stay in the first-level cache
  for (Index block = rows.begin; block < rows.end; block += kBlock) {
    const Index count = std::min(kBlock, rows.end - block);
    typename Op::Local chunk[kBlock], local[kBlock];
    for (Index i = 0; i < count; ++i) chunk[i] = Op::local_identity();
    for (Index first = steps.begin; first < steps.end; first += kLocalSteps) {
      const Index last = std::min<Index>(first + kLocalSteps, steps.end);
      for (Index i = 0; i < count; ++i) local[i] = Op::local_identity();
      for (Index t = first; t < last; ++t) {
        for (Index i = 0; i < count; ++i) {
          local[i] = Op::then(local[i], source.step(source.load(block + i, t)));
        }
      }
      for (Index i = 0; i < count; ++i) chunk[i] = Op::join(chunk[i], local[i]);
    }
    for (Index i = 0; i < count; ++i) total[block + i] = Op::promote(chunk[i]);
  }
}

// How a thread walks and reduces rows of one line. A vector holds one step of each; the other
// arrangement is in cpu_abreast.h.
struct OneStep {
  template <class Op, class Cursor, class Output>
  void walk(const Cursor& source, const Output& sink, Range rows, Range steps,
            typename Op::State* carry) const {
    scan::walk<Op>(source, sink, rows, steps, carry);
  }
  template <class Op, class Cursor>
  void reduce(const Cursor& source, Range rows, Range steps, typename Op::Element* total) const {
    scan::reduce<Op>(source, rows, steps, total);
  }
};

// The lines that a part of all lines' rows is of, and the rows of each: use(line, rows). Without a
// division for each line, which takes as long as a short one.
template <class Use>
void for_lines(Range some, Index rows, Use&& use) {
  if (some.begin >= some.end) return;
  Index line = some.begin / rows;
  for (Index base = line * rows; base < some.end; ++line, base += rows) {
    use(line, Range{std::max<Index>(some.begin - base, 0), std::min(some.end - base, rows)});
  }
}

// Fused-sequential: rows are split over the team, time is walked once. carry is [lines][rows].
template <class Op, class Source, class Sink, class Arrangement = OneStep>
void sequential(const Team& team, const Extent& extent, const Source& source, const Sink& sink,
                Range steps, typename Op::State* carry, const Arrangement& arranged = {}) {
  for_lines(team.share(extent.lines * extent.rows), extent.rows, [&](Index line, Range rows) {
    arranged.template walk<Op>(source.line(line), sink.line(line), rows, steps,
                               carry + line * extent.rows);
  });
}

inline Index chunk_count(Index steps, Index chunk) { return (steps + chunk - 1) / chunk; }

// Parallel scan: time is cut into chunks, and their row into one part more than there are threads,
// which should be no more than chunks, since time is all that they share. The first thread walks
// the first part while the others reduce theirs to how each starts; then they walk those, and the
// first thread the last part, which nobody has reduced. totals is [chunks][lines][rows], starts
// [threads][lines][rows]; carry, in and out, [lines][rows].
template <class Op, class Source, class Sink, class Arrangement = OneStep>
void parallel(const Team& team, const Extent& extent, const Source& source, const Sink& sink,
              Index chunk, typename Op::Element* totals, typename Op::State* starts,
              typename Op::State* carry, const Arrangement& arranged = {}) {
  const Index chunks = chunk_count(extent.steps, chunk), width = extent.lines * extent.rows;
  const Range rows{0, extent.rows};
  const auto part = [&](Index i) {
    return Range{chunks * i / (team.size + 1), chunks * (i + 1) / (team.size + 1)};
  };
  // Chunk after chunk, so that a thread stays on neighbouring memory in either layout.
  const auto for_chunks = [&](Range some, const auto& use) {
    for (Index k = some.begin; k < some.end; ++k) {
      const Range steps{k * chunk, std::min((k + 1) * chunk, extent.steps)};
      for (Index line = 0; line < extent.lines; ++line) use(k, line, steps);
    }
  };
  const auto walk_part = [&](Range some, typename Op::State* state) {
    for_chunks(some, [&](Index, Index line, Range steps) {
      arranged.template walk<Op>(source.line(line), sink.line(line), rows, steps,
                                 state + line * extent.rows);
    });
  };

  if (team.rank == 0) {
    walk_part(part(0), carry);
  } else {
    for_chunks(part(team.rank), [&](Index k, Index line, Range steps) {
      arranged.template reduce<Op>(source.line(line), rows, steps,
                                   totals + k * width + line * extent.rows);
    });
  }
  team.barrier();
  const Range columns = team.share(width);
  for (Index column = columns.begin; column < columns.end; ++column) {
    auto state = carry[column];
    for (Index i = 1; i < team.size; ++i) {
      starts[i * width + column] = state;
      for (Index k = part(i).begin; k < part(i).end; ++k) {
        state = Op::apply(totals[k * width + column], state);
      }
    }
    carry[column] = state;
  }
  team.barrier();
  if (team.rank == 0) {
    walk_part(part(team.size), carry);
  } else {
    walk_part(part(team.rank), starts + team.rank * width);
  }
}

}  // namespace scanrnn::scan
