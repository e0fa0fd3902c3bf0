// SPDX-License-Identifier: Apache-2.0
#include "cuda/padded.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cuda/run.cuh"
#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn {
namespace {

using scan::cuda::kVectorBytes;

// A matrix whose rows lie so far apart.
template <class T>
struct Rows {
  T* data;
  Index stride, count, columns;
};

// Copies what both have, puts zeros where `from` has nothing, and adds to what is there where
// `adds`. A thread reads all that it copies of a column before it writes the first.
constexpr int kColumns = 64, kRowsAtOnce = 4, kAhead = 8;  // of a block, of a block, of a thread
template <class From, class To>
__global__ void __launch_bounds__(kColumns* kRowsAtOnce)
    copy_rows(const Rows<const From> from, const Rows<To> to, const bool adds) {
  const Index column = Index{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  if (column >= to.columns) return;
  const Index first = Index{blockIdx.y} * kAhead * kRowsAtOnce + threadIdx.x / kColumns;
  const Index apart = Index{gridDim.y} * kAhead * kRowsAtOnce;
  for (Index row = first; row < to.count; row += apart) {
    float values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Index at = row + i * kRowsAtOnce;
      const bool there = at < from.count && column < from.columns;
      values[i] = there ? static_cast<float>(from.data[at * from.stride + column]) : 0.0f;
      if (adds && at < to.count) values[i] += static_cast<float>(to.data[at * to.stride + column]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Index at = row + i * kRowsAtOnce;
      if (at < to.count) to.data[at * to.stride + column] = static_cast<To>(values[i]);
    }
  }
}
template <class From, class To>
void copy(const Rows<const From>& from, const Rows<To>& to, bool adds, cudaStream_t stream) {
  if (to.count == 0) return;
  constexpr Index kOfBlock = kAhead * kRowsAtOnce;
  const Index blocks = (to.count + kOfBlock - 1) / kOfBlock;
  const dim3 grid(static_cast<unsigned>((to.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>(std::min<Index>(blocks, 1 << 15)));
  copy_rows<From, To><<<grid, kColumns * kRowsAtOnce, 0, stream>>>(from, to, adds);
  SCANRNN_CUDA(cudaGetLastError());
}

Index whole(Index count, Index piece) { return (count + piece - 1) / piece * piece; }

// An H200's multiply-adds in a microsecond, of matrices as they are and of whole vectors; bytes
// that copies read and write in one; and how many a launch takes.
struct Speed {
  double plain, whole;
};
constexpr Speed kHalves{80e6, 300e6}, kTf32{48e6, 130e6};
constexpr double kCopied = 3e6, kLaunch = 2.5, kSurelyFaster = 0.85;

constexpr Index kMostBetween = 4 * Index{Arena::kAlignment};  // bytes between copies in memory

// How large the copies are; 0 rows: as many as a part has.
struct CopySizes {
  Index a_columns, b_columns, b_rows, c_rows;

  CopySizes(const CudaProduct& p, const PaddedProduct& padded)
      : a_columns(padded.along_k ? padded.m : padded.k),
        b_columns(p.b.transposed ? padded.k : padded.n),
        b_rows(padded.along_k   ? 0
               : p.b.transposed ? padded.n
                                : padded.k),
        c_rows(padded.along_k ? padded.m : 0) {}
  // How many of the parts' rows so many bytes are enough for.
  Index rows(const CudaProduct& p, const PaddedProduct& padded, Index bytes) const {
    const auto size = static_cast<Index>(size_of(p.dtype));
    const Index a = padded.a ? a_columns * size : 0, b = padded.b ? b_columns * size : 0;
    const Index c = padded.c ? padded.n * (padded.sums ? Index{sizeof(float)} : size) : 0;
    const Index each = a + (b_rows > 0 ? 0 : b) + (c_rows > 0 ? 0 : c);
    const Index bias = padded.n * size,
                left = bytes - kMostBetween - bias - b_rows * b - c_rows * c;
    const Index all = padded.along_k ? p.k : p.m;
    return left < 0 ? 0 : each > 0 ? std::min(all, left / each) : all;
  }
};

template <class T>
struct Run {
  const CudaProduct& p;
  const PaddedProduct& padded;
  cudaStream_t stream;

  const T* a(Index row) const { return static_cast<const T*>(p.a.data) + row * p.a.stride; }
  const T* b(Index row) const { return static_cast<const T*>(p.b.data) + row * p.b.stride; }
  T* c(Index row) const { return static_cast<T*>(p.c) + row * p.c_stride; }

  // Copies so many rows with zeros behind them.
  const T* pad(const T* from, Index stride, Index rows, Index columns, T* to, Index to_rows,
               Index to_columns) const {
    copy<T, T>({from, stride, rows, columns}, {to, to_columns, to_rows, to_columns}, false, stream);
    return to;
  }
  template <class From>
  void bring_back(const From* from, T* to, Index rows) const {
    copy<From, T>({from, padded.n, rows, p.n}, {to, p.c_stride, rows, p.n}, p.accumulate, stream);
  }

  template <class C>
  void parts(void* memory, const std::function<void(const CudaProduct&)>& multiply) const {
    const bool along_k = padded.along_k;
    const Index count = along_k ? p.k : p.m, most = padded.rows;
    const CopySizes sizes(p, padded);
    Arena copies(memory);
    const auto rows_or = [most](Index rows) { return rows > 0 ? rows : most; };
    T* const a_copy = padded.a ? take<T>(copies, most * sizes.a_columns) : nullptr;
    T* const b_copy = padded.b ? take<T>(copies, rows_or(sizes.b_rows) * sizes.b_columns) : nullptr;
    C* const c_copy = padded.c ? take<C>(copies, rows_or(sizes.c_rows) * padded.n) : nullptr;
    CudaProduct part = p;
    part.n = padded.n;
    if (p.bias && padded.n != p.n) {
      part.bias =
          pad(static_cast<const T*>(p.bias), p.n, 1, p.n, take<T>(copies, padded.n), 1, padded.n);
    }
    const auto of_b = [&](Index first, Index rows, Index to_rows) {
      if (!padded.b) return Factor{b(first), p.b.stride, p.b.transposed};
      const Index columns = p.b.transposed ? p.k : p.n;
      const T* const copied =
          pad(b(first), p.b.stride, rows, columns, b_copy, to_rows, sizes.b_columns);
      return Factor{copied, sizes.b_columns, p.b.transposed};
    };
    if (!along_k) part.b = of_b(0, p.b.transposed ? p.n : p.k, sizes.b_rows);
    for (Index first = 0; first < count; first += most) {
      const Index rows = std::min(most, count - first);
      part.m = along_k ? padded.m : rows;
      part.k = along_k ? rows : padded.k;
      part.a = {a(first), p.a.stride, p.a.transposed};
      if (padded.a) {
        const Index columns = along_k ? p.m : p.k;
        part.a = {pad(a(first), p.a.stride, rows, columns, a_copy, rows, sizes.a_columns),
                  sizes.a_columns, p.a.transposed};
      }
      if (along_k) part.b = of_b(first, rows, rows);
      part.c = padded.c ? static_cast<void*>(c_copy) : c(along_k ? 0 : first);
      part.c_stride = padded.c ? padded.n : p.c_stride;
      part.wide = !std::is_same<C, T>::value;
      part.accumulate = (along_k && first > 0) || (!padded.c && p.accumulate);
      multiply(part);
      if (padded.c && !along_k) bring_back(c_copy, c(first), rows);
    }
    if (padded.c && along_k) bring_back(c_copy, c(0), p.m);
  }
};

}  // namespace

PaddedProduct padded_product(const CudaProduct& p, std::size_t bytes) {
  PaddedProduct out;
  const auto size = static_cast<Index>(size_of(p.dtype)), piece = kVectorBytes / size;
  const auto is_whole = [&](const void* data, Index stride) {
    return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0 && stride % piece == 0;
  };
  if (p.m == 0 || p.n == 0 || p.k == 0) return out;
  // Nobody asks for these.
  if (p.wide || (p.a.transposed && (p.b.transposed || p.bias)) || (p.bias && p.accumulate)) {
    return out;
  }
  out.along_k = p.a.transposed;
  out.m = out.along_k ? whole(p.m, piece) : p.m;
  out.n = whole(p.n, piece);
  out.k = out.along_k ? p.k : whole(p.k, piece);
  out.a = !is_whole(p.a.data, p.a.stride) || out.m != p.m || out.k != p.k;
  out.b = !is_whole(p.b.data, p.b.stride) || out.n != p.n || out.k != p.k;
  out.c = !is_whole(p.c, p.c_stride) || out.n != p.n || out.m != p.m;
  if (!out.a && !out.b && !out.c) return out;

  const Index count = out.along_k ? p.k : p.m;
  const auto most_rows = [&] { return CopySizes(p, out).rows(p, out, static_cast<Index>(bytes)); };
  out.sums = out.c && p.accumulate;
  Index most = most_rows();
  if (out.along_k && most < count) {  // sums of 16 bits would be rounded part by part
    out.c = out.sums = true;
    most = most_rows();
  }
  if (most == 0) return out;
  const Index parts = (count + most - 1) / most;
  out.rows = std::min(most, whole((count + parts - 1) / parts, piece));
  return out;
}

bool is_faster(const PaddedProduct& padded, const CudaProduct& p, bool tf32) {
  const bool halves = p.dtype == Dtype::bfloat16 || p.dtype == Dtype::float16;
  if (padded.rows == 0 || !(halves || tf32)) return false;
  const bool along_k = padded.along_k;
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n),
             k = static_cast<double>(p.k), work = m * n * k;
  const auto parts = std::ceil((along_k ? k : m) / static_cast<double>(padded.rows));
  const double copied = (padded.a ? m * k : 0) + (padded.b ? n * k : 0) + (padded.c ? m * n : 0);
  const int each = 1 + padded.a + (along_k ? padded.b : padded.c);
  const int others = along_k ? padded.c : padded.b;
  const double plain = work / (tf32 ? kTf32.plain : kHalves.plain);
  const double whole = work / (tf32 ? kTf32.whole : kHalves.whole) +
                       2 * copied * static_cast<double>(size_of(p.dtype)) / kCopied +
                       kLaunch * (parts * each + others - 1);
  return whole < kSurelyFaster * plain;
}

void run_padded(const CudaProduct& product, const PaddedProduct& padded, void* memory,
                cudaStream_t stream, const std::function<void(const CudaProduct&)>& multiply) {
  with_type(product.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same<T, double>::value) {
      const Run<T> run{product, padded, stream};
      padded.sums ? run.template parts<float>(memory, multiply)
                  : run.template parts<T>(memory, multiply);
    }
  });
}

}  // namespace scanrnn
