// SPDX-License-Identifier: Apache-2.0
// What the stand-alone checks of the CUDA engine share: inputs, a float64 reference that walks one
// step at a time, errors, timing by graph replays. Nothing is timed that was not compared first.
#pragma once

#include <thrust/device_vector.h>
#include <thrust/inner_product.h>
#include <thrust/reduce.h>
#include <thrust/transform_reduce.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "recurrence.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/scan/cuda_block.cuh"
#include "scanrnn/scan/cuda_device.cuh"

#define CHECK_CUDA(call)                                                 \
  do {                                                                   \
    const cudaError_t status_ = (call);                                  \
    if (status_ != cudaSuccess) {                                        \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(status_));                         \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

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

__host__ __device__ inline std::uint32_t hash(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32);
}
// Uniform in [0, 1).
__host__ __device__ inline float uniform(std::uint64_t seed, std::uint64_t i) {
  return static_cast<float>(hash(seed * 0x2545f4914f6cdd1dull + i) >> 8) * 0x1p-24f;
}

enum class Fill { decay, kept, value, logit, extreme, zero };

template <class T>
__global__ void fill_kernel(T* out, Index count, Fill fill, std::uint64_t seed) {
  const Index stride = Index{blockDim.x} * gridDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float u = uniform(seed, i), s = 2 * u - 1;
    double x = 0;
    switch (fill) {
      case Fill::decay:
        x = 1.0 / (1 + exp(-3.0 * s));
        break;
      case Fill::kept:
        x = 1 - 1e-7 * u;
        break;
      case Fill::value:
        x = s;
        break;
      case Fill::logit:
        x = 3 * s;
        break;
      case Fill::extreme:
        x = 30 * s;
        break;
      case Fill::zero:
        break;
    }
    if constexpr (sizeof(T) == 2) {
      out[i] = static_cast<T>(static_cast<float>(x));
    } else {
      out[i] = static_cast<T>(x);
    }
  }
}
template <class T>
thrust::device_vector<T> filled(Index count, Fill fill, std::uint64_t seed) {
  thrust::device_vector<T> out(count);
  if (count > 0) {
    fill_kernel<<<1024, 256>>>(thrust::raw_pointer_cast(out.data()), count, fill, seed);
    CHECK_CUDA(cudaGetLastError());
  }
  return out;
}
template <class T>
T* raw(thrust::device_vector<T>& v) {
  return v.empty() ? nullptr : thrust::raw_pointer_cast(v.data());
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

template <class T>
bool same_bits(thrust::device_vector<T>& a, thrust::device_vector<T>& b) {
  std::vector<char> x(a.size() * sizeof(T)), y(b.size() * sizeof(T));
  CHECK_CUDA(cudaMemcpy(x.data(), raw(a), x.size(), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(y.data(), raw(b), y.size(), cudaMemcpyDeviceToHost));
  return x == y;
}

struct Timing {
  double ms, spread;
};

// Median over replays of a graph of `calls` calls, each given its index so that it can rotate its
// buffers; capturing also shows that a call neither allocates nor synchronises.
inline Timing time_calls(cudaStream_t stream, int calls, const std::function<void(int)>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) {
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(executable, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms / calls);
  }
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  CHECK_CUDA(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.back() - times.front()};
}

__global__ void copy_kernel(const float4* from, float4* to, Index count) {
  const Index stride = Index{blockDim.x} * gridDim.x;
  Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = from[i + k * stride];
#pragma unroll
    for (int k = 0; k < 4; ++k) to[i + k * stride] = v[k];
  }
  for (; i < count; i += stride) to[i] = from[i];
}

// Bandwidth of copying 4 GiB, read and written bytes together: the best of what copies.
inline double copy_gbps(cudaStream_t stream, int units) {
  const Index bytes = Index{1} << 32;
  auto from = filled<float>(bytes / 4, Fill::value, 7);
  thrust::device_vector<float> to(bytes / 4);
  double best = HUGE_VAL;
  for (const int blocks : {8 * units, 64 * units, static_cast<int>(bytes / 16 / 512 / 4)}) {
    best = std::min(best, time_calls(stream, 2, [&](int) {
                            copy_kernel<<<blocks, 512, 0, stream>>>(
                                reinterpret_cast<const float4*>(raw(from)),
                                reinterpret_cast<float4*>(raw(to)), bytes / 16);
                          }).ms);
  }
  const auto driver = time_calls(stream, 2, [&](int) {
    CHECK_CUDA(cudaMemcpyAsync(raw(to), raw(from), bytes, cudaMemcpyDeviceToDevice, stream));
  });
  std::printf("copy: kernel %.0f GB/s, driver %.0f GB/s\n", 2.0 * bytes / best / 1e6,
              2.0 * bytes / driver.ms / 1e6);
  return 2.0 * bytes / std::min(best, driver.ms) / 1e6;
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

// One result file of the schema that all benchmarks share.
class Report {
 public:
  Report(const char* path, int argc, char** argv, double copy) : path_(path), copy_(copy) {
    for (int i = 0; i < argc; ++i) command_ += (i ? " " : "") + std::string(argv[i]);
  }
  double copy() const { return copy_; }
  void add(const std::string& row) { rows_ += (rows_.empty() ? "    " : ",\n    ") + row; }
  ~Report() {
    if (!path_) return;
    std::FILE* file = std::fopen(path_, "w");
    if (!file) return;
    int device, driver, runtime;
    cudaDeviceProp properties;
    cudaGetDevice(&device);
    cudaGetDeviceProperties(&properties, device);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto variable = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value ? value : "");
    };
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    std::fprintf(file,
                 "{\n  \"gpu\": \"%s\", \"driver\": \"%d\", \"cuda\": \"%d\", \"commit\": \"%s\", "
                 "\"dirty\": %s,\n  \"command\": \"%s\", \"date\": \"%s\", \"copy_gbps\": %.0f,\n"
                 "  \"rows\": [\n%s\n  ]\n}\n",
                 properties.name, driver, runtime, variable("BENCH_COMMIT").c_str(),
                 variable("BENCH_DIRTY") == "0" ? "false" : "true", command_.c_str(), date, copy_,
                 rows_.c_str());
    std::fclose(file);
  }

 private:
  const char* path_;
  double copy_;
  std::string command_, rows_;
};

inline std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace scanrnn::bench
