// SPDX-License-Identifier: Apache-2.0
// One layer of a linear cell in one direction on CUDA, as Backend's functions of
// these names: a product and a kernel on `stream`. With an arena that only counts, nothing runs.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/gemm.h"
#include "stack/backend.h"

namespace scanrnn {

void cuda_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena, CudaGemm* gemm,
                  cudaStream_t stream);
void cuda_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena, CudaGemm* gemm,
                   cudaStream_t stream);

}  // namespace scanrnn
