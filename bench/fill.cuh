// SPDX-License-Identifier: Apache-2.0
// Random inputs of the stand-alone benches, made on the device from a seed and a place.
#pragma once

#include <thrust/device_vector.h>

#include <cstdint>

#include "report.cuh"
#include "scanrnn/scan/op.h"

namespace scanrnn::bench {

using scan::Index;

__host__ __device__ inline std::uint32_t hash(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32);
}
// Uniform in [0, 1).
__host__ __device__ inline float uniform(std::uint64_t seed, std::uint64_t i) {
  return static_cast<float>(hash(seed * 0x2545f4914f6cdd1dull + i) >> 8) * 0x1p-24f;
}

enum class Fill { decay, kept, value, logit, extreme, zero };

template <class T>
__global__ void fill_kernel(T* out, Index count, Fill fill, std::uint64_t seed) {
  const Index stride = Index{blockDim.x} * gridDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float u = uniform(seed, i), s = 2 * u - 1;
    double x = 0;
    switch (fill) {
      case Fill::decay:
        x = 1.0 / (1 + exp(-3.0 * s));
        break;
      case Fill::kept:
        x = 1 - 1e-7 * u;
        break;
      case Fill::value:
        x = s;
        break;
      case Fill::logit:
        x = 3 * s;
        break;
      case Fill::extreme:
        x = 30 * s;
        break;
      case Fill::zero:
        break;
    }
    if constexpr (sizeof(T) == 2) {
      out[i] = static_cast<T>(static_cast<float>(x));
    } else {
      out[i] = static_cast<T>(x);
    }
  }
}
template <class T>
thrust::device_vector<T> filled(Index count, Fill fill, std::uint64_t seed) {
  thrust::device_vector<T> out(count);
  if (count > 0) {
    fill_kernel<<<1024, 256>>>(thrust::raw_pointer_cast(out.data()), count, fill, seed);
    CHECK_CUDA(cudaGetLastError());
  }
  return out;
}
template <class T>
T* raw(thrust::device_vector<T>& v) {
  return v.empty() ? nullptr : thrust::raw_pointer_cast(v.data());
}

}  // namespace scanrnn::bench
