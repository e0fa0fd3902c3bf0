// SPDX-License-Identifier: Apache-2.0
// How many steps the tiles of the device kernel have for a cell and a dtype, forward and backward:
// what tests take their lengths from.
#include "recurrence/linear_backward.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/registry.h"
#include "scanrnn/scan/cuda/device/kernel.cuh"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

template <class Source, class Sink>
std::int64_t tile_steps(std::size_t shared) {
  using namespace scan::cuda;
  using Op = scan::AffineOp<typename Source::V>;
  constexpr int kWarps = device_warps<Op, Source, Sink, dispatch::kCudaDeviceWarps>();
  return workers_for<Op, Source, Sink, kWarps>(shared) * device_steps<Source>();
}

// A cell's variants have the same tiles.
template <class Memory, template <class> class CellOf, class First, class... Others>
std::vector<std::int64_t> tiles_of(cell::Variants<First, Others...>, std::size_t shared) {
  using C = CellOf<First>;
  return {tile_steps<ForwardSource<C, Memory>, ForwardSink<C, Memory>>(shared),
          tile_steps<BackwardSource<C, Memory>, BackwardSink<C, Memory>>(shared)};
}
template <class Memory>
std::vector<std::int64_t> tiles_in(Cell cell, std::size_t shared) {
  switch (cell) {
#define SCANRNN_LINEAR_CELL(name, option, variants, ...) \
  case Cell::name:                                       \
    return tiles_of<Memory, cell::name>(cell::variants(), shared);
#include "scanrnn/cells.def"
    default:
      throw std::logic_error("no linear cell");
  }
}

}  // namespace

std::vector<std::int64_t> device_tiles(Cell cell, Dtype dtype) {
  const auto shared = static_cast<std::size_t>(shared_context(1).limits().shared_bytes);
  switch (dtype) {
    case Dtype::float64:
      return tiles_in<scan::Units<double>>(cell, shared);
    case Dtype::float32:
      return tiles_in<scan::Units<float>>(cell, shared);
    case Dtype::bfloat16:
      return tiles_in<scan::Units<__nv_bfloat16>>(cell, shared);
    case Dtype::float16:
      return tiles_in<scan::Units<__half>>(cell, shared);
    default:
      throw std::logic_error("no dtype of cells");
  }
}

}  // namespace scanrnn::test
