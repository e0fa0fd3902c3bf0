// SPDX-License-Identifier: Apache-2.0
// Launches the persistent kernel that a plan's shape names.
#pragma once

#include <algorithm>
#include <iterator>

#include "cuda/kernels/persistent/alone.cuh"
#include "cuda/kernels/persistent/block.cuh"
#include "cuda/kernels/persistent/grid.cuh"
#include "cuda/kernels/persistent/lines.cuh"

namespace scanrnn::persistent {

template <class C, class T>
struct Launcher {
  using Args = CudaDenseArgs<T, float>;
  using LineWalkArgs = CudaLineArgs<T, float>;
  template <bool kChain>
  using Launch = cudaError_t (*)(const LaunchArgs<Args, kChain>&, const PersistentShape&, void*,
                                 cudaStream_t);
  using LaunchLines = cudaError_t (*)(const LineWalkArgs&, const PersistentShape&, void*,
                                      cudaStream_t);

  template <bool kBackward>
  static cudaError_t run(const Args& args, const PersistentShape& shape, void* exchange,
                         cudaStream_t stream) {
    constexpr const auto& kBlocks = dispatch::kPersistentBlockUnits;  // by the tile
    if (shape.alone) {
      const auto launch = shape.tile == 0 ? launch_alone<C, T, kBackward, kBlocks[0]>
                                          : launch_alone<C, T, kBackward, kBlocks[1]>;
      return launch(args, blocks_of(shape), stream);
    }
    if constexpr (!kBackward && sizeof(T) == 2) {
      if (shape.in_block) {
        const auto launch =
            shape.tile == 0 ? launch_block<C, T, kBlocks[0]> : launch_block<C, T, kBlocks[1]>;
        return launch(args, blocks_of(shape), stream);
      }
    }
    return run_grid<kBackward, false>(args, shape, exchange, stream);
  }
  // By whole lines, of a cell that can be walked so.
  template <bool kBackward>
  static cudaError_t run_lines(const LineWalkArgs& args, const PersistentShape& shape,
                               void* exchange, cudaStream_t stream) {
    using Indices = std::make_index_sequence<std::size(dispatch::line_tiles<kBackward>())>;
    const auto run = [&](auto normed) {
      if constexpr (std::is_same<T, float>::value) {
        if (shape.split_products) {
          return lines_of<kBackward, normed, true>(shape.tile, Indices())(args, shape, exchange,
                                                                          stream);
        }
      }
      return lines_of<kBackward, normed, false>(shape.tile, Indices())(args, shape, exchange,
                                                                       stream);
    };
    if constexpr (C::kByLines) {
      if (args.walk.norm) return run(std::true_type());
      if constexpr (C::kResets) return run(std::false_type());
    }
    return cudaErrorInvalidConfiguration;  // the planner never asks for it
  }
  // Layers that follow one another in the walk, shape.layers of them at most.
  template <bool kBackward>
  static cudaError_t run_chain(const Args* layers, int count, const PersistentShape& shape,
                               void* exchange, cudaStream_t stream) {
    Chain<Args> chain;
    std::copy(layers, layers + count, chain.layers);
    PersistentShape own = shape;
    own.layers = count;
    return run_grid<kBackward, true>(chain, own, exchange, stream);
  }

