// SPDX-License-Identifier: Apache-2.0
// A small dense cell's whole sequence in one kernel whose blocks do not meet: each keeps all of R,
// or of a head's, in registers and the rest in shared memory, and walks a few lines by itself. What
// blocks of cuda/kernels/persistent/grid.cuh tell one another through the second level cache stays
// in shared memory.
#pragma once

#include "cuda/kernels/persistent/item.cuh"
#include "cuda/kernels/persistent/line_share.cuh"
#include "cuda/kernels/persistent/weights.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

// How a block cuts R: a warp has kUnitBlocks times 8 units with all their gates and inputs.
template <class C, class T, int kUnitBlocks>
struct BlockCut {
  static constexpr auto kBlock = dispatch::persistent_block(kUnitBlocks, C::kGates, sizeof(T));
  static constexpr int kChunks = kBlock.chunks, kTiles = kBlock.tiles;
  static constexpr int kWarps = dispatch::kPersistentWarps;
  static constexpr int kLines = kBlock.lines;
  static constexpr int kUnits = 8 * kUnitBlocks;  // of a warp

  using Weights = Pieces<kChunks - kBlock.shared_chunks, kBlock.shared_chunks, kTiles>;
  using Sums = float[kTiles][4];
  // In shared memory, after the weights: 2 and kWarps of them.
  using State = std::uint32_t[kLines][kChunks * 16 + 16];  // 16 more: lines meet other banks
  using Parts = float4[kLines][kUnits + 1];
  static_assert(Weights::kBytes + 2 * sizeof(State) + kWarps * sizeof(Parts) == kBlock.shared_bytes,
                "the planner counts what the kernel takes");
};

// A warp's rows of R.
template <class Cut, class C, class T>
__device__ __forceinline__ void load_weights(const CudaDenseArgs<T, float>& a,
                                             const HeadShare& head,
                                             typename Cut::Weights& weights) {
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll
  for (int chunk = 0; chunk < Cut::kChunks; ++chunk)
#pragma unroll
    for (int tile = 0; tile < Cut::kTiles; ++tile) {
      std::uint32_t words[2][4];
      load_fragments(words, [&](int half, int i) {
        const int block = 2 * tile + half;  // of 8 rows
        const int unit = warp * Cut::kUnits + block / C::kGates * 8 + row;
        const int from = (chunk * 16 + quad * 4 + i) * Bits<T>::kPerWord;
        const bool exists = block < Cut::kUnits / 8 * C::kGates && unit < head.units;
        return load_word<false>(a, WeightRows<T>::of(a, true), head, block % C::kGates, unit, from,
                                exists);
      });
      weights.put(chunk, tile, words);
    }
}

// The products of all of R with a state, whose words of this lane are 64 bytes apart.
template <class Cut, class T>
__device__ __forceinline__ void product(const typename Cut::Weights& weights, std::uint32_t state,
                                        typename Cut::Sums& sum) {
  uint4 v[Cut::kChunks];
#pragma unroll
  for (int chunk = 0; chunk < Cut::kChunks; ++chunk) load_shared(state + chunk * 64, v[chunk]);
#pragma unroll
  for (int chunk = 0; chunk < Cut::kChunks; ++chunk) {
    const std::uint32_t b[4] = {v[chunk].x, v[chunk].y, v[chunk].z, v[chunk].w};
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int tile = 0; tile < Cut::kTiles; ++tile) {
        std::uint32_t words[4];
        weights.get(chunk, tile, step, words);
        fragment::multiply(T(), sum[tile], words, b[2 * step], b[2 * step + 1]);
      }
  }
}
// From the lanes of a fragment to those that step the units, which are of the same warp.
template <class Cut, int kGates>
__device__ __forceinline__ void leave(const typename Cut::Sums& sum, std::uint32_t to) {
#pragma unroll
  for (int block = 0; block < Cut::kUnits / 8; ++block)
#pragma unroll
    for (int column = 0; column < 2; ++column)
      leave_sums<float4, kGates>(to + (column * (Cut::kUnits + 1) + block * 8) * sizeof(float4),
                                 sum, block * kGates, column);
}

