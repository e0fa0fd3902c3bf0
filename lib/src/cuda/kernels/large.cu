// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels by warp groups of one dense cell and one 16-bit type: SCANRNN_CUDA_CELL and
// SCANRNN_CUDA_TYPE. The build compiles this file once for each pair, with the header of every cell
// before it.
#include "cuda/kernels/large.h"

#include <iterator>
#include <type_traits>
#include <utility>

#include "cuda/kernels/persistent/large.cuh"
#include "cuda/kernels/persistent/large_back.cuh"

namespace scanrnn {
namespace {

using T = SCANRNN_CUDA_TYPE;

// `launch` with the cut that a shape names.
#define SCANRNN_LARGE_LAUNCH(name, launch)                                                 \
  template <class C, std::size_t... kTile>                                                 \
  constexpr CudaLargeLaunch<T> name(std::index_sequence<kTile...>) {                       \
    return [](const CudaDenseArgs<T, float>& args, const dispatch::PersistentShape& shape, \
              void* exchange, cudaStream_t stream) {                                       \
      static constexpr CudaLargeLaunch<T> launches[] = {launch<C, T, kTile>...};           \
      return launches[shape.tile](args, shape, exchange, stream);                          \
    };                                                                                     \
  }
SCANRNN_LARGE_LAUNCH(forward_of, persistent::launch_large_forward)
SCANRNN_LARGE_LAUNCH(backward_of, persistent::launch_large_back)
#undef SCANRNN_LARGE_LAUNCH

template <class C>
constexpr CudaLargeKernels<T> kernels_of() {
  using Forward = std::make_index_sequence<std::size(dispatch::kLargeTiles)>;
  using Backward = std::make_index_sequence<std::size(dispatch::kLargeBackward)>;
  return {forward_of<C>(Forward()), backward_of<C>(Backward())};
}
template <template <class> class CellOf, class... Options>
const CudaLargeTable<T>& table(cell::Variants<Options...>) {
  static constexpr CudaLargeTable<T> kernels = {kernels_of<CellOf<Options>>()...};
  return kernels;
}

// A template, so that the kernels of the other cells are not compiled, too.
#define SCANRNN_DENSE_CELL(name, option, list, ...)                           \
  template <Cell wanted, std::enable_if_t<wanted == Cell::name, bool> = true> \
  const CudaLargeTable<T>& table_of() {                                       \
    return table<cell::name>(cell::list());                                   \
  }
#include "scanrnn/cells.def"

}  // namespace

template <>
const CudaLargeTable<T>& cuda_large_table<Cell::SCANRNN_CUDA_CELL, T>() {
  return table_of<Cell::SCANRNN_CUDA_CELL>();
}

}  // namespace scanrnn
