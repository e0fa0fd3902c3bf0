// SPDX-License-Identifier: Apache-2.0
// What one layer's run on CUDA is made of, whatever its cell: memory, products and sums on a
// stream.
#pragma once

#include "cuda/gemm.h"
#include "cuda/pointwise.cuh"
#include "cuda/status.h"

namespace scanrnn {

template <class T>
struct CudaRun {
  using V = typename scan::Units<T>::V;

  const dispatch::Plan& plan;
  const LayerCall& call;
  Arena& arena;
  CudaGemm* gemm;
  cudaStream_t stream;

  Index tokens() const { return call.tokens(); }
  Index width() const { return call.width(); }
  Tile all() const { return {0, call.steps, 0, call.batch}; }
  template <class U = T>
  U* take(Index count) {
    return static_cast<U*>(arena.take(static_cast<std::size_t>(count) * sizeof(U)));
  }
  // Tokens that lie densely in the layer call's order.
  TensorView rows(const void* data, Index columns) const {
    TensorView out =
        dense(const_cast<void*>(data), call.steps, call.batch, columns, call.batch_major);
    out.dtype = call.y.dtype;
    return out;
  }
  static const T* data(const TensorView& view) { return static_cast<const T*>(view.data); }

  void product(Index m, Index n, Index k, Factor a, Factor b, void* c, Index c_stride,
               bool accumulate, const void* bias, void* workspace, bool wide = false) {
    CudaProduct p;
    p.dtype = call.y.dtype;
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a;
    p.b = b;
    p.c = c;
    p.c_stride = c_stride;
    p.accumulate = accumulate;
    p.bias = bias;
    p.wide = wide;
    gemm->run(p, workspace, stream);
  }

  // dx (+)= dgates W, from rows of dgates that are `stride` apart; of the call's part.
  void input_cotangent(const T* dgates, Index stride, bool accumulate, void* workspace) {
    const Tile part = part_of(call);
    dgates += first_token(call, part) * stride;
    for_runs<T>(call, part, call.dx, [&](T* dx, Index spacing, Index first, Index count) {
      product(count, call.input, width(), {dgates + first * stride, stride},
              {call.weight.data, call.weight.strides[0]}, dx, spacing, accumulate, nullptr,
              workspace);
    });
  }
  // dweight = dgates^T x
  void weight_cotangent(const T* dgates, Index stride, void* workspace) {
    auto* dweight = static_cast<T*>(call.dweight.data);
    const Index line = call.dweight.strides[0];
    if (tokens() == 0) return clear(dweight, line, call.input);
    for_runs<T>(call, all(), call.x, [&](const T* x, Index spacing, Index first, Index count) {
      product(width(), call.input, count, {dgates + first * stride, stride, true}, {x, spacing},
              dweight, line, first > 0, nullptr, workspace);
    });
  }
  // Zeros to the rows of a weight's cotangent.
  void clear(T* dweight, Index stride, Index columns) {
    SCANRNN_CUDA(cudaMemset2DAsync(dweight, static_cast<std::size_t>(stride) * sizeof(T), 0,
                                   static_cast<std::size_t>(columns) * sizeof(T),
                                   static_cast<std::size_t>(width()), stream));
  }

  // out = sums over all tokens of `columns` columns of rows that are `stride` apart.
  void sum_tokens(const T* values, Index stride, Index columns, V* parts, void* out) {
    sum(values, tokens(), stride, columns, parts, out);
  }
  template <class From>
  void sum(const From* values, Index count, Index stride, Index columns, V* parts, void* out) {
    const pointwise::ToColumns<T> to{static_cast<T*>(out)};
    SCANRNN_CUDA(pointwise::sum_rows<T>(values, count, stride, columns, parts, to, stream));
  }
};

// Calls use(T()) with the type of `dtype`, one that layers take.
template <class F>
void with_type(Dtype dtype, F&& use) {
  switch (dtype) {
    case Dtype::float64:
      return use(double());
    case Dtype::float32:
      return use(float());
    case Dtype::bfloat16:
      return use(__nv_bfloat16());
    case Dtype::float16:
      return use(__half());
    default:
      break;
  }
}

}  // namespace scanrnn
