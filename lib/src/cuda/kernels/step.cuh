// SPDX-License-Identifier: Apache-2.0
// One step of a dense cell: what follows the products with R, forward and back.
#pragma once

#include "cuda/kernels/dense.h"

namespace scanrnn::step {

inline constexpr int kThreads = 128;

// One unit of one line.
template <class C, class T, class V>
struct Item {
  using Args = CudaDenseArgs<T, V>;
  Index line, unit;
  V sums[C::kPreactivations];
  cell::StepState<V> before;

  // All but what the step's own products add.
  __device__ __forceinline__ void load(const Args& a) {
    load_biases<C>(a, unit, sums);
    if (a.sums.data) {
      const T* projected = a.sums.at_line(line).data + unit;
#pragma unroll
      for (int i = 0; i < C::kGates; ++i) sums[i] += static_cast<V>(projected[i * a.hidden]);
    }
    before = {a.h_from.read(line, unit), C::kPair ? a.c_from.read(line, unit) : V(0)};
  }
  __device__ __forceinline__ void walk(const Args& a) const {
    const auto gates = C::template gather<V>([&](int i) { return sums[i]; });
    const auto after = C::step(gates, before);
    a.h_to.write(line, unit, after.h);
    if (C::kPair) a.c_to.write(line, unit, after.c);
    a.y.at_line(line).data[unit] = static_cast<T>(after.h);
    if (!a.kept.data) return;
    T* kept = a.kept.at_line(line).data + unit;
#pragma unroll
    for (int i = 0; i < C::kPreactivations; ++i) kept[i * a.hidden] = static_cast<T>(sums[i]);
    if (C::kPair) a.cells.at_line(line).data[unit] = static_cast<T>(after.c);
  }
};

// The products with R are done; a thread does the rest of an item.
template <class C, class T, class V>
__global__ void __launch_bounds__(kThreads) forward(const CudaDenseArgs<T, V> a) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.batch * a.hidden) return;
  Item<C, T, V> item;
  item.line = i / a.hidden;
  item.unit = i % a.hidden;
  item.load(a);
  if (a.products) {
    const V* products = a.products + item.line * C::kGates * a.hidden + item.unit;
#pragma unroll
    for (int gate = 0; gate < C::kGates; ++gate) {
      item.sums[cell::recurrent_sum<C>(gate)] += products[gate * a.hidden];
    }
  }
  item.walk(a);
}

template <class C, class T, class V>
__global__ void __launch_bounds__(kThreads) backward(const CudaDenseArgs<T, V> a) {
  const Index item = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= a.batch * a.hidden) return;
  const Index line = item / a.hidden, unit = item % a.hidden;
  const T* kept = a.sums.at_line(line).data + unit;
  const auto gates =
      C::template gather<V>([&](int i) { return static_cast<V>(kept[i * a.hidden]); });
  const T* initial = a.initial.at_line(line).data;
  const V before = initial ? static_cast<V>(initial[unit]) : V(0);
  V dh = a.h_from.read(line, unit);
  if (a.dy.data) dh += static_cast<V>(a.dy.at_line(line).data[unit]);
  const auto d = C::step_vjp(gates, {C::kPair ? V(0) : before, C::kPair ? before : V(0)},
                             {dh, C::kPair ? a.c_from.read(line, unit) : V(0)});
  a.h_to.write(line, unit, d.before.h);  // the product with R adds the rest
  if (C::kPair) a.c_to.write(line, unit, d.before.c);
  T* to = a.kept.at_line(line).data + unit;
  V dsums[C::kPreactivations];
  C::template scatter<V>(d.gates, [&](int i, V value) {
    dsums[i] = value;
    to[i * a.hidden] = static_cast<T>(value);
  });
  T* fed = a.fed + line * C::kGates * a.hidden + unit;
#pragma unroll
  for (int i = 0; i < C::kGates; ++i) {
    fed[i * a.hidden] = static_cast<T>(dsums[cell::recurrent_sum<C>(i)]);
  }
}

template <auto kernel, class T, class V = typename CudaDenseKernels<T>::V>
cudaError_t launch(const CudaDenseArgs<T, V>& args, cudaStream_t stream) {
  const Index blocks = (args.batch * args.hidden + kThreads - 1) / kThreads;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace scanrnn::step
