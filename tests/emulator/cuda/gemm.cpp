// SPDX-License-Identifier: Apache-2.0
// Matrix products of the emulated device: cuBLASLt's place. What a device would copy to products of
// whole vectors were it larger is copied here, in small parts.
#include "cuda/gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <vector>

#include "cuda/padded.h"
#include "emulator.h"

namespace scanrnn {
namespace {

template <class T>
double value(const void* from, Index i) {
  const T x = static_cast<const T*>(from)[i];
  if constexpr (sizeof(T) == 8) {
    return x;
  } else {
    return static_cast<double>(static_cast<float>(x));
  }
}
template <class T>
void run(const CudaProduct& p) {
  const auto of = [](const Factor& f, Index row, Index column) {
    return value<T>(f.data, f.transposed ? column * f.stride + row : row * f.stride + column);
  };
  std::vector<double> b(static_cast<std::size_t>(p.k));
  for (Index j = 0; j < p.n; ++j) {
    for (Index k = 0; k < p.k; ++k) b[static_cast<std::size_t>(k)] = of(p.b, k, j);
    for (Index i = 0; i < p.m; ++i) {
      double sum = p.bias ? value<T>(p.bias, j) : 0;
      for (Index k = 0; k < p.k; ++k) sum += of(p.a, i, k) * b[static_cast<std::size_t>(k)];
      const Index at = i * p.c_stride + j;
      if (p.wide && sizeof(T) == 2) {
        float* const c = static_cast<float*>(p.c) + at;
        *c = static_cast<float>(sum + (p.accumulate ? static_cast<double>(*c) : 0));
      } else {
        if (p.accumulate) sum += value<T>(p.c, at);
        T* const c = static_cast<T*>(p.c) + at;
        if constexpr (sizeof(T) == 8) {
          *c = sum;
        } else {
          *c = static_cast<T>(static_cast<float>(sum));
        }
      }
    }
  }
}

}  // namespace

struct CudaGemm::Impl {};
CudaGemm::CudaGemm(void*, MatmulPrecision) {}
CudaGemm::~CudaGemm() = default;
void CudaGemm::set_precision(MatmulPrecision) {}
void CudaGemm::run(const CudaProduct& product, void* workspace, void* stream) {
  constexpr std::size_t kSmall = std::size_t{1} << 16;
  PaddedProduct padded;
  if (product.dtype != Dtype::float64) padded = padded_product(product, kSmall);
  if (padded.rows == 0) return multiply(product, workspace, kWorkspace, stream);
  run_padded(product, padded, workspace, static_cast<cudaStream_t>(stream),
             [&](const CudaProduct& part) { multiply(part, workspace, kWorkspace, stream); });
}
void CudaGemm::multiply(const CudaProduct& product, void*, std::size_t, void* stream) {
  emulated::enqueue(static_cast<cudaStream_t>(stream), [product] {
    switch (product.dtype) {
      case Dtype::float64:
        return scanrnn::run<double>(product);
      case Dtype::float32:
        return scanrnn::run<float>(product);
      case Dtype::float16:
        return scanrnn::run<__half>(product);
      default:
        return scanrnn::run<__nv_bfloat16>(product);
    }
  });
}

}  // namespace scanrnn
