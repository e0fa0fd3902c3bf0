// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of one variant of a dense cell and one dtype: SCANRNN_CUDA_CELL,
// SCANRNN_CUDA_VARIANT and SCANRNN_CUDA_TYPE. The build compiles this file once for each three,
// with the header of every cell before it.
#include "cuda/kernels/dense.h"

#include <tuple>
#include <type_traits>

#include "cuda/kernels/fused_step.cuh"
#include "cuda/kernels/persistent/launch.cuh"
#include "cuda/kernels/stack_step.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;

template <class C>
constexpr CudaDenseKernels<T> kernels_of() {
  using V = typename CudaDenseKernels<T>::V;
  using Persistent = persistent::Launcher<C, T>;
  return {step::launch<step::forward<C, T, V>, T>,  step::launch_fused<C, T>,
          step::launch<step::backward<C, T, V>, T>, step::launch_stack<C, T>,
          Persistent::template run<false>,          Persistent::template run<true>,
          Persistent::template run_chain<false>,    Persistent::template run_chain<true>,
          Persistent::template run_lines<false>,    Persistent::template run_lines<true>};
}
template <template <class> class CellOf, class... Options>
constexpr CudaDenseKernels<T> kernels_of_one(cell::Variants<Options...>) {
  static_assert(sizeof...(Options) <= kMaxDenseVariants);
  return kernels_of<CellOf<std::tuple_element_t<SCANRNN_CUDA_VARIANT, std::tuple<Options...>>>>();
}

// A template, so that the kernels of the other cells are not compiled, too.
#define SCANRNN_DENSE_CELL(name, option, list, ...)                           \
  template <Cell wanted, std::enable_if_t<wanted == Cell::name, bool> = true> \
  constexpr CudaDenseKernels<T> kernels_of_cell() {                           \
    return kernels_of_one<cell::name>(cell::list());                          \
  }
#include "scanrnn/cells.def"

}  // namespace

template <>
const CudaDenseKernels<T>& cuda_dense_variant<Cell::SCANRNN_CUDA_CELL, SCANRNN_CUDA_VARIANT, T>() {
  static constexpr CudaDenseKernels<T> kernels = kernels_of_cell<Cell::SCANRNN_CUDA_CELL>();
  return kernels;
}

}  // namespace scanrnn
