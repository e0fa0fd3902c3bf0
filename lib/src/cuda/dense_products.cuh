// SPDX-License-Identifier: Apache-2.0
// What is around the backward walk of a dense layer on CUDA: what a ragged batch needs before it,
// and after it, from the cotangents of the sums, those of the input and of the parameters.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/walk.cuh"
#include "recurrence/dense_layer.h"

namespace scanrnn {

template <class T>
struct DenseProducts : CudaWalk<T> {
  using Walk = CudaWalk<T>;
  using V = typename Walk::V;
  using Walk::call;
  using Walk::copy;
  using Walk::hidden;
  using Walk::stream;

  RecurrentRows recurrent = recurrent_rows(this->call);
  void* gemm_space = nullptr;
  // What the walk leaves for the products.
  T *dsums = nullptr, *dvectors = nullptr, *before = nullptr, *first = nullptr;
  V* parts = nullptr;

  Index kept() const { return call.kept_width(); }
  TensorView kept_rows(const void* data) const { return this->rows(data, kept()); }

  // Ragged: cotangents of steps that there are not, and the h before each token.
  void prepare_tokens() {
    const unsigned blocks = ragged::blocks_for_rows(this->tokens());
    const auto clear = [&](const TensorView& view) {
      ragged::clear_padding<<<blocks, pointwise::kThreads, 0, stream>>>(
          ragged::Cube<T>(view), Integers(call.ragged.lengths));
      SCANRNN_CUDA(cudaGetLastError());
    };
    if (call.ragged.lengths) clear(kept_rows(dsums));
    if (call.ragged.lengths && dvectors) clear(this->rows(dvectors, call.vector_values()));
    const Marks marks{call.tables.marks, call.steps, 1, call.reverse};
    ragged::keep_before<T><<<blocks, pointwise::kThreads, 0, stream>>>(
        marks, ragged::Cube<const T>(call.y),
        Strided<const T>{this->data(call.h0), call.h0.strides[0], 0},
        ragged::Cube<T>(this->rows(before, hidden())));
    SCANRNN_CUDA(cudaGetLastError());
  }

  // From the cotangents of the sums those of the input and of the parameters.
  void products_back() {
    const Index vector_values = call.vector_values();
    if (first) first_cotangents();
    if (call.dx && this->tokens() > 0) {
      this->input_cotangent(dsums, kept(), call.accumulate_dx, gemm_space);
    }
    if (!call.begins()) return;  // parts are to come
    if (call.dweight) this->weight_cotangent(dsums, kept(), gemm_space);
    if (call.dbias) this->sum_tokens(dsums, kept(), this->width(), parts, call.dbias.data);
    if (call.drecurrent_bias) {
      const auto [in_order, own] = recurrent;
      auto* out = static_cast<T*>(call.drecurrent_bias.data);
      this->sum_tokens(dsums, kept(), in_order, parts, out);
      if (own > 0) {
        this->sum_tokens(dsums + this->width(), kept(), own, parts, out + in_order);
      }
    }
    if (call.dvectors) {
      this->sum_tokens(dvectors, vector_values, vector_values, parts, call.dvectors.data);
    }
    if (call.drecurrent_weight) recurrent_cotangent();
  }

 private:
  // The cotangents of what is fed to the first steps, and of its weight.
  void first_cotangents() {
    const Index lines = this->lines(), features = call.first_weight.sizes[1];
    if (call.dfirst_weight && (!call.first || lines == 0)) {
      this->clear(static_cast<T*>(call.dfirst_weight.data), call.dfirst_weight.strides[0],
                  features);
    }
    if (lines == 0) return;
    ragged::take_edges<T><<<ragged::blocks_for_rows(lines), pointwise::kThreads, 0, stream>>>(
        EdgeSteps(call, false), ragged::Cube<const T>(kept_rows(dsums)),
        Strided<T>{first, this->width(), 0}, this->width());
    SCANRNN_CUDA(cudaGetLastError());
    if (call.dfirst) {
      this->product(lines, features, this->width(), {first, this->width()},
                    {call.first_weight.data, call.first_weight.strides[0]}, call.dfirst.data,
                    call.dfirst.strides[0], false, nullptr, gemm_space);
    }
    if (call.dfirst_weight && call.first) {
      this->product(this->width(), features, lines, {first, this->width(), true},
                    {call.first.data, call.first.strides[0]}, call.dfirst_weight.data,
                    call.dfirst_weight.strides[0], false, nullptr, gemm_space);
    }
  }

  // dR = sum over tokens of d(R h)^T and the h before; the rows of R h as their sums lie. It may
  // clear dsums where there is no step before. A ragged batch has `before`, [tokens,H].
  void recurrent_cotangent() {
    auto* d = static_cast<T*>(call.drecurrent_weight.data);
    const Index stride = call.drecurrent_weight.strides[0];
    this->clear(d, stride, hidden());
    if (this->tokens() == 0) return;
    const auto [in_order, own] = recurrent;
    const auto add = [&, in_order = in_order, own = own](const TensorView& a, const TensorView& h) {
      for_pairs<const T, const T>(
          call, a, h, [&](const T* from, Index spacing, const T* with, Index along, Index count) {
            this->product(in_order, hidden(), count, {from, spacing, true}, {with, along}, d,
                          stride, true, nullptr, gemm_space);
            this->product(own, hidden(), count, {from + this->width(), spacing, true},
                          {with, along}, d + in_order * stride, stride, true, nullptr, gemm_space);
          });
    };
    if (before) return add(kept_rows(dsums), this->rows(before, hidden()));
    const RecurrentPairs pairs = recurrent_pairs(call, kept_rows(dsums));
    if (pairs.h_first) add(pairs.d_first, pairs.h_first);
    if (call.steps == 1) return;
    const bool adjacent = call.y.strides[1] == call.steps * call.y.strides[0];
    if (!call.batch_major || call.batch == 1 || !adjacent) {
      add(pairs.d_rest, pairs.h_rest);
      return;
    }
    // Lines that follow one another in memory are one long line, a single product, in which the
    // first step of each has nothing before it: a product for each line would round dR each time.
    copy(static_cast<const T*>(nullptr), Index{0}, static_cast<T*>(pairs.d_first.data),
         call.steps * kept(), kept());
    const auto long_line = [&](TensorView view) {
      view.sizes[0] = this->tokens() - 1;
      view.sizes[1] = 1;
      return view;
    };
    add(long_line(pairs.d_rest), long_line(pairs.h_rest));
  }
};

}  // namespace scanrnn