template <class C, class T, Lines kLines, int kUnitBlocks>
__global__ void __launch_bounds__(32 * dispatch::kPersistentWarps, 1)
    block_kernel(const __grid_constant__ CudaDenseArgs<T, float> a) {
  using Cut = BlockCut<C, T, kUnitBlocks>;
  using Unit = Item<C, T, false, kLines>;
  constexpr bool kRagged = kLines == Lines::ragged;
  constexpr int kUnits = Cut::kUnits;
  extern __shared__ float4 memory[];
  auto* const states = reinterpret_cast<typename Cut::State*>(reinterpret_cast<char*>(memory) +
                                                              Cut::Weights::kBytes);
  auto* const parts = reinterpret_cast<typename Cut::Parts*>(states + 2);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
  const HeadShare head(a);
  const LineShare own(static_cast<int>(a.batch), blockIdx.x, gridDim.x);
  const int lines = own.count;
  const int steps = static_cast<int>(kRagged ? a.steps_of(own.line<kRagged>(0)) : a.steps);
  typename Cut::Weights weights(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)));
  load_weights<Cut, C>(a, head, weights);

  constexpr int kWords = 2 * sizeof(typename Cut::State) / 4;
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) states[0][0][i] = 0;
  __syncthreads();
  Unit item;
  const int line = lane / kUnits, unit = warp * kUnits + lane % kUnits;
  item.open(a, own.line<kRagged>(line), head.first + unit, line < lines && unit < head.units);
  // A column past the last line repeats it, and nobody reads its sums.
  const std::uint32_t read_at = kept_address(&states[0][min(row, lines - 1)][quad * 4]);
  const std::uint32_t write_at = kept_address(reinterpret_cast<T*>(states[0][line]) + unit);
  const bool has_columns = 2 * quad < lines;
  const std::uint32_t parts_at = kept_address(&parts[warp][has_columns ? 2 * quad : 0][row]);
  const std::uint32_t part_at = kept_address(&parts[warp][line][lane % kUnits]);
  const auto keep = [&](int half) {
    store_shared_bits<T>(write_at + half, Bits<T>::of(item.state.h));
  };
  if (item.live) keep(0);
  // Two steps ahead of their use, since a step is shorter than the way from the L2.
  std::uint32_t ahead[Unit::kRead];
  item.fetch(a, 0);
  item.fetch_sums(a, 1, ahead);
  __syncthreads();

  constexpr int kBytes = sizeof(typename Cut::State);
  int half = 0;  // of the state's memory: one is read, the other written
  for (int t = 0; t < steps; ++t) {
    typename Cut::Sums sum = {};
    product<Cut, T>(weights, read_at + half, sum);
    if (has_columns) leave<Cut, C::kGates>(sum, parts_at);
    __syncwarp();
    half = kBytes - half;
    if (item.live) {
      float4 total;
      load_shared(part_at, total);
      item.step(a, t, total);
      keep(half);
    }
    __syncthreads();
    item.store(a);
    item.close_at(a, t + 1);
#pragma unroll
    for (int i = 0; i < Unit::kRead; ++i) item.in[i] = ahead[i];
    item.fetch_draws(a, t + 1);
    item.fetch_sums(a, t + 2, ahead);
  }
  item.close(a);
}

template <class C, class T, int kUnitBlocks>
cudaError_t launch_block(const CudaDenseArgs<T, float>& args, dim3 blocks, cudaStream_t stream) {
  const auto kernel =
      by_kind_of_lines(args, [](auto kind) { return block_kernel<C, T, kind, kUnitBlocks>; });
  constexpr auto kBytes = BlockCut<C, T, kUnitBlocks>::kBlock.shared_bytes;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes});
  if (status != cudaSuccess) return status;
  kernel<<<blocks, 32 * dispatch::kPersistentWarps, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace scanrnn::persistent
