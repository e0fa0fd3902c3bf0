// SPDX-License-Identifier: Apache-2.0
// Where work runs: a device, and on it the caller's threads or the caller's stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/tensor.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// The factors of float32 matrix products on CUDA, as torch names them: float32, TF32 or bfloat16.
// Sums are float32. A CPU's are always float32, and so is the recurrence.
enum class MatmulPrecision : std::uint8_t { highest, high, medium };

struct ContextOptions {
  Device device;
  int threads = 0;            // CPU: at most 4096; 0 is as many as the process may use
  void* stream = nullptr;     // CUDA: the caller's cudaStream_t; null is the default stream
  void* cublas_lt = nullptr;  // CUDA: the caller's cublasLtHandle_t; null makes one
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
};

// One per thread: contexts share no state. Cheap on the CPU; on CUDA it queries the device once and
// owns a cuBLASLt handle unless it was given one. Never allocates device memory. Moved from, it can
// be assigned to or go, no more.
class Context {
 public:
  // Throws value_error for a bad option and cuda_error when the device is not there.
  explicit Context(ContextOptions options = {});
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  const ContextOptions& options() const;
  // What the planner sees of the device, and the rules that it decides by.
  const dispatch::DeviceLimits& limits() const;
  const dispatch::Profile& profile() const;
  // For plans from now on. Throws value_error for rules that name no strategy, or too many.
  void set_profile(const dispatch::Profile& profile);
  // The same without a copy: contexts may share one. Throws value_error for null, too.
  void set_profile(std::shared_ptr<const dispatch::Profile> profile);
  // Holds for what is planned and enqueued from now on. A plan from before stays good: its products
  // of a persistent kernel are as precise as they were to be when it was made.
  void set_matmul_precision(MatmulPrecision precision);
  // CUDA: the stream of what is enqueued from now on. What was made on another one stays there.
  void set_stream(void* stream);

  struct Impl;  // private to the library
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct DeviceInfo {
  Device device;
  std::string name;                // "NVIDIA H200", or the processor's name
  std::int64_t units = 0;          // multiprocessors, or threads that the process may use
  std::int64_t memory = 0;         // bytes
  std::int64_t shared_memory = 0;  // CUDA: bytes that one block can have
  std::string architecture;        // "sm_90", "AVX3"
};

// The CPU, then every CUDA device that can be used: without a driver there are none. Throws error
// where the environment's SCANRNN_ISA names no instruction set of this build.
std::vector<DeviceInfo> devices();
bool cuda_available();
// One "key: value" line each: version, compiler, BLAS, SIMD targets, CUDA architectures.
std::string build_info();

}  // namespace scanrnn
#pragma GCC visibility pop
