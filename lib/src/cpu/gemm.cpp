// SPDX-License-Identifier: Apache-2.0
// The only BLAS calls on the CPU.
#include "cpu/gemm.h"

#include <cblas.h>

#include <limits>

#include "scanrnn/dispatch/tiles.h"

#ifndef SCANRNN_BLAS_SYMBOL
#define SCANRNN_BLAS_SYMBOL(name) name
#endif

extern "C" void SCANRNN_BLAS_SYMBOL(openblas_set_num_threads)(int);

namespace scanrnn {
namespace {

// Threads are the team's business. The setting is the BLAS library's own global; with the build's
// default library nobody else in the process shares it.
const bool kOneThread = [] {
  SCANRNN_BLAS_SYMBOL(openblas_set_num_threads)(1);
  return true;
}();

constexpr CBLAS_TRANSPOSE order(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }

void product(scan::Index m, scan::Index n, scan::Index k, const Matrix<float>& a,
             const Matrix<float>& b, float beta, float* c, scan::Index ldc) {
  SCANRNN_BLAS_SYMBOL(cblas_sgemm)
  (CblasRowMajor, order(a.transposed), order(b.transposed), static_cast<blasint>(m),
   static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, a.data, static_cast<blasint>(a.stride),
   b.data, static_cast<blasint>(b.stride), beta, c, static_cast<blasint>(ldc));
}

void product(scan::Index m, scan::Index n, scan::Index k, const Matrix<double>& a,
             const Matrix<double>& b, double beta, double* c, scan::Index ldc) {
  SCANRNN_BLAS_SYMBOL(cblas_dgemm)
  (CblasRowMajor, order(a.transposed), order(b.transposed), static_cast<blasint>(m),
   static_cast<blasint>(n), static_cast<blasint>(k), 1.0, a.data, static_cast<blasint>(a.stride),
   b.data, static_cast<blasint>(b.stride), beta, c, static_cast<blasint>(ldc));
}

// y += B^T x for one row x: a matrix product of one row would pack B first.
void product_of_row(scan::Index n, scan::Index k, const float* x, const Matrix<float>& b,
                    float* y) {
  SCANRNN_BLAS_SYMBOL(cblas_sgemv)
  (CblasRowMajor, order(!b.transposed), static_cast<blasint>(b.transposed ? n : k),
   static_cast<blasint>(b.transposed ? k : n), 1.0f, b.data, static_cast<blasint>(b.stride), x, 1,
   1, y, 1);
}

void product_of_row(scan::Index n, scan::Index k, const double* x, const Matrix<double>& b,
                    double* y) {
  SCANRNN_BLAS_SYMBOL(cblas_dgemv)
  (CblasRowMajor, order(!b.transposed), static_cast<blasint>(b.transposed ? n : k),
   static_cast<blasint>(b.transposed ? k : n), 1.0, b.data, static_cast<blasint>(b.stride), x, 1, 1,
   y, 1);
}

// A part in whole groups of the width of a BLAS micro-kernel.
constexpr scan::Index kGroup = 16;
scan::Range part(const scan::Team& team, scan::Index count) {
  const scan::Range groups = team.share(dispatch::ceiling(count, kGroup));
  return {std::min(groups.begin * kGroup, count), std::min(groups.end * kGroup, count)};
}

// Whether columns are what the team splits. Each thread packs its part of one matrix and all of the
// other, an element of which costs about as much as so many multiply-adds.
bool by_columns(const scan::Team& team, scan::Index m, scan::Index n) {
  constexpr scan::Index kPack = 16;
  const auto most = [&](scan::Index count) {
    return std::min(count, dispatch::ceiling(count, kGroup * team.size) * kGroup);
  };
  const auto cost = [](scan::Index rows, scan::Index columns) {
    return rows * columns + kPack * (rows + columns);
  };
  return cost(m, most(n)) < cost(most(m), n);
}

// What BLAS counts in has 32 bits in the usual build.
constexpr scan::Index kMost = std::numeric_limits<blasint>::max();

// Sizes and spacings of any size: rows that lie too far apart are taken one by one, where a matrix
// has one its spacing is its length, and sums go on from piece to piece.
template <class T>
void product_of_any_size(scan::Index m, scan::Index n, scan::Index k, const Matrix<T>& a,
                         const Matrix<T>& b, T beta, T* c, scan::Index ldc) {
  const bool far_a = a.stride > kMost, far_b = b.stride > kMost, far_c = ldc > kMost;
  const scan::Index rows = far_c || (far_a && !a.transposed) ? 1 : std::min(m, kMost);
  const scan::Index columns = far_b && b.transposed ? 1 : std::min(n, kMost);
  const bool one_term = (far_a && a.transposed) || (far_b && !b.transposed);
  const scan::Index terms = one_term ? 1 : std::min(k, kMost);
  const auto at = [](const Matrix<T>& matrix, scan::Index row, scan::Index column, bool far,
                     scan::Index length) {
    return Matrix<T>{matrix.data + (matrix.transposed ? column * matrix.stride + row
                                                      : row * matrix.stride + column),
                     far ? length : matrix.stride, matrix.transposed};
  };
  for (scan::Index i = 0; i < m; i += rows) {
    for (scan::Index j = 0; j < n; j += columns) {
      for (scan::Index l = 0; l < k; l += terms) {
        product(std::min(rows, m - i), std::min(columns, n - j), std::min(terms, k - l),
                at(a, i, l, far_a, a.transposed ? rows : terms),
                at(b, l, j, far_b, b.transposed ? terms : columns), l == 0 ? beta : T(1),
                c + i * ldc + j, far_c ? columns : ldc);
      }
    }
  }
}

}  // namespace

template <class T>
void gemm(const scan::Team& team, scan::Index m, scan::Index n, scan::Index k, Matrix<T> a,
          Matrix<T> b, T* c, scan::Index c_stride, bool accumulate) {
  if (by_columns(team, m, n)) {
    const scan::Range mine = part(team, n);
    n = mine.end - mine.begin;
    b.data += mine.begin * (b.transposed ? b.stride : 1);
    c += mine.begin;
  } else {
    const scan::Range mine = part(team, m);
    m = mine.end - mine.begin;
    a.data += mine.begin * (a.transposed ? 1 : a.stride);
    c += mine.begin * c_stride;
  }
  if (m == 0 || n == 0 || !kOneThread) return;
  const scan::Index largest = std::max({m, n, k, a.stride, b.stride, c_stride});
  if (k > 0 && largest > kMost) {
    product_of_any_size(m, n, k, a, b, accumulate ? T(1) : T(0), c, c_stride);
  } else if (k == 0 || (m == 1 && !a.transposed)) {
    for (scan::Index i = 0; !accumulate && i < m; ++i) std::fill_n(c + i * c_stride, n, T(0));
    if (k > 0) product_of_row(n, k, a.data, b, c);
  } else {
    product(m, n, k, a, b, accumulate ? T(1) : T(0), c, c_stride);
  }
}

template void gemm<float>(const scan::Team&, scan::Index, scan::Index, scan::Index, Matrix<float>,
                          Matrix<float>, float*, scan::Index, bool);
template void gemm<double>(const scan::Team&, scan::Index, scan::Index, scan::Index, Matrix<double>,
                           Matrix<double>, double*, scan::Index, bool);

}  // namespace scanrnn
