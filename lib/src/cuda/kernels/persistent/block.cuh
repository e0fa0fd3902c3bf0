// SPDX-License-Identifier: Apache-2.0
// A small dense cell's whole sequence in one kernel whose blocks do not meet: each keeps all of R,
// in registers and the rest in shared memory, and walks a few lines by itself. What blocks of
// cuda/kernels/persistent/grid.cuh tell one another through the second level cache stays in shared
// memory.
#pragma once

#include "cuda/kernels/persistent/item.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

// An address of shared memory that stays in a register: nothing tells the compiler how to compute
// it again in every step.
__device__ __forceinline__ std::uint32_t kept_address(const void* p) {
  auto out = static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("" : "+r"(out));
  return out;
}

// How a block cuts R: a warp has kUnitBlocks times 8 units with all their gates and inputs.
template <class C, class T, int kUnitBlocks>
struct BlockCut {
  static constexpr auto kBlock = dispatch::persistent_block(kUnitBlocks, C::kGates, sizeof(T));
  static constexpr int kChunks = kBlock.chunks, kTiles = kBlock.tiles;
  static constexpr int kShared = kBlock.shared_chunks;
  static constexpr int kWarps = dispatch::kPersistentWarps;
  static constexpr int kLines = kBlock.lines;
  static constexpr int kUnits = 8 * kUnitBlocks;  // of a warp

  // In shared memory, one after the other: kShared, 2 and kWarps of them.
  using Weights = uint4[kTiles][2][32 * kWarps];
  using State = std::uint32_t[kLines][kChunks * 16 + 16];  // 16 more: lines meet other banks
  using Parts = float4[kLines][kUnits + 1];
  static_assert(kShared * sizeof(Weights) + 2 * sizeof(State) + kWarps * sizeof(Parts) ==
                    kBlock.shared_bytes,
                "the planner counts what the kernel takes");
};

