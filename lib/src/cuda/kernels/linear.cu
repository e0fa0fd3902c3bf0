// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of one cell and one dtype: SCANRNN_CUDA_CELL and SCANRNN_CUDA_TYPE. The build
// compiles this file once for each pair and includes the header of every cell before it, so that a
// cell costs a line in cells.def and nothing here.
#include "cuda/kernels/direct.cuh"
#include "cuda/kernels/launch.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;
using Memory = LayerUnits<T>;

template <class C>
ForwardSource<C, Memory> forward_source(const CudaSchedule& s, const ForwardKernelArgs<T>& a) {
  return {{a.preactivations, a.bias, s.extent.rows}, a.skip, s.extent.steps};
}
template <class C>
BackwardSource<C, Memory> backward_source(const CudaSchedule& s, const BackwardKernelArgs<T>& a) {
  return {{a.preactivations, a.bias, s.extent.rows},
          a.skip,
          a.states,
          a.initial,
          a.dy,
          s.extent.steps - 1};
}

template <class C>
cudaError_t forward(const CudaSchedule& s, const ForwardKernelArgs<T>& a) {
  return launch<Memory>(s, forward_source<C>(s, a),
                        ForwardSink<C, Memory>{a.y, a.states, s.extent.rows});
}
template <class C>
cudaError_t backward(const CudaSchedule& s, const BackwardKernelArgs<T>& a) {
  return launch<Memory>(s, backward_source<C>(s, a),
                        BackwardSink<C, Memory>{a.dpreactivations, a.dskip, s.extent.rows});
}
template <class C>
std::size_t workspace(const CudaSchedule& s) {
  const std::size_t one = workspace_of<ForwardSource<C, Memory>, ForwardSink<C, Memory>>(s);
  const std::size_t other = workspace_of<BackwardSource<C, Memory>, BackwardSink<C, Memory>>(s);
  return one < other ? other : one;
}

template <template <class> class CellOf, class... Options>
struct Table {
  static constexpr CudaCellKernels<T> kernels[kMaxCudaVariants] = {
      {forward<CellOf<Options>>, backward<CellOf<Options>>, launch_direct<CellOf<Options>, T>,
       workspace<CellOf<Options>>}...};
};
template <template <class> class CellOf, class... Options>
const CudaCellTable<T>& table(cell::Variants<Options...>) {
  return Table<CellOf, Options...>::kernels;
}

template <Cell>
const CudaCellTable<T>& table_of();
#define SCANRNN_LINEAR_CELL(name, option, list, ...)      \
  template <>                                             \
  inline const CudaCellTable<T>& table_of<Cell::name>() { \
    return table<cell::name>(cell::list());               \
  }
#include "scanrnn/cells.def"

}  // namespace

template <>
const CudaCellTable<T>& cuda_cell_table<Cell::SCANRNN_CUDA_CELL, T>() {
  return table_of<Cell::SCANRNN_CUDA_CELL>();
}

}  // namespace scanrnn
