// SPDX-License-Identifier: Apache-2.0
// Matrix products on CUDA by cuBLASLt, which is loaded when the first one is asked for.
#pragma once

#include <memory>

#include "stack/backend.h"

namespace scanrnn {

// A product C[m,n] = A[m,k] B[k,n] + (accumulate ? C : 0) + bias, the bias [n] added to every row.
struct CudaProduct {
  Dtype dtype;
  Index m, n, k;
  Factor a, b;
  void* c;
  Index c_stride;
  bool accumulate = false;
  const void* bias = nullptr;  // not for float64, whose products have no epilogue
  bool wide = false;           // C is float32 where the dtype is a 16-bit one
};

class CudaGemm {
 public:
  // `handle` is the caller's cublasLtHandle_t, or null to make one. Throws cuda_error, and says how
  // to get cuBLAS when there is none.
  CudaGemm(void* handle, MatmulPrecision precision);
  ~CudaGemm();

  void set_precision(MatmulPrecision precision);  // of the products from now on

  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;
  static constexpr std::size_t kCopies = std::size_t{24} << 20;  // of these, at most, for copies
  // Asynchronous on `stream`; equal calls on equally aligned matrices give equal bits. `workspace`
  // has kWorkspace bytes.
  void run(const CudaProduct& product, void* workspace, void* stream);

 private:
  void multiply(const CudaProduct& product, void* workspace, std::size_t bytes, void* stream);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scanrnn
