// SPDX-License-Identifier: Apache-2.0
// What is around the backward walk of a dense layer on CUDA: what a ragged batch needs before it,
// and after it, from the cotangents of the sums, those of the input and of the parameters.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/walk.cuh"
#include "recurrence/dense_layer.h"

namespace scanrnn {

// Where sums over tokens of the cotangents of a dense layer's sums go: those that W x adds to are
// the bias's, those that R h adds to the recurrent bias's. The rows of R that add to the sums in
// order come first, those with sums of their own behind all of W's.
template <class T>
struct ToBiases {
  T *bias, *recurrent;  // either may be absent
  Index width;          // of W's sums
  RecurrentRows rows;

  __device__ __forceinline__ void store(Index column, T sum) const {
    if (bias && column < width) bias[column] = sum;
    if (!recurrent) return;
    if (column < rows.in_order) recurrent[column] = sum;
    if (column >= width) recurrent[column - rows.own] = sum;
  }
};

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
    const auto clear = [&](const TensorView& view) {
      ragged::clear_padding<T>(view, Integers(call.ragged.lengths), stream);
    };
    if (call.ragged.lengths) clear(kept_rows(dsums));
    if (call.ragged.lengths && dvectors) clear(this->rows(dvectors, call.vector_values()));
    const Marks marks{call.tables.marks, call.steps, 1, call.reverse};
    const TensorView to = this->rows(before, hidden());
    ragged::with_pieces<T>({call.y, call.h0, to}, [&](auto piece, Index each) {
      using Piece = decltype(piece);
      const Strided<const Piece> initial{static_cast<const Piece*>(call.h0.data),
                                         call.h0.strides[0] / each, 0};
      ragged::keep_before<Piece>
          <<<ragged::blocks_for_rows(this->tokens()), pointwise::kThreads, 0, stream>>>(
              marks, ragged::Cube<const Piece>(call.y, each), initial,
              ragged::Cube<Piece>(to, each));
      SCANRNN_CUDA(cudaGetLastError());
    });
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
    if (call.dbias || call.drecurrent_bias) {
      const ToBiases<T> to{static_cast<T*>(call.dbias.data),
                           static_cast<T*>(call.drecurrent_bias.data), this->width(), recurrent};
      const Index columns = call.drecurrent_bias ? kept() : this->width();
      SCANRNN_CUDA(pointwise::sum_rows<T>(static_cast<const T*>(dsums), this->tokens(), kept(),
                                          columns, parts, to, stream));
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
  // clear dsums where there is no step before. A ragged batch has `before`, [tokens,H]: what a cut
  // keeps away may be infinite, so that zeros in dsums would not do.
  void recurrent_cotangent() {
    auto* d = static_cast<T*>(call.drecurrent_weight.data);
    const Index stride = call.drecurrent_weight.strides[0];
    bool begun = false;
    recurrent_sums([&](const T* from, Index spacing, const T* with, Index along, Index count) {
      const auto [in_order, own] = recurrent;
      this->product(in_order, hidden(), count, {from, spacing, true}, {with, along}, d, stride,
                    begun, nullptr, gemm_space);
      this->product(own, hidden(), count, {from + this->width(), spacing, true}, {with, along},
                    d + in_order * stride, stride, begun, nullptr, gemm_space);
      begun = true;
    });
    if (!begun) this->clear(d, stride, hidden());
  }
  // use(cotangents, their spacing, the h before, its spacing, tokens) for all that is summed.
  template <class F>
  void recurrent_sums(F&& use) {
    if (this->tokens() == 0) return;
    const auto add = [&](const TensorView& a, const TensorView& h) {
      for_pairs<const T, const T>(call, a, h, use);
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
