// SPDX-License-Identifier: Apache-2.0
// A few steps of many rows: a thread walks a row where it lies. A tile would take longer to set up
// than to fill.
#pragma once

#include <utility>

#include "scanrnn/scan/cuda/chunk.cuh"

namespace scanrnn::scan {

inline constexpr int kShortSteps = 8;  // at most

namespace cuda {

inline constexpr int kShortThreads = 128;  // of a block
// A step or two are kernels of their own: so little is read for a row that many rows have to be on
// their way, and what their addresses have in common is worth looking up once.
inline constexpr int kFewestSteps = 2;
constexpr int short_blocks(bool fewest) { return fewest ? 8 : 1; }  // of a multiprocessor, at least

// Rows of a thread: as many as keep eight loads of each input on their way, but four of a step of
// several inputs of pairs, whose values would go to memory; half as many of the fewest steps where
// their addresses have nothing in common.
template <class Op, class Source>
constexpr int short_rows(Index steps) {
  constexpr bool kWide = sizeof(typename Op::State) * Source::kStreams > 16;
  return steps > 4 ? 1 : steps > 2 ? 2 : steps > 1 ? 4 : kWide ? 4 : 8;
}
template <class Op, class Source>
constexpr int short_rows_apart(Index steps) {
  return steps > 2 ? short_rows<Op, Source>(steps) : 4 / steps;
}

// Walks kRows rows, kShortThreads apart, from `place` on. kBeside: all of them are there, rows of
// one line, so that their addresses differ by what is known. Others are looked up one by one; those
// past the last one read it, too, and store nothing: no load waits for a branch.
template <class Op, int kSteps, int kRows, bool kBeside, class Source, class Sink, class Ends>
__device__ __forceinline__ void walk_rows(const Extent& extent, const Source& source,
                                          const Sink& sink, const Ends& ends, Index place) {
  constexpr int kLines = kBeside ? 1 : kRows;
  const Index all = extent.lines * extent.rows;
  Index lines[kLines], rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i < kLines) {
      const Index own = kBeside ? place : min(place + i * kShortThreads, all - 1);
      lines[i] = quotient(own, extent.rows);
      rows[i] = own - lines[i] * extent.rows;
    } else {
      rows[i] = rows[0] + i * kShortThreads;
    }
  }
  const auto of = [](int i) { return kBeside ? 0 : i; };
  Source in[kLines];
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
    in[i] = source.line(lines[i]);
    // Which step is the last one is known, and asks for no branch between loads.
    if constexpr (Source::kLastDiffers) in[i] = in[i].of_steps(kSteps);
  }
  // All is read before the first result is written, which may be in an input's place.
  ItemOf<Source> items[kRows][kSteps];
  typename Op::State states[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int t = 0; t < kSteps; ++t) items[i][t] = in[of(i)].load(rows[i], t);
    states[i] = ends.first(lines[of(i)], rows[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (!kBeside && place + i * kShortThreads >= all) return;
    const Sink out = sink.line(lines[of(i)]);
    typename Op::State& state = states[i];
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
      const auto after = Op::advance(in[of(i)].step(items[i][t]), state);
      out.store(rows[i], t, items[i][t], state, after);
      state = after;
    }
    ends.last(lines[of(i)], rows[i], state);
  }
}

template <class Op, int kSteps, class Source, class Sink, class Ends>
__device__ __forceinline__ void walk_steps(const Extent& extent, const Source& source,
                                           const Sink& sink, const Ends& ends, Index place) {
  constexpr int kRows = short_rows<Op, Source>(kSteps);
  constexpr int kApart = short_rows_apart<Op, Source>(kSteps);
  if constexpr (kSteps <= kFewestSteps) {
    const Index row = place - quotient(place, extent.rows) * extent.rows;
    if (row + (kRows - 1) * kShortThreads < extent.rows) {
      return walk_rows<Op, kSteps, kRows, true>(extent, source, sink, ends, place);
    }
  }
#pragma unroll 1
  for (int i = 0; i < kRows; i += kApart) {
    walk_rows<Op, kSteps, kApart, false>(extent, source, sink, ends, place + i * kShortThreads);
  }
}

// For one of kSteps, behind kBefore of them.
template <class Op, int kBefore, class Source, class Sink, class Ends, int... kSteps>
__device__ __forceinline__ void walk_by_steps(const Extent& extent, const Source& source,
                                              const Sink& sink, const Ends& ends, Index place,
                                              std::integer_sequence<int, kSteps...>) {
  (void)((extent.steps == kBefore + kSteps + 1 &&
          (walk_steps<Op, kBefore + kSteps + 1>(extent, source, sink, ends, place), true)) ||
         ...);
}

template <bool kFewest, class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kShortThreads, short_blocks(kFewest))
    short_kernel(const Extent extent, const Source source, const Sink sink, const Ends ends) {
  await_stream();
  const Index own = Index{kShortThreads} * short_rows<Op, Source>(extent.steps);
  const Index place = blockIdx.x * own + threadIdx.x;
  if (place >= extent.lines * extent.rows) return;
  constexpr int kBefore = kFewest ? 0 : kFewestSteps;
  constexpr int kSteps = kFewest ? kFewestSteps : kShortSteps - kFewestSteps;
  walk_by_steps<Op, kBefore>(extent, source, sink, ends, place,
                             std::make_integer_sequence<int, kSteps>());
}

}  // namespace cuda

// For a step to kShortSteps.
template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_short(const Extent& extent, const Source& source, const Sink& sink,
                         const Ends& ends, const Launch& on) {
  using namespace cuda;
  if (extent.steps < 1 || extent.steps > kShortSteps) return cudaErrorInvalidConfiguration;
  const Index rows = extent.lines * extent.rows;
  if (rows == 0) return cudaSuccess;
  const Index own = Index{kShortThreads} * short_rows<Op, Source>(extent.steps);
  const auto kernel = extent.steps <= kFewestSteps ? short_kernel<true, Op, Source, Sink, Ends>
                                                   : short_kernel<false, Op, Source, Sink, Ends>;
  return cuda::launch(kernel, (rows + own - 1) / own, kShortThreads, 0, on, extent, source, sink,
                      ends);
}

}  // namespace scanrnn::scan
