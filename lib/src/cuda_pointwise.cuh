// SPDX-License-Identifier: Apache-2.0
// The small kernels around a layer on CUDA: bias rows, column sums, dropout, addition.
#pragma once

#include "pass.h"
#include "scanrnn/scan/cuda_common.cuh"

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

// Sums over rows in two launches and a fixed order: kParts parts of the rows, then the parts.
inline constexpr Index kParts = 256;

template <class T, class V>
__global__ void partial_sums(const T* values, Index count, Index stride, Index columns, V* parts) {
  const Index column = first_item();
  if (column >= columns) return;
  const Index begin = count * blockIdx.y / kParts, end = count * (blockIdx.y + 1) / kParts;
  auto sum = scan::carried(V(0));
  for (Index i = begin; i < end; ++i) {
    sum =
        scan::apply(scan::Affine<V>{V(1), V(0), static_cast<V>(values[i * stride + column])}, sum);
  }
  parts[blockIdx.y * columns + column] = sum.h;
}
template <class T, class V>
__global__ void total_sums(const V* parts, Index columns, T* sums) {
  const Index column = first_item();
  if (column >= columns) return;
  auto sum = scan::carried(V(0));
  for (Index i = 0; i < kParts; ++i) {
    sum = scan::apply(scan::Affine<V>{V(1), V(0), parts[i * columns + column]}, sum);
  }
  sums[column] = static_cast<T>(sum.h);
}

// Calls use(t, b, j) for the elements of [T,B,.].
template <class F>
__device__ __forceinline__ void for_elements(Index steps, Index batch, Index width, F&& use) {
  for (Index i = first_item(); i < steps * batch * width; i += item_stride()) {
    use(i / width / batch, i / width % batch, i % width);
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

template <class T>
__global__ void drop(Strided<const T> from, Strided<T> to, Index steps, Index batch, Index width,
                     std::uint64_t threshold, double scale, std::uint64_t seed) {
  using V = typename scan::Units<T>::V;
  for_elements(steps, batch, width, [&](Index t, Index b, Index j) {
    const auto position = static_cast<std::uint64_t>((t * batch + b) * width + j);
    const V value = static_cast<V>(from.at_line(b).at(t)[j]) * static_cast<V>(scale);
    to.at_line(b).at(t)[j] = static_cast<T>(mix(seed ^ mix(position)) < threshold ? V(0) : value);
  });
}

}  // namespace scanrnn::pointwise
