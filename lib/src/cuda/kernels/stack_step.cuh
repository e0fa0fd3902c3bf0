// SPDX-License-Identifier: Apache-2.0
// A step of the layers of a stack in one launch, for a few lines. All blocks are resident and meet
// at the grid's barrier between a layer and the next. A block has the same units of every layer.
// Before it waits for the others it makes the products with R, whose h_0 is there already, and asks
// for its rows of W; and it sends for those of the layer behind it, so that memory is never idle.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <utility>

#include "cuda/kernels/fused_step.cuh"

namespace scanrnn::step {

// The row blocks of a weight, of a block's units from this one on, to the second level cache.
template <class C, int kUnitsOfBlock, class T>
__device__ __forceinline__ void send_for(const T* weight, Index stride, Index width, Index hidden,
                                         Index first_unit) {
  constexpr int kLine = 128 / sizeof(T), kLanes = scan::cuda::kLanes;  // a line of the cache
  const int warps = blockDim.x / kLanes;
  for (int row = threadIdx.x / kLanes; row < C::kGates * kUnitsOfBlock; row += warps) {
    const Index unit = first_unit + row % kUnitsOfBlock;
    if (unit >= hidden) continue;
    const T* from = weight + (row / kUnitsOfBlock * hidden + unit) * stride;
    for (Index i = threadIdx.x % kLanes * kLine; i < width; i += kLanes * kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
    }
  }
}

// The units and lines of the layers as blocks share them, in pieces.
template <class C, class Step>
struct StackPieces {
  using Args = typename Step::Args;
  Index groups, count;

  __device__ __forceinline__ explicit StackPieces(const Args& a)
      : groups((a.batch + Step::kBlockLines - 1) / Step::kBlockLines),
        count((a.hidden + Step::kBlockUnits - 1) / Step::kBlockUnits * groups) {}
  __device__ __forceinline__ Index first_unit(Index piece) const {
    return piece / groups * Step::kBlockUnits;
  }
  __device__ __forceinline__ Index first_line(Index piece) const {
    return piece % groups * Step::kBlockLines;
  }
  // The weights of a block's first piece.
  __device__ __forceinline__ void send_for_layer(const Args& a) const {
    const Index unit = first_unit(blockIdx.x);
    constexpr int kUnitsOfBlock = Step::kBlockUnits;
    if (a.initial.data) {
      send_for<C, kUnitsOfBlock>(a.weight, a.weight_stride, a.hidden, a.hidden, unit);
    }
    send_for<C, kUnitsOfBlock>(a.input_weight, a.input_weight_stride, a.input, a.hidden, unit);
  }
  // The new h of a layer in the place of the old one, which no block reads any more.
  template <class T>
  __device__ __forceinline__ void replace_state(const Args& a, const Strided<T>& replaced) const {
    if (!replaced.data) return;
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
      const Place own = Step::place(a, first_unit(i), first_line(i));
      const Index state = own.live ? a.state_of(own.line) : -1;
      if (state < 0) continue;
      replaced.at_line(state).data[own.unit] = a.y.at_line(own.line).data[own.unit];
    }
  }
};

template <class C, class Step>
__global__ void __launch_bounds__(Step::kThreads, 1)
    stack(const __grid_constant__ typename Step::Stack s) {
  namespace groups = cooperative_groups;
  __shared__ typename Step::Shared shared;
  const groups::grid_group grid = groups::this_grid();
  groups::grid_group::arrival_token arrival{};
  const StackPieces<C, Step> pieces(s.layer[0]);
  for (int l = 0; l < s.layers; ++l) {
    const typename Step::Args& a = s.layer[l];
    for (Index i = blockIdx.x; i < pieces.count; i += gridDim.x) {
      Step step(a, pieces.first_unit(i), pieces.first_line(i));
      step.multiply_recurrent(a, shared);
      typename Step::Asked asked;
      step.ask_input(a, asked);
      if (i == blockIdx.x) {
        if (l + 1 < s.layers) pieces.send_for_layer(s.layer[l + 1]);
        if (l > 0) {
          grid.barrier_wait(std::move(arrival));
          pieces.replace_state(s.layer[l - 1], s.replaced[l - 1]);
        }
      }
      step.multiply_input(a, asked, shared);
      step.finish(a, shared);
      __syncthreads();  // before the next piece's sums take the place of these
    }
    if (l + 1 < s.layers || s.replaces) arrival = grid.barrier_arrive();
  }
  if (!s.replaces) return;
  grid.barrier_wait(std::move(arrival));
  pieces.replace_state(s.layer[s.layers - 1], s.replaced[s.layers - 1]);
}

template <class C, class T>
cudaError_t launch_stack(const CudaStackArgs<T, typename CudaDenseKernels<T>::V>& s, Index units,
                         cudaStream_t stream) {
  const auto& all = s.layer[0];
  bool vectors = true;
  for (int l = 0; l < s.layers; ++l) vectors = vectors && products_by_vectors(s.layer[l]);
  return with_step<C, T, true>(all.batch, all.exact_products, vectors, [&](auto named) {
    using Step = typename decltype(named)::type;
    const auto kernel = stack<C, Step>;
    const Index pieces = (all.hidden + Step::kBlockUnits - 1) / Step::kBlockUnits *
                         ((all.batch + Step::kBlockLines - 1) / Step::kBlockLines);
    const dim3 grid(static_cast<unsigned>(std::min(pieces, units)));
    void* arguments[] = {const_cast<std::decay_t<decltype(s)>*>(&s)};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid, Step::kThreads,
                                       arguments, 0, stream);
  });
}

}  // namespace scanrnn::step
