// SPDX-License-Identifier: Apache-2.0
// One step of a dense cell: what follows the products with R, forward and back.
#pragma once

#include "cuda/kernels/dense.h"

namespace scanrnn::step {

inline constexpr int kThreads = 128;

// Whether the step of a line is cut from the one before it.
template <class T, class V>
__device__ __forceinline__ bool is_cut(const CudaDenseArgs<T, V>& a, Index line) {
  const Index at = a.first_step;
  return a.lines && a.may_reset(at, a.lines[line].count) && *a.resets_at(line, at).data;
}

// One unit of one line, whose state may be in a pool.
template <class C, class T, class V, bool kPooled = false>
struct Item {
  using Args = CudaDenseArgs<T, V>;
  using Memory = scan::Units<T>;
  Index line, unit;
  Index state;  // the row of it; -1: none, the line is skipped
  DenseSums<C, V> sums;
  DenseState<C, V> before;
  bool cut = false;  // from the step before: no product with R adds anything

  // All but what the step's own products add.
  __device__ __forceinline__ void load(const Args& a) {
    sums = DenseSums<C, V>::template of_biases<Memory>(a.bias, a.recurrent_bias, unit, a.hidden);
    const T* projected = a.walked(a.sums, line).data;
    sums.add_input([&](int i) {
      return projected ? Memory::read(projected + i * a.hidden, unit, a.hidden) : V(0);
    });
    state = kPooled ? a.state_of(line) : line;
    before = DenseState<C, V>::of([&](int i) {
      return kPooled && state < 0 ? V(C::fresh(i)) : a.from[i].read(state, unit, V(C::fresh(i)));
    });
    cut = is_cut(a, line);
    if (cut) before = fresh_state<C, V>();
  }
  __device__ __forceinline__ void walk(const Args& a) const {
    if (kPooled && state < 0) {
      return Memory::write(a.walked(a.y, line).data, unit, a.hidden, V(0));
    }
    const auto after = dense_step<C, Memory>(
        sums, read_vectors<C, Memory>(a.vectors, unit, a.hidden), before, a.draws(line, 0), unit);
#pragma unroll
    for (int i = 0; i < C::kStates; ++i) a.to[i].write(state, unit, after.at(i));
    const DenseSink<C, Memory> sink{a.walked(a.y, line).data, a.walked(a.kept, line).data,
                                    a.walked(a.cells, line).data, a.hidden};
    sink.store(unit, sums, after);
  }
};

// The products with R are done; a thread does the rest of an item.
template <class C, class T, class V>
__global__ void __launch_bounds__(kThreads) forward(const __grid_constant__ CudaDenseArgs<T, V> a) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.batch * a.hidden) return;
  Item<C, T, V> item;
  item.line = i / a.hidden;
  item.unit = i % a.hidden;
  if (a.steps_of(item.line) == 0) return;
  item.load(a);
  const V* products =
      a.products && !item.cut ? a.products + item.line * C::kGates * a.hidden + item.unit : nullptr;
  item.sums.add_recurrent([&](int i) { return products ? products[i * a.hidden] : V(0); });
  item.walk(a);
}

template <class C, class T, class V>
__global__ void __launch_bounds__(kThreads)
    backward(const __grid_constant__ CudaDenseArgs<T, V> a) {
  const Index item = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= a.batch * a.hidden) return;
  const Index line = item / a.hidden, unit = item % a.hidden;
  using Memory = scan::Units<T>;
  T* fed = a.fed + line * C::kGates * a.hidden + unit;
  if (a.steps_of(line) == 0) {
#pragma unroll
    for (int i = 0; i < C::kGates; ++i) fed[i * a.hidden] = static_cast<T>(0.0f);
    return;
  }
  const auto sums =
      DenseSums<C, V>::template read<Memory>(a.walked(a.sums, line).data, unit, a.hidden);
  const bool cut = is_cut(a, line);
  const T* from = a.initial.at_line(line).data;
  if (a.lines) {
    from = a.ends(line) ? a.initial.at_line(a.lines[line].sequence).data
                        : a.walked(a.before, line).data;
  }
  const auto before = state_before<C, V>(
      from && !cut, [&](int i) { return static_cast<V>(from[i * a.hidden + unit]); });
  auto after = DenseState<C, V>::of([&](int i) { return a.from[i].read(line, unit); });
  if (a.dy.data) after.h += static_cast<V>(a.walked(a.dy, line).data[unit]);
  const auto d = dense_step_vjp<C, Memory>(sums, read_vectors<C, Memory>(a.vectors, unit, a.hidden),
                                           before, after, a.draws(line, 0), unit);
  // To that of h the product with R adds the rest.
#pragma unroll
  for (int i = 0; i < C::kStates; ++i) a.to[i].write(line, unit, cut ? V(0) : d.before.at(i));
  d.sums.template write<Memory>(a.walked(a.kept, line).data, unit, a.hidden);
  if constexpr (C::kVectors > 0) {
    write_vectors<C, Memory>(d.vectors, a.walked(a.dvectors, line).data, unit, a.hidden);
  }
#pragma unroll
  for (int i = 0; i < C::kGates; ++i) {
    fed[i * a.hidden] = static_cast<T>(cut ? V(0) : d.sums.recurrent(i));
  }
}

template <auto kernel, class T, class V = typename CudaDenseKernels<T>::V>
cudaError_t launch(const CudaDenseArgs<T, V>& args, cudaStream_t stream) {
  const Index blocks = (args.batch * args.hidden + kThreads - 1) / kThreads;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace scanrnn::step
