// SPDX-License-Identifier: Apache-2.0
// Lines that are one run of memory (vectors.cuh), of which a vector has several: a thread takes one
// of every tensor and walks its lines in registers.
#pragma once

#include "scanrnn/scan/cuda/lanes/vectors.cuh"

namespace scanrnn::scan {
namespace cuda {

inline constexpr int kFewThreads = 128;  // of a block

// The values of kLines lines from `first` on, a multiple of kLines: as one word, where they are
// one.
template <int kLines, class T>
struct alignas(sizeof(T) * kLines) ValuesOfLines {
  T value[kLines];
};
template <int kLines, class T>
__device__ __forceinline__ bool are_words(const LineValues<T>& values) {
  return values.apart == 1 &&
         reinterpret_cast<std::uintptr_t>(values.data) % (sizeof(T) * kLines) == 0;
}
template <int kLines, class T>
__device__ __forceinline__ ValuesOfLines<kLines, T> load_values(const LineValues<const T>& values,
                                                                Index first) {
  ValuesOfLines<kLines, T> out{};
  if (!values.data) return out;
  if (are_words<kLines>(values)) {
    return *reinterpret_cast<const ValuesOfLines<kLines, T>*>(&values.at(first));
  }
#pragma unroll
  for (int j = 0; j < kLines; ++j) out.value[j] = values.at(first + j);
  return out;
}
template <int kLines, class T>
__device__ __forceinline__ void store_values(const LineValues<T>& values, Index first,
                                             const ValuesOfLines<kLines, T>& from) {
  if (!values.data) return;
  if (are_words<kLines>(values)) {
    *reinterpret_cast<ValuesOfLines<kLines, T>*>(&values.at(first)) = from;
    return;
  }
#pragma unroll
  for (int j = 0; j < kLines; ++j) values.at(first + j) = from.value[j];
}

// The lines of a vector, kLineSteps each, from `first` on. Its values are kept line by line, each
// in the order of the walk.
template <class Op, int kLineSteps, int kStep, class Source, class Sink>
struct LinesOfVector {
  using T = typename Source::T;
  using State = typename Op::State;
  using V = typename Source::V;
  using Vector = StepVector<T>;
  static constexpr int kSteps = kVectorSteps<T>, kLines = kSteps / kLineSteps;

  const Source& source;
  const Sink& sink;
  const VectorEnds<T>& ends;
  const Index first;

  __device__ __forceinline__ static constexpr int in_vector(int k) {
    return kStep > 0 ? k : k / kLineSteps * kLineSteps + kLineSteps - 1 - k % kLineSteps;
  }
  __device__ __forceinline__ void walk() const {
    const Source inputs = source.line(0);
    int4 loaded[Source::kStreams] = {};
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      const bool ahead = i == kStreamAhead<Source>;
      if (ahead && kLineSteps == 1) continue;  // of which there is nothing but what is before
      const T* const run = vector_run<kStep>(inputs.stream(i), kLineSteps, ahead);
      loaded[i] = __ldcs(reinterpret_cast<const int4*>(run + first * kLineSteps));
    }
    const auto initial = load_values<kLines>(ends.first, first);
    const auto before = load_values<kLines>(ends.before, first);

    T values[Source::kStreams][kSteps];
    LaneTiles<T, Source::kStreams> at;
#pragma unroll
    for (int i = 0; i < Source::kStreams; ++i) {
      at.first[i] = values[i];
      const bool ahead = i == kStreamAhead<Source>;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const bool last = k % kLineSteps == kLineSteps - 1;
        const T* const own = reinterpret_cast<const Vector&>(loaded[i]).value;
        values[i][k] = !ahead ? own[in_vector(k)]
                       : last ? before.value[k / kLineSteps]
                              : own[in_vector(k + 1 < kSteps ? k + 1 : k)];
      }
    }
    T results[Sink::kStreams][kSteps];
    LaneTiles<T, Sink::kStreams> to_at;
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) to_at.first[i] = results[i];
    const Source here = source.staged(at, 1, 0, kInside);
    const Sink to = sink.staged(to_at, 1, 0, 0);
    ValuesOfLines<kLines, T> final{};
    State state{};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int line = k / kLineSteps;
      if (k % kLineSteps == 0) state = carried(static_cast<V>(initial.value[line]));
      const auto item = here.load(0, k);
      const State after = Op::advance(here.step(item), state);
      to.store(0, k, item, state, after);
      state = after;
      if (k % kLineSteps == kLineSteps - 1) final.value[line] = static_cast<T>(state.h);
    }

    const Sink outputs = sink.line(0);
