// SPDX-License-Identifier: Apache-2.0
// The small kernels around a layer on CUDA: bias rows, column sums, dropout, addition.
#pragma once

#include "recurrence/linear_backward.h"
#include "scanrnn/scan/cuda/memory.cuh"
#include "stack/layer_call.h"

namespace scanrnn::pointwise {

inline constexpr int kThreads = 256;

inline unsigned blocks_for(Index items) {
  const Index blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::clamp<Index>(blocks, 1, 1 << 16));
}
__device__ __forceinline__ Index first_item() { return Index{blockIdx.x} * kThreads + threadIdx.x; }
__device__ __forceinline__ Index item_stride() { return Index{gridDim.x} * kThreads; }

// A bias for every row block, zero for those that have none.
template <class T>
__global__ void spread(const T* bias, Index first, Index count, T* out, Index width) {
  for (Index i = first_item(); i < width; i += item_stride()) {
    const bool has = bias && i >= first && i < first + count;
    out[i] = has ? bias[i - first] : static_cast<T>(0.0f);
  }
}

// Between the weights of heads, [rows,units], and the block-diagonal matrix of all, [rows,hidden].
template <class T, bool kBack>
__global__ void spread_heads(T* heads, Index heads_line, T* whole, Index whole_line, Index rows,
                             Index units, Index hidden) {
  const Index width = kBack ? units : hidden;
  for (Index i = first_item(); i < rows * width; i += item_stride()) {
    const Index row = i / width, column = i % width, first = row % hidden / units * units;
    if constexpr (kBack) {
      heads[row * heads_line + column] = whole[row * whole_line + first + column];
    } else {
      const bool own = column >= first && column < first + units;
      whole[row * whole_line + column] =
          own ? heads[row * heads_line + column - first] : static_cast<T>(0.0f);
    }
  }
}

// Sums over rows in two launches and a fixed order: kParts parts of the rows, then the parts. A
// thread takes kPiece adjacent columns, and kAhead rows of them at a time, whose plain sum is one
// addend of the compensated one.
inline constexpr Index kParts = 256;
inline constexpr int kSumThreads = 64, kAhead = 8;

template <class T, class V, int kPiece>
__global__ void __launch_bounds__(kSumThreads)
    partial_sums(const T* values, Index count, Index stride, Index columns, V* parts) {
  struct alignas(kPiece * sizeof(T)) Piece {
    T of[kPiece];
  };
  scan::cuda::await_stream();
  const Index column = (Index{blockIdx.x} * kSumThreads + threadIdx.x) * kPiece;
  if (column >= columns) return;
  const Index begin = count * blockIdx.y / kParts, end = count * (blockIdx.y + 1) / kParts;
  Sum<V> sums[kPiece];
  const T* from = values + begin * stride + column;
  Index i = begin;
  for (; i + kAhead <= end; i += kAhead) {
    Piece ahead[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      ahead[k] = *reinterpret_cast<const Piece*>(from);
      from += stride;
    }
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      V sum = static_cast<V>(ahead[0].of[j]);
#pragma unroll
      for (int k = 1; k < kAhead; ++k) sum += static_cast<V>(ahead[k].of[j]);
      sums[j].add(sum);
    }
  }
  for (; i < end; ++i) {
    const Piece piece = *reinterpret_cast<const Piece*>(from);
    from += stride;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) sums[j].add(static_cast<V>(piece.of[j]));
  }
