// SPDX-License-Identifier: Apache-2.0
// Dense cells in large batches on CUDA: walks whose products are those of warp groups, launchers
// for each variant of a cell and each 16-bit type.
#pragma once

#include "cuda/kernels/dense.h"

namespace scanrnn {

template <class T>
using CudaLargeLaunch = cudaError_t (*)(const CudaDenseArgs<T, float>&,
                                        const dispatch::PersistentShape&, void* exchange,
                                        cudaStream_t);
// As those of CudaDenseKernels, for a shape that is `large`.
template <class T>
struct CudaLargeKernels {
  CudaLargeLaunch<T> persistent, persistent_vjp;
};
template <class T>
using CudaLargeTable = CudaLargeKernels<T>[kMaxDenseVariants];

// Defined by cuda/kernels/large.cu, compiled once for each dense cell and 16-bit type.
template <Cell cell, class T>
const CudaLargeTable<T>& cuda_large_table();

}  // namespace scanrnn
