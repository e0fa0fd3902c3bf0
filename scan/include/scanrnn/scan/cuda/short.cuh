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
inline constexpr int kShortBlocks = 8;     // of a multiprocessor, at least

// Rows of a thread: as many as keep eight loads of each input on their way, or half as many.
constexpr int short_rows(Index steps) { return steps > 4 ? 1 : steps > 2 ? 2 : 4; }

// Walks the rows of a thread, kShortThreads apart, from `place` on, which is this row of this line.
// kBeside: all of them are rows of that line, and their addresses differ by what is known. Others
// are looked up one by one; those past the last one read it, too, and store nothing: no load waits
// for a branch.
template <class Op, int kSteps, bool kBeside, class Source, class Sink, class Ends>
__device__ __forceinline__ void walk_rows(const Extent& extent, const Source& source,
                                          const Sink& sink, const Ends& ends, Index place,
                                          Index line, Index row) {
  constexpr int kRows = short_rows(kSteps), kLines = kBeside ? 1 : kRows;
  const Index all = extent.lines * extent.rows;
  Index lines[kLines] = {line}, rows[kRows] = {row};
#pragma unroll
  for (int i = 1; i < kRows; ++i) {
    if constexpr (kBeside) {
      rows[i] = row + i * kShortThreads;
    } else {
      const Index own = min(place + i * kShortThreads, all - 1);
      lines[i] = quotient(own, extent.rows);
      rows[i] = own - lines[i] * extent.rows;
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
  constexpr int kFurther = (short_rows(kSteps) - 1) * kShortThreads;
  const Index line = quotient(place, extent.rows), row = place - line * extent.rows;
  if (kFurther == 0 || row + kFurther < extent.rows) {
    walk_rows<Op, kSteps, true>(extent, source, sink, ends, place, line, row);
  } else {
    walk_rows<Op, kSteps, false>(extent, source, sink, ends, place, line, row);
  }
}

template <class Op, class Source, class Sink, class Ends, int... kSteps>
__device__ __forceinline__ void walk_by_steps(const Extent& extent, const Source& source,
                                              const Sink& sink, const Ends& ends, Index place,
                                              std::integer_sequence<int, kSteps...>) {
  (void)((extent.steps == kSteps + 1 &&
          (walk_steps<Op, kSteps + 1>(extent, source, sink, ends, place), true)) ||
         ...);
}

template <class Op, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kShortThreads, kShortBlocks)
    short_kernel(const Extent extent, const Source source, const Sink sink, const Ends ends) {
  await_stream();
  const Index place = Index{blockIdx.x} * kShortThreads * short_rows(extent.steps) + threadIdx.x;
  if (place >= extent.lines * extent.rows) return;
  walk_by_steps<Op>(extent, source, sink, ends, place,
                    std::make_integer_sequence<int, kShortSteps>());
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
  const Index own = Index{kShortThreads} * short_rows(extent.steps);
  return cuda::launch(short_kernel<Op, Source, Sink, Ends>, (rows + own - 1) / own, kShortThreads,
                      0, on, extent, source, sink, ends);
}

}  // namespace scanrnn::scan
