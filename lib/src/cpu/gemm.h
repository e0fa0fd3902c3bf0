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

enum class SplitBy : std::uint8_t { rows, columns };

// This thread's part of C[m,n] = A[m,k] B[k,n] + (accumulate ? C : 0). All threads of the team call
// it.
template <class T>
void gemm(const scan::Team& team, SplitBy split, scan::Index m, scan::Index n, scan::Index k,
          Matrix<T> a, Matrix<T> b, T* c, scan::Index c_stride, bool accumulate);

}  // namespace scanrnn
