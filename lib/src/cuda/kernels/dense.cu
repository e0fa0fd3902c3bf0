// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of one dense cell and one dtype: SCANRNN_CUDA_CELL and SCANRNN_CUDA_TYPE. The
// build compiles this file once for each pair, with the header of every cell before it.
#include "cuda/kernels/dense.h"
#include "cuda/kernels/fused_step.cuh"
#include "cuda/kernels/persistent/launch.cuh"

namespace scanrnn {

template <>
const CudaDenseKernels<SCANRNN_CUDA_TYPE>&
cuda_dense_kernels<Cell::SCANRNN_CUDA_CELL, SCANRNN_CUDA_TYPE>() {
  using T = SCANRNN_CUDA_TYPE;
  using C = cell::SCANRNN_CUDA_CELL;
  using V = typename CudaDenseKernels<T>::V;
  using Persistent = persistent::Launcher<C, T>;
  static constexpr CudaDenseKernels<T> kernels = {
      step::launch<step::forward<C, T, V>, T>, step::launch_fused<C, T>,
      step::launch<step::backward<C, T, V>, T>, Persistent::template run<false>,
      Persistent::template run<true>};
  return kernels;
}

}  // namespace scanrnn
