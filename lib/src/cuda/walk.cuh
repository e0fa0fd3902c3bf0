// SPDX-License-Identifier: Apache-2.0
// A dense layer's walk over time as launches that follow one another, each from where the last one
// ended: of one step, or of as many as a persistent kernel has room for.
#pragma once

#include "cuda/kernels/dense.h"
#include "cuda/run.cuh"

namespace scanrnn {

// Copies a [B,H] tensor, or zeros where it is absent.
template <class From, class To>
__global__ void convert(const From* from, Index from_line, To* to, Index to_line, Index batch,
                        Index hidden) {
  for (Index i = pointwise::first_item(); i < batch * hidden; i += pointwise::item_stride()) {
    const From* line = from + i / hidden * from_line;
    to[i / hidden * to_line + i % hidden] = from ? static_cast<To>(line[i % hidden]) : To(0.0f);
  }
}

template <class T>
struct CudaWalk : CudaRun<T> {
  using Run = CudaRun<T>;
  using V = typename Run::V;
  using Args = CudaDenseArgs<T, V>;
  using Run::call;
  using Run::plan;
  using Run::stream;
  V *h_carry = nullptr, *c_carry = nullptr;  // [B,H], what launches carry from one to the next

  Index hidden() const { return call.hidden; }
  void take_carries() {
    h_carry = this->template take<V>(call.batch * hidden());
    c_carry = call.pair() ? this->template take<V>(call.batch * hidden()) : nullptr;
  }

  template <class From, class To>
  void copy(const From* from, Index from_line, To* to, Index to_line, Index columns) {
    convert<<<pointwise::blocks_for(call.batch * columns), pointwise::kThreads, 0, stream>>>(
        from, from_line, to, to_line, call.batch, columns);
    SCANRNN_CUDA(cudaGetLastError());
  }
  // A walk of no steps: the state passes through.
  void copy_state(const TensorView& from, const TensorView& to) {
    if (!to) return;
    copy(this->data(from), from.strides[0], static_cast<T*>(to.data), to.strides[0], hidden());
  }
  WalkEnd<const T, V> from(const TensorView& state) const {
    return {nullptr, this->data(state), state.strides[0]};
  }
  WalkEnd<T, V> to(const TensorView& state) const {
    return {nullptr, static_cast<T*>(state.data), state.strides[0]};
  }

  // Walks lines and steps in launches of so many each, every one from where the last ended.
  template <class Launch>
  void walk(const Args& args, Index lines, Index steps, bool backward, Launch&& launch) {
    for (Index line = 0; line < args.batch; line += lines) {
      for (Index step = 0; step < args.steps; step += steps) {
        Args part = args;
        part.batch = std::min(args.batch - line, lines);
        part.steps = std::min(args.steps - step, steps);
        const bool first = step == 0, last = step + part.steps == args.steps;
        const auto carry = [&](V* values) { return values ? values + line * hidden() : nullptr; };
        part.h_from = args.h_from.at_line(line);
        part.c_from = args.c_from.at_line(line);
        part.h_to = args.h_to.at_line(line);
        part.c_to = args.c_to.at_line(line);
        if (!first) {
          part.h_from = {carry(h_carry), nullptr, hidden()};
          part.c_from = {carry(c_carry), nullptr, hidden()};
        }
        if (!last) {
          part.h_to = {carry(h_carry), nullptr, hidden()};
          part.c_to = {carry(c_carry), nullptr, hidden()};
        }
        const auto move = [&](auto& s) {
          if (s.data) s.data += line * s.line + step * s.step;
        };
        move(part.sums), move(part.kept), move(part.y), move(part.cells), move(part.x);
        move(part.before), move(part.dy);
        // The first step in time is the walk's first one, or backward its last.
        if (backward ? last : first) {
          part.initial = args.initial.at_line(line);
        } else {
          part.initial = {part.before.at(backward ? part.steps - 1 : 0), part.before.line, 0};
        }
        launch(part);
      }
    }
  }
  template <class Kernel>
  void walk_persistent(const Args& args, const dispatch::PersistentShape& shape, bool backward,
                       void* exchange, Kernel&& kernel) {
    const auto bytes = dispatch::exchange_bytes(plan.problem, shape, backward);
    walk(args, shape.lines, shape.steps, backward, [&](const Args& part) {
      dispatch::PersistentShape own = shape;
      own.groups = static_cast<int>(std::min<Index>(shape.groups, part.batch));
      if (bytes > 0) {
        SCANRNN_CUDA(cudaMemsetAsync(exchange, 0xff, static_cast<std::size_t>(bytes), stream));
      }
      SCANRNN_CUDA(kernel(part, own, exchange, stream));
    });
  }
};

}  // namespace scanrnn
