// SPDX-License-Identifier: Apache-2.0
// A few steps of many rows: a thread walks a row where it lies. A tile would take longer to set up
// than to fill.
#pragma once

#include "scanrnn/scan/cuda/chunk.cuh"

namespace scanrnn::scan {

inline constexpr int kShortSteps = 8;  // at most

namespace cuda {

inline constexpr int kShortThreads = 128;  // of a block

// A 64-bit division takes some hundred instructions.
__device__ __forceinline__ Index line_of(Index place, Index rows) {
  if (place < rows || rows == 1) return place < rows ? 0 : place;
  if ((place | rows) >> 32 == 0) {
    return static_cast<std::uint32_t>(place) / static_cast<std::uint32_t>(rows);
  }
  return place / rows;
}

template <class Op, int kMost, class Source, class Sink, class Ends>
__global__ void __launch_bounds__(kShortThreads)
    short_kernel(const Extent extent, const Source source, const Sink sink, const Ends ends) {
  await_stream();
  const Index place = Index{blockIdx.x} * kShortThreads + threadIdx.x;
  if (place >= extent.lines * extent.rows) return;
  const Index line = line_of(place, extent.rows), row = place - line * extent.rows;
  const Source in = source.line(line);
  const Sink out = sink.line(line);
  const int steps = static_cast<int>(extent.steps);
  // All are read before the first result is written, which may be in an input's place.
  ItemOf<Source> items[kMost];
#pragma unroll
  for (int t = 0; t < kMost; ++t) {
    if (t < steps) items[t] = in.load(row, t);
  }
  typename Op::State state = ends.first(line, row);
#pragma unroll
  for (int t = 0; t < kMost; ++t) {
    if (t >= steps) break;
    const auto after = Op::advance(in.step(items[t]), state);
    out.store(row, t, items[t], state, after);
    state = after;
  }
  ends.last(line, row, state);
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
  // A thread that holds two steps at most leaves room for twice as many.
  const auto kernel = extent.steps > 2 ? short_kernel<Op, kShortSteps, Source, Sink, Ends>
                                       : short_kernel<Op, 2, Source, Sink, Ends>;
  return cuda::launch(kernel, (rows + kShortThreads - 1) / kShortThreads, kShortThreads, 0,
                      on.stream, extent, source, sink, ends);
}

}  // namespace scanrnn::scan
