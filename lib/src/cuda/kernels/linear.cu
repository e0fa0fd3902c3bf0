// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of one cell and one dtype: SCANRNN_CUDA_CELL and SCANRNN_CUDA_TYPE. The build
// compiles this file once for each pair and includes the header of every cell before it, so that a
// cell costs a line in cells.def and nothing here.
#include <algorithm>
#include <type_traits>

#include "cuda/kernels/direct.cuh"
#include "cuda/kernels/launch.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;
using Memory = LayerUnits<T>;

template <class C>
ForwardSource<C, Memory, true> forward_source(const CudaSchedule& s,
                                              const ForwardKernelArgs<T>& a) {
  return {{a.preactivations, a.bias, a.vectors, s.extent.rows}, a.skip, s.extent.steps, a.masks};
}
template <class C>
BackwardSource<C, Memory, true> backward_source(const CudaSchedule& s,
                                                const BackwardKernelArgs<T>& a) {
  return {{a.preactivations, a.bias, a.vectors, s.extent.rows},
          a.skip,
          a.states,
          a.initial,
          a.dy,
          s.extent.steps - 1,
          a.masks};
}

// A ragged batch.
template <class C, bool kMasked>
cudaError_t forward_by(const CudaSchedule& s, const ForwardSource<C, Memory, kMasked>& source,
                       const ForwardSink<C, Memory>& sink) {
  const auto ends = ends_of<Memory>(s);
  const auto status = launch_sequences<Memory>(s, s.tables.ways, source, sink);
  if (status != cudaSuccess || !s.tables.ways.tokens) return status;
  return launch_marked<Memory>(
      s, MarkedForwardSource<C, Memory, kMasked>{source, s.marks, {ends.initial}, s.tables.ways},
      MarkedForwardSink<C, Memory>{sink, s.marks, {ends.final}});
}
template <class C>
cudaError_t forward(const CudaSchedule& s, const ForwardKernelArgs<T>& a) {
  const auto source = forward_source<C>(s, a);
  const ForwardSink<C, Memory> sink{a.y, a.states, s.extent.rows};
  if (s.ragged) {
    return s.drawn ? forward_by<C>(s, source, sink) : forward_by<C>(s, source.undrawn(), sink);
  }
  if (s.drawn) return launch_drawn<Memory>(s, source, sink);
  return launch<Memory>(s, source.undrawn(), sink);
}
template <class C, bool kMasked, class Sink>
cudaError_t backward_by(const CudaSchedule& s, BackwardSource<C, Memory, kMasked> source,
                        const Sink& sink) {
  const auto ends = ends_of<Memory>(s);
  const auto status = launch_sequences<Memory>(s, s.tables.ways, source, sink);
  if (status != cudaSuccess || !s.tables.ways.tokens) return status;
  const SequenceStates<const T> initial{source.initial};
  source.initial = {};
  return launch_marked<Memory>(s,
                               MarkedBackwardSource<C, Memory, kMasked>{
                                   source, s.marks, initial, {ends.initial}, s.tables.ways},
                               MarkedBackwardSink<Sink, Memory>{sink, s.marks, {ends.final}});
}
template <class C>
cudaError_t backward(const CudaSchedule& s, const BackwardKernelArgs<T>& a) {
  const auto source = backward_source<C>(s, a);
  const BackwardSink<C, Memory> sink{a.dpreactivations, a.dskip, a.dvectors, s.extent.rows};
  if (s.drawn) {
    return s.ragged ? backward_by<C>(s, source, sink) : launch_drawn<Memory>(s, source, sink);
  }
  const auto walk = [&](const auto& to) {
    return s.ragged ? backward_by<C>(s, source.undrawn(), to)
                    : launch<Memory>(s, source.undrawn(), to);
  };
  if constexpr (C::kDiagonal) {
    return walk(SummingSink<C, Memory>(sink, static_cast<typename Memory::V*>(s.sums)));
  } else {
    return walk(sink);
  }
}
template <class C, bool kMasked>
std::size_t ragged_workspace(const CudaSchedule& s) {
  return std::max(
      marked_workspace<MarkedForwardSource<C, Memory, kMasked>, MarkedForwardSink<C, Memory>>(s),
      marked_workspace<MarkedBackwardSource<C, Memory, kMasked>,
                       MarkedBackwardSink<BackwardSink<C, Memory>, Memory>>(s));
}
template <class C>
std::size_t workspace(const CudaSchedule& s) {
  if (s.ragged) return s.drawn ? ragged_workspace<C, true>(s) : ragged_workspace<C, false>(s);
  if (s.drawn) {
    return std::max(drawn_workspace<ForwardSource<C, Memory, true>, ForwardSink<C, Memory>>(s),
                    drawn_workspace<BackwardSource<C, Memory, true>, BackwardSink<C, Memory>>(s));
  }
  return std::max(workspace_of<ForwardSource<C, Memory>, ForwardSink<C, Memory>>(s),
                  workspace_of<BackwardSource<C, Memory>, BackwardSink<C, Memory>>(s));
}

template <class C>
__global__ void finish_vectors(const T* vectors, T* sums, Index count) {
  using V = typename Memory::V;
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  sums[i] = static_cast<T>(C::vector_vjp(static_cast<V>(vectors[i]), static_cast<V>(sums[i])));
}
template <class C>
constexpr auto finish_of() {
  constexpr unsigned kThreads = 128;
  decltype(CudaCellKernels<T>::finish_vectors) out = nullptr;
  if constexpr (C::kReadsOwn) {
    out = [](const T* vectors, T* sums, Index count, cudaStream_t stream) {
      const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
      finish_vectors<C><<<blocks, kThreads, 0, stream>>>(vectors, sums, count);
      return cudaGetLastError();
    };
  }
  return out;
}

template <template <class> class CellOf, class... Options>
struct Table {
  static constexpr CudaCellKernels<T> kernels[kMaxCudaVariants] = {
      {forward<CellOf<Options>>, backward<CellOf<Options>>, launch_direct<CellOf<Options>, T>,
       workspace<CellOf<Options>>, finish_of<CellOf<Options>>()}...};
};
template <template <class> class CellOf, class... Options>
const CudaCellTable<T>& table(cell::Variants<Options...>) {
  return Table<CellOf, Options...>::kernels;
}

// A template, so that the kernels of the other cells are not compiled, too.
#define SCANRNN_LINEAR_CELL(name, option, list, ...)                          \
  template <Cell wanted, std::enable_if_t<wanted == Cell::name, bool> = true> \
  const CudaCellTable<T>& table_of() {                                        \
    return table<cell::name>(cell::list());                                   \
  }
#include "scanrnn/cells.def"

}  // namespace

template <>
const CudaCellTable<T>& cuda_cell_table<Cell::SCANRNN_CUDA_CELL, T>() {
  return table_of<Cell::SCANRNN_CUDA_CELL>();
}

}  // namespace scanrnn
