// SPDX-License-Identifier: Apache-2.0
// Steps of whole lines on CUDA, and norms of tokens' rows: launchers for each dtype, asynchronous,
// that return the launch's status.
#pragma once

#include <cuda_runtime_api.h>

#include "scanrnn/scan/cuda/memory.cuh"
#include "stack/line_step.h"

namespace scanrnn {

// One phase of a step of so many lines, of a cell that is kByLines.
template <class T, class V = typename scan::Units<T>::V>
cudaError_t cuda_line_step(Cell cell, int variant, LinePhase phase, const LineArgs<T, V>& args,
                           Index lines, cudaStream_t stream);

// The moments of so many steps of each line.
template <class T, class V = typename scan::Units<T>::V>
cudaError_t cuda_line_moments(Cell cell, int variant, const LineArgs<T, V>& args, Index lines,
                              Index steps, cudaStream_t stream);

// Rows of [T,B,width], as norm.h names them.
template <class T>
struct CudaNormArgs {
  Index steps = 0, batch = 0, width = 0;
  const T *scale = nullptr, *bias = nullptr;
  Strided<T> from, to, d, dfrom, dscale;
};
template <class T>
cudaError_t cuda_norm(const CudaNormArgs<T>& args, cudaStream_t stream);
template <class T>
cudaError_t cuda_norm_vjp(const CudaNormArgs<T>& args, cudaStream_t stream);

}  // namespace scanrnn
