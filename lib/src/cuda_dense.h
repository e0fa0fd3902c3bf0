// SPDX-License-Identifier: Apache-2.0
// Dense cells on CUDA: one table of launchers for each cell and dtype, and the layer that calls
// them. Every launcher is asynchronous and returns the launch's status.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "gemm_cuda.h"
#include "pass.h"

namespace scanrnn {

// What a walk over the steps reads and writes; of every kind as in recurrence.h, time in the order
// of the walk. State is computed in V and carried in h and c, [B,H]; c is null without a pair.
template <class T, class V>
struct CudaDenseArgs {
  Index batch = 0, hidden = 0, steps = 0;
  const T* weight = nullptr;  // R, [G*H,H], rows weight_stride apart
  Index weight_stride = 0;
  const V* bias = nullptr;       // of every sum, [P*H] (forward)
  V *h = nullptr, *c = nullptr;  // in and out: the state, or its cotangent

  Strided<const T> sums;  // forward: W x, [.., G*H]; backward: the sums that were kept, [.., P*H]
  Strided<T> kept;        // forward: the sums, or absent; backward: their cotangents, [.., P*H]
  Strided<T> y, cells;    // forward; cells is absent where nothing is kept
  Strided<const T> before, dy;  // backward: c (pair) or h a step before, and dy or absent
  Strided<const T> initial;     // backward: c_0 or h_0, before the first step in time, or absent

  // The step loop: what the products read, [B,H] or [B,G*H], and (forward) what they gave.
  T* fed = nullptr;
  const V* products = nullptr;
};

template <class T>
struct CudaDenseKernels {
  using V = typename std::conditional<std::is_same<T, double>::value, double, float>::type;
  // One step, `t` steps into the walk.
  cudaError_t (*step)(const CudaDenseArgs<T, V>&, Index t, cudaStream_t);
  cudaError_t (*step_vjp)(const CudaDenseArgs<T, V>&, Index t, cudaStream_t);
  // The whole walk in one launch, of which float64 has none: an error, which no plan asks for.
  // `exchange` has the bytes that dispatch::exchange_bytes says, and all its bits are set.
  cudaError_t (*persistent)(const CudaDenseArgs<T, V>&, const dispatch::PersistentShape&,
                            void* exchange, cudaStream_t);
  cudaError_t (*persistent_vjp)(const CudaDenseArgs<T, V>&, const dispatch::PersistentShape&,
                                void* exchange, cudaStream_t);
};

// Defined by cuda_dense.cu, compiled once for each dense cell and dtype.
template <Cell cell, class T>
const CudaDenseKernels<T>& cuda_dense_kernels();

// One layer in one direction, as Backend's functions of that name.
void cuda_dense_forward(const dispatch::Plan& plan, const Pass& pass, Arena& arena, CudaGemm* gemm,
                        cudaStream_t stream);
void cuda_dense_backward(const dispatch::Plan& plan, const Pass& pass, Arena& arena, CudaGemm* gemm,
                         cudaStream_t stream);

}  // namespace scanrnn
