// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of one dense cell and one dtype: SCANRNN_CUDA_CELL and SCANRNN_CUDA_TYPE. The
// build compiles this file once for each pair, with the header of every cell before it.
#include "cuda_dense.h"
#include "cuda_persistent.cuh"
#include "scanrnn/scan/cuda_common.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;
using C = cell::SCANRNN_CUDA_CELL;
using V = typename CudaDenseKernels<T>::V;
using Args = CudaDenseArgs<T, V>;
constexpr int kThreads = 128;

// One unit of one line of a step: products with R are done, a thread does the rest.
template <class F>
__device__ __forceinline__ void for_item(const Args& a, F&& use) {
  const Index item = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (item < a.batch * a.hidden) use(item / a.hidden, item % a.hidden, item);
}

__global__ void __launch_bounds__(kThreads) step_kernel(const Args a, const Index t) {
  for_item(a, [&](Index line, Index unit, Index item) {
    const T* projected = a.sums.at_line(line).at(t) + unit;
    const V* products = a.products + line * C::kGates * a.hidden + unit;
    V sums[C::kPreactivations];
    for (int i = 0; i < C::kPreactivations; ++i) {
      sums[i] = a.bias[i * a.hidden + unit];
      if (i < C::kGates) sums[i] += static_cast<V>(projected[i * a.hidden]);
    }
    for (int i = 0; i < C::kGates; ++i) {
      sums[cell::recurrent_sum<C>(i)] += products[i * a.hidden];
    }
    const auto gates = C::template gather<V>([&](int i) { return sums[i]; });
    const auto after = C::step(gates, {a.h[item], C::kPair ? a.c[item] : V(0)});
    a.h[item] = after.h;
    if (C::kPair) a.c[item] = after.c;
    a.fed[item] = static_cast<T>(after.h);
    a.y.at_line(line).at(t)[unit] = static_cast<T>(after.h);
    if (!a.kept.data) return;
    T* kept = a.kept.at_line(line).at(t) + unit;
    for (int i = 0; i < C::kPreactivations; ++i) kept[i * a.hidden] = static_cast<T>(sums[i]);
    if (C::kPair) a.cells.at_line(line).at(t)[unit] = static_cast<T>(after.c);
  });
}

__global__ void __launch_bounds__(kThreads) step_vjp_kernel(const Args a, const Index t) {
  for_item(a, [&](Index line, Index unit, Index item) {
    const T* kept = a.sums.at_line(line).at(t) + unit;
    const auto gates =
        C::template gather<V>([&](int i) { return static_cast<V>(kept[i * a.hidden]); });
    const Strided<const T>& from = t + 1 < a.steps ? a.before : a.initial;
    V before = V(0), dh = a.h[item];
    if (from.data) before = static_cast<V>(from.at_line(line).at(t + 1 < a.steps ? t : 0)[unit]);
    if (a.dy.data) dh += static_cast<V>(a.dy.at_line(line).at(t)[unit]);
    const auto d = C::step_vjp(gates, {C::kPair ? V(0) : before, C::kPair ? before : V(0)},
                               {dh, C::kPair ? a.c[item] : V(0)});
    a.h[item] = d.before.h;  // the product with R adds the rest
    if (C::kPair) a.c[item] = d.before.c;
    T* to = a.kept.at_line(line).at(t) + unit;
    V dsums[C::kPreactivations];
    C::template scatter<V>(d.gates, [&](int i, V value) {
      dsums[i] = value;
      to[i * a.hidden] = static_cast<T>(value);
    });
    T* fed = a.fed + line * C::kGates * a.hidden + unit;
    for (int i = 0; i < C::kGates; ++i) {
      fed[i * a.hidden] = static_cast<T>(dsums[cell::recurrent_sum<C>(i)]);
    }
  });
}

template <void (*kernel)(const Args, const Index)>
cudaError_t launch_step(const Args& args, Index t, cudaStream_t stream) {
  const Index blocks = (args.batch * args.hidden + kThreads - 1) / kThreads;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, t);
  return cudaGetLastError();
}

}  // namespace

template <>
const CudaDenseKernels<T>& cuda_dense_kernels<Cell::SCANRNN_CUDA_CELL, T>() {
  static constexpr CudaDenseKernels<T> kernels = {launch_step<step_kernel>,
                                                  launch_step<step_vjp_kernel>,
                                                  persistent::Launcher<C, T>::template run<false>,
                                                  persistent::Launcher<C, T>::template run<true>};
  return kernels;
}

}  // namespace scanrnn