 private:
  template <bool kBackward, bool kChain>
  static cudaError_t run_grid(const LaunchArgs<Args, kChain>& args, const PersistentShape& shape,
                              void* exchange, cudaStream_t stream) {
    using Indices =
        std::make_index_sequence<std::size(dispatch::persistent_tiles<kBackward, kChain>())>;
    if constexpr (std::is_same<T, float>::value) {
      if (shape.split_products) {
        return table<kBackward, true, kChain>(Indices())[shape.tile](args, shape, exchange, stream);
      }
    }
    return table<kBackward, false, kChain>(Indices())[shape.tile](args, shape, exchange, stream);
  }
  static dim3 blocks_of(const PersistentShape& shape) {
    return dim3(static_cast<unsigned>(shape.slices * shape.groups),
                static_cast<unsigned>(shape.heads), static_cast<unsigned>(shape.layers));
  }
  template <bool kBackward, bool kSplit, bool kChain, std::size_t... kTile>
  static const Launch<kChain>* table(std::index_sequence<kTile...>) {
    static constexpr Launch<kChain> launches[] = {launch<kBackward, kSplit, kChain, kTile>...};
    return launches;
  }
  // The kernel of a tile; the lines of a chain are whole.
  template <bool kBackward, bool kSplit, bool kChain, std::size_t kTile>
  static auto kernel_of(const Args& args) {
    if constexpr (kChain) {
      return kernel_by<kBackward, kSplit, true, kTile, Lines::whole>();
    } else {
      return by_kind_of_lines(
          args, [](auto kind) { return kernel_by<kBackward, kSplit, false, kTile, kind>(); });
    }
  }
  template <bool kBackward, bool kSplit, bool kChain, std::size_t kTile, Lines kLines>
  static auto kernel_by() {
    constexpr PersistentTile t = dispatch::persistent_tiles<kBackward, kChain>()[kTile];
    return &kernel<C, T, kBackward, kSplit, kLines, kChain, t.unit_blocks, t.chunks,
                   t.shared_chunks, t.fetched, t.items>;
  }
  static const Args& first_of(const Args& args) { return args; }
  static const Args& first_of(const Chain<Args>& chain) { return chain.layers[0]; }
  template <bool kBackward, bool kSplit, bool kChain, std::size_t kTile>
  static cudaError_t launch(const LaunchArgs<Args, kChain>& args, const PersistentShape& shape,
                            void* exchange, cudaStream_t stream) {
    constexpr PersistentTile kOwn = dispatch::persistent_tiles<kBackward, kChain>()[kTile];
    if constexpr (kOwn.serves(sizeof(T))) {
      const Args& first = first_of(args);
      constexpr int kRows = kBackward ? 1 : kChain ? C::kPreactivations : C::kGates;
      return launch_kernel(kernel_of<kBackward, kSplit, kChain, kTile>(first),
                           dispatch::persistent_shared_bytes(kOwn, kRows), first.batch, args, shape,
                           exchange, stream);
    }
    return cudaErrorInvalidConfiguration;  // the planner never asks for it
  }

  template <bool kBackward, bool kNormed, bool kSplit, std::size_t... kTile>
  static LaunchLines lines_of(int tile, std::index_sequence<kTile...>) {
    static constexpr LaunchLines launches[] = {launch_lines<kBackward, kNormed, kSplit, kTile>...};
    return launches[tile];
  }
  template <bool kBackward, bool kNormed, bool kSplit, std::size_t kTile>
  static cudaError_t launch_lines(const LineWalkArgs& args, const PersistentShape& shape,
                                  void* exchange, cudaStream_t stream) {
    constexpr PersistentTile t = dispatch::line_tiles<kBackward>()[kTile];
    return launch_kernel(lines<C, T, kBackward, kSplit, kNormed, t.unit_blocks, t.chunks,
                               t.shared_chunks, t.fetched, t.items>,
                         dispatch::persistent_shared_bytes(t, kBackward ? 1 : C::kGates),
                         args.batch, args, shape, exchange, stream);
  }

  // Runs the kernel of a tile, which takes `own_bytes` of shared memory and the partial sums.
  template <class LaunchedArgs>
  static cudaError_t launch_kernel(void (*of_tile)(LaunchedArgs, PersistentShape, std::uint32_t*),
                                   std::int64_t own_bytes, Index batch, const LaunchedArgs& args,
                                   const PersistentShape& shape, void* exchange,
                                   cudaStream_t stream) {
    const Index most = (batch + shape.groups - 1) / shape.groups;
    const int warps_along_sum = dispatch::kPersistentWarps / shape.warps_along_units;
    const auto bytes = static_cast<std::size_t>(own_bytes) +
                       sizeof(float) * 2 * static_cast<std::size_t>(warps_along_sum) *
                           static_cast<std::size_t>((most + 1) / 2 * 2 * shape.line_floats);
    // All that there is: a limit that followed `bytes` could be lowered by another thread before
    // this one has launched.
    const cudaError_t status = cudaFuncSetAttribute(
        of_tile, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (status != cudaSuccess) return status;
    auto* words = static_cast<std::uint32_t*>(exchange);
    void* arguments[] = {const_cast<LaunchedArgs*>(&args), const_cast<PersistentShape*>(&shape),
                         &words};
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
  template <bool>
  static cudaError_t run_chain(const CudaDenseArgs<double, double>*, int, const PersistentShape&,
                               void*, cudaStream_t) {
    return cudaErrorInvalidConfiguration;
  }
  template <bool>
  static cudaError_t run_lines(const CudaLineArgs<double, double>&, const PersistentShape&, void*,
                               cudaStream_t) {
    return cudaErrorInvalidConfiguration;
  }
};

}  // namespace scanrnn::persistent