#pragma unroll
  for (int j = 0; j < kPiece; ++j) parts[blockIdx.y * columns + column + j] = sums[j].all.h;
}
// Where the sums of columns go.
template <class T>
struct ToColumns {
  T* sums;
  __device__ __forceinline__ void store(Index column, T sum) const { sums[column] = sum; }
};
// A warp takes kLanes columns and each warp of a block its share of the parts.
template <class To, class T, class V>
__global__ void __launch_bounds__(kThreads) total_sums(const V* parts, Index columns, To to) {
  constexpr int kLanes = scan::cuda::kLanes, kWarps = kThreads / kLanes;
  __shared__ V shares[kWarps][kLanes];
  scan::cuda::await_stream();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Index column = Index{blockIdx.x} * kLanes + lane;
  Sum<V> sum;
  if (column < columns) {
#pragma unroll 8
    for (int i = 0; i < kParts / kWarps; ++i) {
      sum.add(parts[(warp * (kParts / kWarps) + i) * columns + column]);
    }
  }
  shares[warp][lane] = sum.all.h;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int w = 1; w < kWarps; ++w) sum.add(shares[w][lane]);
  to.store(column, static_cast<T>(sum.all.h));
}
// The sums of `columns` columns of `count` rows that are `stride` apart, as values of type T.
// `parts` has kParts rows of `columns`.
template <class T, class From, class V, class To>
cudaError_t sum_rows(const From* values, Index count, Index stride, Index columns, V* parts,
                     const To& to, cudaStream_t stream) {
  constexpr int kPiece = 16 / sizeof(From);
  const auto run = [&](auto kernel, int piece) {
    const Index threads = (columns + piece - 1) / piece;
    const dim3 blocks(static_cast<unsigned>((threads + kSumThreads - 1) / kSumThreads), kParts);
    return scan::cuda::launch_early(kernel, blocks, kSumThreads, {}, stream, values, count, stride,
                                    columns, parts);
  };
  const bool pieces = reinterpret_cast<std::uintptr_t>(values) % 16 == 0 && stride % kPiece == 0 &&
                      columns % kPiece == 0;
  const auto status =
      pieces ? run(partial_sums<From, V, kPiece>, kPiece) : run(partial_sums<From, V, 1>, 1);
  if (status != cudaSuccess) return status;
  constexpr Index kLanes = scan::cuda::kLanes;
  return scan::cuda::launch_early(total_sums<To, T, V>,
                                  dim3(static_cast<unsigned>((columns + kLanes - 1) / kLanes)),
                                  kThreads, {}, stream, static_cast<const V*>(parts), columns, to);
}

// Calls use(t, b, j) for the elements of [T,B,.]; a warp takes a row.
template <class F>
__device__ __forceinline__ void for_elements(Index steps, Index batch, Index width, F&& use) {
  constexpr Index kLanes = scan::cuda::kLanes;
  for (Index row = first_item() / kLanes; row < steps * batch; row += item_stride() / kLanes) {
    const Index t = row / batch, b = row % batch;
    for (Index j = threadIdx.x % kLanes; j < width; j += kLanes) use(t, b, j);
  }
}

template <class T>
__global__ void add(Strided<const T> from, Strided<T> to, Index steps, Index batch, Index width) {
  using V = typename scan::Units<T>::V;
  for_elements(steps, batch, width, [&](Index t, Index b, Index j) {
    T& target = to.at_line(b).at(t)[j];
    target = static_cast<T>(static_cast<V>(target) + static_cast<V>(from.at_line(b).at(t)[j]));
  });
}

// Elements are numbered by step and line, `first_step` being that of step 0, or with sequences by
// these alone.
template <class T, class V>
__global__ void drop(Strided<const T> from, Strided<T> to, Index steps, Index batch, Index width,
                     std::uint64_t threshold, V scale, const Seed from_seed, bool adds,
                     bool each_step, Index first_step, const SequenceBounds sequences) {
  const std::uint64_t seed = from_seed.value();
  for_elements(steps, batch, width, [&](Index t, Index b, Index j) {
    const Index row = each_step          ? (first_step + t) * batch + b
                      : sequences.packed ? sequences.at(t)
                                         : b;
    const auto position = static_cast<std::uint64_t>(row * width + j);
    V value = static_cast<V>(from.at_line(b).at(t)[j]) * scale;
    if (threshold > 0 && mix(seed ^ mix(position)) < threshold) value = V(0);
    T& target = to.at_line(b).at(t)[j];
    target = static_cast<T>(adds ? value + static_cast<V>(target) : value);
  });
}

}  // namespace scanrnn::pointwise
