// SPDX-License-Identifier: Apache-2.0
// Lines of one row whose steps are adjacent, and which lie right behind one another: all of them
// are one run of memory, which is taken by vectors of 16 bytes, straight into registers. No line is
// shorter than a vector (packed.cuh), or a vector has several of them (few.cuh).
//
// A Source and a Sink are those of warp.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "scanrnn/scan/cuda/lanes/lines.cuh"

namespace scanrnn::scan {
namespace cuda {

// Steps of a lane.
template <class T>
inline constexpr int kVectorSteps = kVectorBytes / static_cast<int>(sizeof(T));

// A vector of steps, as it lies in memory.
template <class T>
struct alignas(kVectorBytes) StepVector {
  T value[kVectorSteps<T>];
};

// The stream of a backward walk that is a step ahead of the others in their vectors: the state a
// step before.
template <class Source>
inline constexpr int kStreamAhead = Source::kLastDiffers ? 1 : -1;

// A value of each line, `apart` from the one before; `data` may be null.
template <class T>
struct LineValues {
  T* data = nullptr;
  Index apart = 0;
  __device__ __forceinline__ T& at(Index line) const { return data[line * apart]; }
};
// What lines begin with and what they leave, in place of Ends, and what is before their first
// steps.
template <class T>
struct VectorEnds {
  LineValues<const T> first, before;
  LineValues<T> last;
};

// Where the first vector of all lines is, of a stream whose step from step to step is kStep; of one
// that is a step ahead as if it were not.
template <int kStep, class Stream>
__host__ __device__ auto* vector_run(const Stream& stream, Index steps, bool ahead = false) {
  return stream.data - (kStep > 0 ? 0 : steps - 1) - (ahead ? kStep : 0);
}

// What lines begin with and what they leave, as kernels of vectors take it.
template <class Source, class Ends>
auto vector_ends(const Source& source, const Ends& ends) {
  VectorEnds<typename Source::T> out{
      {ends.initial.data, ends.initial.line}, {}, {ends.final.data, ends.final.line}};
  if constexpr (Source::kLastDiffers) out.before = {source.initial.data, source.initial.line};
  return out;
}

// Whether lines are a run of memory whose vectors lie in all tensors alike, and their ends evenly
// apart. What a step before a line's only one would be is not read.
template <class Source, class Sink, class Ends>
bool vectors_fit(const Extent& extent, const Source& source, const Sink& sink, const Ends& ends) {
  bool fit = extent.rows == 1 && extent.lines > 0 && lines_follow(extent, source, sink) &&
             !ends.initial.split && !ends.final.split;
  if constexpr (Source::kLastDiffers) fit = fit && !source.initial.split;
  const Index step = source.line(0).stream(0).step;
  const auto each = [&](const auto& streams, int count, int ahead) {
    for (int i = 0; i < count; ++i) {
      const auto stream = streams.stream(i);
      if (!stream.data || (i == ahead && extent.steps == 1)) continue;
      const auto* const run = step > 0 ? vector_run<1>(stream, extent.steps, i == ahead)
                                       : vector_run<-1>(stream, extent.steps, i == ahead);
      fit = fit && stream.step == step && reinterpret_cast<std::uintptr_t>(run) % kVectorBytes == 0;
    }
  };
  each(source.line(0), Source::kStreams, kStreamAhead<Source>);
  each(sink.line(0), Sink::kStreams, -1);
  return fit;
}

}  // namespace cuda

// Whether a lane has several steps of a vector, composes them as maps a x + b, and has registers
// for all of a Source: a stream that may be absent, as signs may where a Source lifts logarithms,
// would be local memory.
template <class Op, class Source>
inline constexpr bool kPacks =
    (std::is_same<Op, AnyAffineOp<float>>::value || std::is_same<Op, AnyPlainOp<float>>::value ||
     std::is_same<Op, LoggedAffineOp<float>>::value) &&
    sizeof(typename Source::T) <= 4 && Source::kStreams <= (Source::kLifts ? 2 : 3);

}  // namespace scanrnn::scan