template <class C, class T, bool kSplit, int kUnitBlocks>
__global__ void __launch_bounds__(32 * dispatch::kPersistentWarps, 1)
    block_kernel(const __grid_constant__ CudaDenseArgs<T, float> a) {
  using Cut = BlockCut<C, T, kUnitBlocks>;
  constexpr int kPerWord = Bits<T>::kPerWord, kTiles = Cut::kTiles, kUnits = Cut::kUnits;
  constexpr int kKept = Cut::kChunks - Cut::kShared;
  constexpr bool kOnce = kPerWord == 1 && !kSplit;  // operands are rounded before they are kept
  extern __shared__ float4 memory[];
  auto* const shared_weights = reinterpret_cast<typename Cut::Weights*>(memory);
  auto* const states = reinterpret_cast<typename Cut::State*>(shared_weights + Cut::kShared);
  auto* const parts = reinterpret_cast<typename Cut::Parts*>(states + 2);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
  const int hidden = static_cast<int>(a.hidden), steps = static_cast<int>(a.steps);
  const int first_line = static_cast<int>(a.batch * blockIdx.x / gridDim.x);
  const int lines = static_cast<int>(a.batch * (blockIdx.x + 1) / gridDim.x) - first_line;

  std::uint32_t weights[kKept][kTiles][2][4];
#pragma unroll
  for (int chunk = 0; chunk < Cut::kChunks; ++chunk)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int block = 2 * tile + i % 2, word = chunk * 16 + quad * 4 + step * 2 + i / 2;
          const int unit = warp * kUnits + block / C::kGates * 8 + row;
          std::uint32_t bits = 0;
#pragma unroll
          for (int e = 0; e < kPerWord; ++e) {
            const int other = word * kPerWord + e;
            if (block >= kUnitBlocks * C::kGates || unit >= hidden || other >= hidden) continue;
            const Index at = Index{block % C::kGates} * hidden + unit;
            bits |= Bits<T>::load(a.weight + at * a.weight_stride + other) << (16 * e);
          }
          words[i] = fragment::Operand<kOnce, false>(bits).upper;
        }
        if (chunk < kKept) {
#pragma unroll
          for (int i = 0; i < 4; ++i) weights[chunk < kKept ? chunk : 0][tile][step][i] = words[i];
        } else {
          shared_weights[chunk - kKept][tile][step][threadIdx.x] =
              make_uint4(words[0], words[1], words[2], words[3]);
        }
      }

  constexpr int kWords = 2 * sizeof(typename Cut::State) / 4;
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) states[0][0][i] = 0;
  __syncthreads();
  Item<C, T, false> item;
  const int line = lane / kUnits, unit = warp * kUnits + lane % kUnits;
  item.open(a, first_line + line, unit, line < lines && unit < hidden);
  // A column past the last line repeats it, and nobody reads its sums.
  const std::uint32_t read_at = kept_address(&states[0][min(row, lines - 1)][quad * 4]);
  const std::uint32_t write_at = kept_address(reinterpret_cast<T*>(states[0][line]) + unit);
  const std::uint32_t weights_at = kept_address(&shared_weights[0][0][0][threadIdx.x]);
  const bool has_columns = 2 * quad < lines;
  const std::uint32_t parts_at = kept_address(&parts[warp][has_columns ? 2 * quad : 0][row]);
  const std::uint32_t part_at = kept_address(&parts[warp][line][lane % kUnits]);
  const auto keep = [&](int half) {
    const fragment::Operand<kOnce, false> h(Bits<T>::of(item.h));
    store_shared_bits<T>(write_at + half, h.upper);
  };
  if (item.live) keep(0);
  // Two steps ahead of their use, since a step is shorter than the way from the L2.
  std::uint32_t ahead[Item<C, T, false>::kRead];
  item.fetch(a, 0);
  item.fetch_sums(a, 1, ahead);
  __syncthreads();

  constexpr int kBytes = sizeof(typename Cut::State);
  int half = 0;  // of the state's memory: one is read, the other written
  for (int t = 0; t < steps; ++t) {
    uint4 v[Cut::kChunks];
#pragma unroll
    for (int chunk = 0; chunk < Cut::kChunks; ++chunk) {
      load_shared(read_at + half + chunk * 64, v[chunk]);
    }
    float sum[kTiles][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < Cut::kChunks; ++chunk) {
      using B = fragment::Operand<kSplit, kSplit>;
      const B b[4] = {B(v[chunk].x), B(v[chunk].y), B(v[chunk].z), B(v[chunk].w)};
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          if (chunk < kKept) {
            fragment::multiply<T, kSplit>(sum[tile], weights[chunk < kKept ? chunk : 0][tile][step],
                                          b[2 * step], b[2 * step + 1]);
          } else {
            const int number = ((chunk - kKept) * kTiles + tile) * 2 + step;
            uint4 w;
            load_shared(weights_at + number * sizeof(shared_weights[0][0][0]), w);
            const std::uint32_t fragment[4] = {w.x, w.y, w.z, w.w};
            fragment::multiply<T, kSplit>(sum[tile], fragment, b[2 * step], b[2 * step + 1]);
          }
        }
    }
    // From the lanes of a fragment to those that step the units, which are of the same warp.
    if (has_columns) {
#pragma unroll
      for (int block = 0; block < kUnitBlocks; ++block)
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const auto of = [&](int gate) {
            const int b = block * C::kGates + gate;
            return sum[b / 2][b % 2 * 2 + column];
          };
          store_shared(parts_at + (column * (kUnits + 1) + block * 8) * sizeof(float4),
                       make_float4(of(0), of(1), of(2), C::kGates > 3 ? of(C::kGates - 1) : 0.0f));
        }
    }
    __syncwarp();
    half = kBytes - half;
    if (item.live) {
      float4 total;
      load_shared(part_at, total);
      item.step(t, total);
      keep(half);
    }
    __syncthreads();
    item.store(a);
#pragma unroll
    for (int i = 0; i < Item<C, T, false>::kRead; ++i) item.in[i] = ahead[i];
    item.fetch_sums(a, t + 2, ahead);
  }
  item.close(a);
}

template <class C, class T, bool kSplit, int kUnitBlocks>
cudaError_t launch_block(const CudaDenseArgs<T, float>& args, int groups, cudaStream_t stream) {
  constexpr auto kernel = block_kernel<C, T, kSplit, kUnitBlocks>;
  constexpr auto kBytes = BlockCut<C, T, kUnitBlocks>::kBlock.shared_bytes;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes});
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(groups), 32 * dispatch::kPersistentWarps, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace scanrnn::persistent