#pragma unroll
    for (int i = 0; i < Sink::kStreams; ++i) {
      const auto stream = outputs.stream(i);
      if (!stream.data) continue;
      Vector result;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) result.value[in_vector(k)] = results[i][k];
      T* const run = vector_run<kStep>(stream, kLineSteps);
      __stcs(reinterpret_cast<int4*>(run + first * kLineSteps),
             reinterpret_cast<const int4&>(result));
    }
    store_values<kLines>(ends.last, first, final);
  }
  // The last lines, fewer than a vector has.
  __device__ __forceinline__ void walk_rest(Index end) const {
#pragma unroll 1
    for (Index line = first; line < end; ++line) {
      const Source from = source.line(line);
      const Sink to = sink.line(line);
      State state = carried(ends.first.data ? static_cast<V>(ends.first.at(line)) : V(0));
#pragma unroll
      for (int k = 0; k < kLineSteps; ++k) {
        const auto item = from.load(0, k);
        const State after = Op::advance(from.step(item), state);
        to.store(0, k, item, state, after);
        state = after;
      }
      if (ends.last.data) ends.last.at(line) = static_cast<T>(state.h);
    }
  }
};

template <class Op, int kLineSteps, int kStep, class Source, class Sink>
__global__ void __launch_bounds__(kFewThreads)
    few_kernel(const Extent extent, const Source source, const Sink sink,
               const VectorEnds<typename Source::T> ends) {
  using Lines = LinesOfVector<Op, kLineSteps, kStep, Source, Sink>;
  const Index first = (Index{blockIdx.x} * kFewThreads + threadIdx.x) * Lines::kLines;
  await_stream();
  const Lines lines{source, sink, ends, first};
  if (first + Lines::kLines <= extent.lines) {
    lines.walk();
  } else {
    lines.walk_rest(extent.lines);
  }
}

}  // namespace cuda

// Whether that pays: of 32 bits a thread that walks a row where it lies is as fast.
template <class Op, class Source>
inline constexpr bool kHasFew = kPacks<Op, Source> && sizeof(typename Source::T) == 2;

// Whether lines are a run of memory whose vectors lie in all tensors alike, and have whole lines.
template <class Source, class Sink, class Ends>
bool few_fit(const Extent& extent, const Source& source, const Sink& sink, const Ends& ends) {
  constexpr Index kSteps = cuda::kVectorSteps<typename Source::T>;
  return extent.steps > 0 && extent.steps < kSteps && kSteps % extent.steps == 0 &&
         cuda::vectors_fit(extent, source, sink, ends);
}

// For what few_fit().
template <class Op, class Source, class Sink, class Ends>
cudaError_t launch_few(const Extent& extent, const Source& source, const Sink& sink,
                       const Ends& ends, const Launch& on) {
  using namespace cuda;
  if (!few_fit(extent, source, sink, ends)) return cudaErrorInvalidConfiguration;
  const bool back = source.line(0).stream(0).step < 0;
  const auto kernel = extent.steps == 1   ? few_kernel<Op, 1, 1, Source, Sink>
                      : extent.steps == 2 ? back ? few_kernel<Op, 2, -1, Source, Sink>
                                                 : few_kernel<Op, 2, 1, Source, Sink>
                      : back              ? few_kernel<Op, 4, -1, Source, Sink>
                                          : few_kernel<Op, 4, 1, Source, Sink>;
  const Index own = kFewThreads * kVectorSteps<typename Source::T> / extent.steps;
  return cuda::launch(kernel, (extent.lines + own - 1) / own, kFewThreads, 0, on, extent, source,
                      sink, vector_ends(source, ends));
}

}  // namespace scanrnn::scan
