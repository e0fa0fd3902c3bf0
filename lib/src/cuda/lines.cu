// SPDX-License-Identifier: Apache-2.0
// A dense layer's walk by whole lines in kernels that have many of its steps each.
#include <algorithm>

#include "cuda/kernels/lines.h"
#include "cuda/walk.cuh"
#include "stack/backend.h"

namespace scanrnn {
namespace {

// In launches of so many lines and steps, backward the last ones first.
template <class T>
void run_lines(const dispatch::Plan& plan, const LineStep& step, Index first, Index end,
               bool backward, Arena& arena, cudaStream_t stream) {
  using V = typename scan::Units<T>::V;
  const LayerCall& call = step.call;
  const auto& shape = backward ? plan.persistent_vjp : plan.persistent;
  const auto bytes =
      static_cast<std::size_t>(dispatch::exchange_bytes(plan.problem, shape, backward));
  void* const exchange = arena.take(bytes);
  if (arena.counting() || step.lines() == 0) return;
  CudaLineArgs<T, V> args(line_args<T, V>(step));
  args.hidden = args.head_units = call.hidden;
  args.weight = static_cast<const T*>(call.recurrent_weight.data);
  args.weight_stride = call.recurrent_weight.strides[0];
  if (step.moments) {
    SCANRNN_CUDA(
        cuda_line_moments<T>(call.cell, call.variant, args.walk, step.lines(), end, stream));
  }
  const auto& kernels = cuda_dense_kernels<T>(call.cell, call.variant);
  const auto run = backward ? kernels.lines_vjp : kernels.lines;
  for (Index line = 0; line < step.lines(); line += shape.lines) {
    args.batch = args.head_lines = std::min(shape.lines, step.lines() - line);
    args.first_line = line;
    dispatch::PersistentShape own = shape;
    own.groups = static_cast<int>(std::min<Index>(shape.groups, args.batch));
    for (Index done = 0; done < end - first; done += shape.steps) {
      const Index count = std::min(shape.steps, end - first - done);
      args.first = backward ? end - done - count : first + done;
      args.end = args.first + count;
      SCANRNN_CUDA(cudaMemsetAsync(exchange, 0xff, bytes, stream));
      SCANRNN_CUDA(run(args, own, exchange, stream));
    }
  }
}

}  // namespace

void cuda_walk_lines(const dispatch::Plan& plan, const LineStep& step, Index first, Index end,
                     bool backward, Arena& arena, cudaStream_t stream) {
  with_type(step.call.y.dtype, [&](auto type) {
    run_lines<decltype(type)>(plan, step, first, end, backward, arena, stream);
  });
}

}  // namespace scanrnn
