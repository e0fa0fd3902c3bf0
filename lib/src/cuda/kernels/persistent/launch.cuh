// SPDX-License-Identifier: Apache-2.0
// Launches the persistent kernel that a plan's shape names.
#pragma once

#include <algorithm>
#include <iterator>

#include "cuda/kernels/persistent/block.cuh"
#include "cuda/kernels/persistent/grid.cuh"

namespace scanrnn::persistent {

template <class C, class T>
struct Launcher {
  using Args = CudaDenseArgs<T, float>;
  using Launch = cudaError_t (*)(const Args&, const PersistentShape&, void*, cudaStream_t);

  template <bool kBackward>
  static cudaError_t run(const Args& args, const PersistentShape& shape, void* exchange,
                         cudaStream_t stream) {
    if constexpr (!kBackward) {
      if (shape.in_block) return run_in_block(args, shape, stream);
    }
    using Indices = std::make_index_sequence<std::size(dispatch::persistent_tiles<kBackward>())>;
    if constexpr (std::is_same<T, float>::value) {
      if (shape.split_products) {
        return table<kBackward, true>(Indices())[shape.tile](args, shape, exchange, stream);
      }
    }
    return table<kBackward, false>(Indices())[shape.tile](args, shape, exchange, stream);
  }

 private:
  static cudaError_t run_in_block(const Args& args, const PersistentShape& shape,
                                  cudaStream_t stream) {
    constexpr const auto& kBlocks = dispatch::kPersistentBlockUnits;
    const dim3 blocks = blocks_of(shape);
    if constexpr (std::is_same<T, float>::value) {
      if (shape.split_products) {
        return launch_block<C, T, true, kBlocks[0]>(args, blocks, stream);
      }
    }
    return shape.tile == 0 ? launch_block<C, T, false, kBlocks[0]>(args, blocks, stream)
                           : launch_block<C, T, false, kBlocks[1]>(args, blocks, stream);
  }
  static dim3 blocks_of(const PersistentShape& shape) {
    return dim3(static_cast<unsigned>(shape.slices * shape.groups),
                static_cast<unsigned>(shape.heads));
  }
  template <bool kBackward, bool kSplit, std::size_t... kTile>
  static const Launch* table(std::index_sequence<kTile...>) {
    static constexpr Launch launches[] = {launch<kBackward, kSplit, kTile>...};
    return launches;
  }
  template <bool kBackward, bool kSplit, std::size_t kTile>
  static cudaError_t launch(const Args& args, const PersistentShape& shape, void* exchange,
                            cudaStream_t stream) {
    constexpr PersistentTile tile = dispatch::persistent_tiles<kBackward>()[kTile];
    const auto of_tile = args.lines ? kernel<C, T, kBackward, kSplit, true, tile.unit_blocks,
                                             tile.chunks, tile.fetched, tile.items>
                                    : kernel<C, T, kBackward, kSplit, false, tile.unit_blocks,
                                             tile.chunks, tile.fetched, tile.items>;
    const Index most = (args.batch + shape.groups - 1) / shape.groups;
    const int warps_along_sum = dispatch::kPersistentWarps / shape.warps_along_units;
    const auto bytes =
        sizeof(float) * 2 *
        static_cast<std::size_t>(warps_along_sum * ((most + 1) / 2 * 2) * shape.line_floats);
    // All that there is: a limit that followed `bytes` could be lowered by another thread before
    // this one has launched.
    const cudaError_t status = cudaFuncSetAttribute(
        of_tile, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (status != cudaSuccess) return status;
    auto* words = static_cast<std::uint32_t*>(exchange);
    void* arguments[] = {const_cast<Args*>(&args), const_cast<PersistentShape*>(&shape), &words};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(of_tile), blocks_of(shape),
                                       kThreads, arguments, bytes, stream);
  }
};
template <class C>
struct Launcher<C, double> {
  template <bool>
  static cudaError_t run(const CudaDenseArgs<double, double>&, const PersistentShape&, void*,
                         cudaStream_t) {
    return cudaErrorInvalidConfiguration;  // the planner never asks for it
  }
};

}  // namespace scanrnn::persistent
