// SPDX-License-Identifier: Apache-2.0
// Steps of whole lines and norms of rows for one dtype, SCANRNN_CUDA_TYPE: a block walks a line, or
// takes a token's row. The build compiles this file once for each dtype, with the header of every
// cell before it.
#include "cuda/kernels/lines.h"

#include <algorithm>

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;
using V = scan::Units<T>::V;
using Memory = scan::Units<T>;
using Wide = scan::Units<V>;

inline constexpr int kThreads = 256, kWarps = kThreads / scan::cuda::kLanes;

// The workers of a row (recurrence/norm.h): the threads of a block. Sums are of each thread's part,
// then of a warp's, then of the warps' in order.
struct Block {
  using W = V;
  W* shared;  // [kWarps]

  template <class F>
  __device__ __forceinline__ void rows(Index width, F&& use) const {
    for (Index row = threadIdx.x; row < width; row += kThreads) use(row);
  }
  template <class F>
  __device__ __forceinline__ W sum(Index count, F&& value) const {
    constexpr int kLanes = scan::cuda::kLanes;
    __syncthreads();  // what is summed is written, and `shared` was read
    W part(0);
    for (Index i = threadIdx.x; i < count; i += kThreads) part += value(i);
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      part += __shfl_xor_sync(0xffffffffu, part, apart);
    }
    if (threadIdx.x % kLanes == 0) shared[threadIdx.x / kLanes] = part;
    __syncthreads();
    W total = shared[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) total += shared[warp];
    return total;
  }
};

template <class C, LinePhase phase>
__global__ void __launch_bounds__(kThreads)
    walk(const __grid_constant__ LineArgs<T, V> args, Index lines) {
  __shared__ V shared[kWarps];
  const Block workers{shared};
  for (Index n = blockIdx.x; n < lines; n += gridDim.x) {
    const Line<C, Memory, Wide, Block> line(args, n, args.step, workers);
    if constexpr (phase == LinePhase::reset) line.reset();
    if constexpr (phase == LinePhase::forward) line.forward();
    if constexpr (phase == LinePhase::backward) line.backward();
    if constexpr (phase == LinePhase::reset_vjp) line.reset_vjp();
    if constexpr (phase == LinePhase::end) line.end();
  }
}

// For the first `steps` steps of all lines; a block takes a step.
template <class C>
__global__ void __launch_bounds__(kThreads)
    keep_moments(const __grid_constant__ LineArgs<T, V> args, Index lines, Index steps) {
  __shared__ V shared[kWarps];
  const Block workers{shared};
  for (Index i = blockIdx.x; i < lines * steps; i += gridDim.x) {
    Line<C, Memory, Wide, Block>(args, i % lines, i / lines, workers).keep_moments();
  }
}

template <bool kBackward>
__global__ void __launch_bounds__(kThreads) norms(const __grid_constant__ CudaNormArgs<T> a) {
  __shared__ V shared[kWarps];
  const Block workers{shared};
  for (Index token = blockIdx.x; token < a.steps * a.batch; token += gridDim.x) {
    const auto row = [&](const Strided<T>& of) {
      return of.at_line(token % a.batch).at(token / a.batch);
    };
    if constexpr (kBackward) {
      norm_row_vjp<Memory>(workers, row(a.from), a.scale, row(a.d), row(a.dfrom), row(a.dscale),
                           a.width);
    } else {
      norm_row<Memory>(workers, row(a.from), a.scale, a.bias, row(a.to), a.width);
    }
  }
}

unsigned blocks_for(Index rows) {
  return static_cast<unsigned>(std::clamp<Index>(rows, 1, 1 << 16));
}

template <class C>
cudaError_t launch(LinePhase phase, const LineArgs<T, V>& args, Index lines, cudaStream_t stream) {
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(lines), kThreads, 0, stream>>>(args, lines);
    return cudaGetLastError();
  };
  switch (phase) {
    case LinePhase::forward:
      return run(walk<C, LinePhase::forward>);
    case LinePhase::backward:
      return run(walk<C, LinePhase::backward>);
    case LinePhase::end:
      return run(walk<C, LinePhase::end>);
    default:
      break;
  }
  if constexpr (C::kResets) {
    return phase == LinePhase::reset ? run(walk<C, LinePhase::reset>)
                                     : run(walk<C, LinePhase::reset_vjp>);
  }
  return cudaErrorInvalidValue;  // which no walk asks for
}

template <class C>
cudaError_t launch_moments(const LineArgs<T, V>& args, Index lines, Index steps,
                           cudaStream_t stream) {
  keep_moments<C><<<blocks_for(lines * steps), kThreads, 0, stream>>>(args, lines, steps);
  return cudaGetLastError();
}

struct Launchers {
  cudaError_t (*walk)(LinePhase, const LineArgs<T, V>&, Index, cudaStream_t) = nullptr;
  cudaError_t (*moments)(const LineArgs<T, V>&, Index, Index, cudaStream_t) = nullptr;
};

template <class C>
constexpr Launchers launchers() {
  if constexpr (C::kByLines) {
    return {&launch<C>, &launch_moments<C>};
  } else {
    return {};
  }
}
template <template <class> class CellOf, class... Options>
Launchers launchers_of(int variant, cell::Variants<Options...>) {
  static constexpr Launchers kAll[] = {launchers<CellOf<Options>>()...};
  return kAll[variant];
}

Launchers launchers_of(Cell cell, int variant) {
  switch (cell) {
#define SCANRNN_DENSE_CELL(name, option, list, ...) \
  case Cell::name:                                  \
    return launchers_of<cell::name>(variant, cell::list());
#include "scanrnn/cells.def"
    default:
      return {};
  }
}

}  // namespace

template <>
cudaError_t cuda_line_step<T, V>(Cell cell, int variant, LinePhase phase,
                                 const LineArgs<T, V>& args, Index lines, cudaStream_t stream) {
  const auto run = launchers_of(cell, variant).walk;
  return run ? run(phase, args, lines, stream) : cudaErrorInvalidValue;
}
template <>
cudaError_t cuda_line_moments<T, V>(Cell cell, int variant, const LineArgs<T, V>& args, Index lines,
                                    Index steps, cudaStream_t stream) {
  const auto run = launchers_of(cell, variant).moments;
  return run ? run(args, lines, steps, stream) : cudaErrorInvalidValue;
}
template <>
cudaError_t cuda_norm<T>(const CudaNormArgs<T>& args, cudaStream_t stream) {
  norms<false><<<blocks_for(args.steps * args.batch), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}
template <>
cudaError_t cuda_norm_vjp<T>(const CudaNormArgs<T>& args, cudaStream_t stream) {
  norms<true><<<blocks_for(args.steps * args.batch), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace scanrnn
