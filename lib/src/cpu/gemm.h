// SPDX-License-Identifier: Apache-2.0
// Matrix products on the CPU by a BLAS that runs in the calling thread; a team splits the output.
#pragma once

#include "scanrnn/scan/cpu.h"

namespace scanrnn {

// A row-major matrix, or its transpose.
template <class T>
struct Matrix {
  const T* data;
  scan::Index stride;  // between rows as they lie in memory, at least their length
  bool transposed = false;
};

// This thread's part of C[m,n] = A[m,k] B[k,n] + (accumulate ? C : 0). All threads of the team call
// it. Parts are rows or columns, by m, n and the team alone: products that add to one C need no
// barrier.
template <class T>
void gemm(const scan::Team& team, scan::Index m, scan::Index n, scan::Index k, Matrix<T> a,
          Matrix<T> b, T* c, scan::Index c_stride, bool accumulate);

}  // namespace scanrnn
