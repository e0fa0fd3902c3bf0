// SPDX-License-Identifier: Apache-2.0
// What the kernels of a linear layer are called with, once for both processors: which row block is
// the highway's, what is walked in which direction, where the highway's cotangent goes.
#pragma once

#include "recurrence/linear.h"
#include "stack/layer_call.h"

namespace scanrnn {

// The highway's projection among the pre-activations, or their cotangents.
template <class T>
Strided<T> highway_block(const LayerCall& call, Strided<T> preactivations) {
  preactivations.data += (call.gates - 1) * call.hidden;
  return preactivations;
}

// Tensors of the same tokens, each in the order of the walk.
template <class T>
ForwardKernelArgs<T> forward_args(const LayerCall& call, const Strided<const T>& preactivations,
                                  const T* bias, const T* vectors, const Strided<const T>& x,
                                  const Strided<T>& y, const Strided<T>& states,
                                  const Masks& masks) {
  const bool projected = call.highway_projection();
  return {preactivations, bias, vectors, projected ? highway_block(call, preactivations) : x, y,
          states,         masks};
}

// The whole call, walked against the order of forward. dgates are the pre-activations' cotangents
// and dvectors the vectors' of each token, in dense memory; dskip, [T,B,H], takes those of the
// highway where the call carries_input().
template <class T>
BackwardKernelArgs<T> backward_args(const LayerCall& call, const T* bias, const T* vectors,
                                    T* dgates, T* dvectors, const TensorView& dskip) {
  const auto walk = [&](const TensorView& view) {
    return walked<T>(view, {0, call.steps, 0, call.batch}, !call.reverse);
  };
  const auto tokens = [&](void* data, Index columns) {
    return dense(data, call.steps, call.batch, columns, call.batch_major);
  };
  BackwardKernelArgs<T> args;
  args.preactivations = as_const(walk(tokens(call.preactivations, call.width())));
  args.masks = walked(call, {0, call.steps, 0, call.batch}, !call.reverse);
  args.bias = bias;
  args.vectors = vectors;
  args.states = as_const(walk(call.states ? tokens(call.states, call.hidden) : call.y));
  args.initial = {static_cast<const T*>(call.h0.data), call.h0.strides[0], 0};
  args.dy = as_const(walk(call.dy));
  args.dpreactivations = walk(tokens(dgates, call.width()));
  if (dvectors) args.dvectors = walk(tokens(dvectors, call.vector_values()));
  if (call.carries_input()) {
    args.skip = as_const(walk(call.highway()));
    args.dskip = walk(dskip);
  } else if (call.highway_projection()) {
    args.skip = highway_block(call, args.preactivations);
    args.dskip = highway_block(call, args.dpreactivations);
  }
  return args;
}

}  // namespace scanrnn
