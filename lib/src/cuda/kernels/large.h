// SPDX-License-Identifier: Apache-2.0
// Dense cells in large batches on CUDA: the forward walk whose products are those of warp groups,
// a launcher for each variant of a cell and each 16-bit type.
#pragma once

#include "cuda/kernels/dense.h"

namespace scanrnn {

// As CudaDenseKernels::persistent, for a shape that is `large`.
template <class T>
using CudaLargeLaunch = cudaError_t (*)(const CudaDenseArgs<T, float>&,
                                        const dispatch::PersistentShape&, void* exchange,
                                        cudaStream_t);
template <class T>
using CudaLargeTable = CudaLargeLaunch<T>[kMaxDenseVariants];

// Defined by cuda/kernels/large.cu, compiled once for each dense cell and 16-bit type.
template <Cell cell, class T>
const CudaLargeTable<T>& cuda_large_table();

}  // namespace scanrnn
