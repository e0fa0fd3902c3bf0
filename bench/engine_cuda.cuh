// SPDX-License-Identifier: Apache-2.0
// What the stand-alone checks of the CUDA engine share: a float64 reference that walks one step at
// a time, and errors. Nothing is timed that was not compared first.
#pragma once

#include <thrust/device_vector.h>
#include <thrust/inner_product.h>
#include <thrust/reduce.h>
#include <thrust/transform_reduce.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fill.cuh"
#include "recurrence/scan.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/scan/cuda/block.cuh"
#include "scanrnn/scan/cuda/device/kernel.cuh"
#include "turns.cuh"

namespace scanrnn::bench {

using scan::Extent;
using scan::Launch;
using scan::Units;

// Stored as T, computed in double: how the reference reads the engine's own inputs.
template <class Scalar>
struct Wide {
  using T = Scalar;
  using V = double;
  static constexpr int kUnits = 1;
  SCANRNN_HD static V read(const T* line, Index row, Index) {
    if constexpr (sizeof(T) < 4) {
      return static_cast<V>(static_cast<float>(line[row]));
    } else {
      return static_cast<V>(line[row]);
    }
  }
  SCANRNN_HD static bool resets(const std::uint8_t* step, Index row, Index stride, Index) {
    return step[row * stride] != 0;
  }
};

template <class T>
const char* name_of() {
  if (std::is_same_v<T, float>) return "float32";
  if (std::is_same_v<T, double>) return "float64";
  return std::is_same_v<T, __half> ? "float16" : "bfloat16";
}
// Half a unit in the last place of what is stored, relative.
template <class T>
double rounding() {
  return std::is_same_v<T, __half> ? std::ldexp(1, -11) : sizeof(T) == 2 ? std::ldexp(1, -8) : 0;
}
template <class T>
double tolerance(Index steps) {
  const double growth = 1 + std::log2(static_cast<double>(std::max<Index>(steps, 1)));
  return (sizeof(T) == 8 ? 1e-13 : 3e-7) * growth;
}

// The reference: one thread a row, one step after another, in double.
template <class Source, class Sink, class Ends>
__global__ void reference_kernel(const Extent extent, const Source source, const Sink sink,
                                 const Ends ends) {
  using Op = scan::AffineOp<double>;
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= extent.lines * extent.rows) return;
  const Index line = i / extent.rows, row = i % extent.rows;
  const auto in = source.line(line);
  const auto out = sink.line(line);
  auto state = ends.first(line, row);
  constexpr int kAhead = 8;
  for (Index t = 0; t < extent.steps; t += kAhead) {
    decltype(in.load(row, t)) item[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) item[k] = in.load(row, min(t + k, extent.steps - 1));
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (t + k >= extent.steps) break;
      const auto after = Op::apply(in.step(item[k]), state);
      out.store(row, t + k, item[k], state, after);
      state = after;
    }
  }
  ends.last(line, row, state);
}
template <class Source, class Sink, class Ends>
void reference(const Extent& extent, const Source& source, const Sink& sink, const Ends& ends) {
  const Index rows = extent.lines * extent.rows;
  if (rows == 0) return;
  reference_kernel<<<static_cast<unsigned>((rows + 63) / 64), 64>>>(extent, source, sink, ends);
  CHECK_CUDA(cudaGetLastError());
}

struct Magnitude {
  template <class T>
  __host__ __device__ double operator()(T x) const {
    return fabs(static_cast<double>(static_cast<float>(x)));
  }
  __host__ __device__ double operator()(double x) const { return fabs(x); }
};
// What exceeds `slack` times the exact value. NaN counts as infinite, so it never passes.
template <class T>
struct Excess {
  double slack;
  __host__ __device__ double operator()(T got, double want) const {
    double value;
    if constexpr (sizeof(T) < 4) {
      value = static_cast<float>(got);
    } else {
      value = got;
    }
    const double error = fabs(value - want) - slack * fabs(want);
    return error == error ? error : HUGE_VAL;
  }
};
inline double largest(const thrust::device_vector<double>& values) {
  return thrust::transform_reduce(values.begin(), values.end(), Magnitude(), 0.0,
                                  thrust::maximum<double>());
}
// The largest error beyond rounding of the output type, relative to `scale`.
template <class T>
double worst_error(const thrust::device_vector<T>& got, const thrust::device_vector<double>& want,
                   double scale) {
  const double error =
      thrust::inner_product(got.begin(), got.end(), want.begin(), 0.0, thrust::maximum<double>(),
                            Excess<T>{1.01 * rounding<T>()});
  return scale > 0 ? error / scale : error;
}

// A root mean square over that of the exact values; NaN counts as infinite.
struct Squares {
  double error, value;
  __host__ __device__ Squares operator+(const Squares& other) const {
    return {error + other.error, value + other.value};
  }
};
template <class T>
struct SquaresOf {
  __host__ __device__ Squares operator()(T got, double want) const {
    double value;
    if constexpr (sizeof(T) < 4) {
      value = static_cast<float>(got);
    } else {
      value = got;
    }
    return {(value - want) * (value - want), want * want};
  }
};
template <class T>
double rms_error(const thrust::device_vector<T>& got, const thrust::device_vector<double>& want) {
  const Squares sum = thrust::inner_product(got.begin(), got.end(), want.begin(), Squares{0, 0},
                                            thrust::plus<Squares>(), SquaresOf<T>());
  const double error = std::sqrt(sum.error / std::max(sum.value, 1e-300));
  return error == error ? error : HUGE_VAL;
}

template <class T>
bool same_bits(thrust::device_vector<T>& a, thrust::device_vector<T>& b) {
  std::vector<char> x(a.size() * sizeof(T)), y(b.size() * sizeof(T));
  CHECK_CUDA(cudaMemcpy(x.data(), raw(a), x.size(), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(y.data(), raw(b), y.size(), cudaMemcpyDeviceToHost));
  return x == y;
}

// The kernels under test, by name.
enum class Kernel { sequential, block, device };
inline const char* name_of(Kernel kernel) {
  return kernel == Kernel::sequential ? "sequential" : kernel == Kernel::block ? "block" : "device";
}
inline constexpr Kernel kKernels[] = {Kernel::sequential, Kernel::block, Kernel::device};
using dispatch::kCudaBlockWarps;
using dispatch::kCudaDeviceWarps;

template <class Op, class Source, class Sink, class Ends>
cudaError_t run(Kernel kernel, const Extent& extent, const Source& source, const Sink& sink,
                const Ends& ends, void* workspace, const Launch& launch) {
  using Wide = typename scan::cuda::Widened<Op, typename Source::V>::Op;
  switch (kernel) {
    case Kernel::sequential:
      return scan::launch_sequential<Wide>(extent, source, sink, ends, launch);
    case Kernel::block:
      return scan::launch_block<Wide, kCudaBlockWarps>(extent, source, sink, ends, launch);
    default:
      return scan::launch_device<Op, kCudaDeviceWarps>(extent, source, sink, ends, workspace,
                                                       launch);
  }
}

// [T,B,width] or [B,T,width] as lines of batch entries; reversed time starts at the last step.
template <class T>
Strided<T> strided(T* data, bool batch_major, bool reverse, Index lines, Index steps, Index width) {
  if (!data) return {};
  const Index line = batch_major ? steps * width : width,
              step = batch_major ? width : lines * width;
  return {reverse && steps > 0 ? data + (steps - 1) * step : data, line, reverse ? -step : step};
}

}  // namespace scanrnn::bench
