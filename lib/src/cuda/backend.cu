// SPDX-License-Identifier: Apache-2.0
// A CUDA device as a backend: its limits, its handle of cuBLASLt and dropout here, layers in
// cuda/linear.cu and cuda/dense.cu. Nothing allocates device memory or waits for the device.
#include "cuda/kernels/dense.h"
#include "cuda/kernels/scan.h"
#include "cuda/linear.h"
#include "cuda/pointwise.cuh"
#include "cuda/run.cuh"
#include "cuda/runtime.h"

namespace scanrnn {
namespace {

class CudaBackend : public Backend {
 public:
  CudaBackend() { limits_.processor = dispatch::Processor::cuda; }  // counts, and runs nothing
  explicit CudaBackend(const ContextOptions& options) : CudaBackend() {
    device_ = options.device.index;
    stream_ = static_cast<cudaStream_t>(options.stream);
    const DeviceInfo found = find_cuda_device(device_);
    limits_.units = found.units;
    limits_.shared_bytes = found.shared_memory;
    const dispatch::Profile* measured = dispatch::find_profile(found.architecture);
    if (measured) profile_ = measured;
    const DeviceGuard guard(device_);
    gemm_ = std::make_unique<CudaGemm>(options.cublas_lt, options.matmul_precision);
  }
  ~CudaBackend() override {
    if (!gemm_) return;
    int before = 0;  // a destructor has nobody to tell about a failure
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    gemm_.reset();
    cudaSetDevice(before);
  }

  const dispatch::DeviceLimits& limits() const override { return limits_; }
  const dispatch::Profile& default_profile() const override { return *profile_; }
  Dtype inner_type(Dtype dtype) const override { return dtype; }
  void set_matmul_precision(MatmulPrecision precision) override { gemm_->set_precision(precision); }
  void set_stream(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) override {
    const auto run = call.is_dense() ? cuda_dense_forward : cuda_forward;
    on_device(arena, [&] { run(plan, call, arena, gemm_.get(), stream_); });
  }
  void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) override {
    const auto run = call.is_dense() ? cuda_dense_backward : cuda_backward;
    on_device(arena, [&] { run(plan, call, arena, gemm_.get(), stream_); });
  }
  void scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena) override {
    on_device(arena, [&] { cuda_scan(plan, args, arena, stream_); });
  }
  void scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args,
                     Arena& arena) override {
    on_device(arena, [&] { cuda_scan_backward(plan, args, arena, stream_); });
  }
  void copy(const TensorView& from, const TensorView& to) override {
    throw type_error(std::string("copy: CUDA works in the tensors' own dtype, got ") +
                     name(from.dtype) + " and " + name(to.dtype));
  }
  void dropout(const TensorView& from, const TensorView& to, double share,
               std::uint64_t seed) override {
    const DeviceGuard guard(device_);
    const Index steps = from.sizes[0], batch = from.sizes[1], width = from.sizes[2];
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      const Tile all{0, steps, 0, batch};
      pointwise::
          drop<<<pointwise::blocks_for(steps * batch * width), pointwise::kThreads, 0, stream_>>>(
              as_const(walked<T>(from, all, false)), walked<T>(to, all, false), steps, batch, width,
              drop_threshold(share), 1.0 / (1.0 - share), seed);
      SCANRNN_CUDA(cudaGetLastError());
    });
  }

 private:
  template <class F>
  void on_device(const Arena& arena, F&& work) {
    if (arena.counting()) return work();
    const DeviceGuard guard(device_);
    work();
  }

  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  dispatch::DeviceLimits limits_;
  const dispatch::Profile* profile_ = &dispatch::generic_cuda_profile();
  std::unique_ptr<CudaGemm> gemm_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const ContextOptions& options) {
  return std::make_unique<CudaBackend>(options);
}
Backend& cuda_counting_backend() {
  static CudaBackend backend;
  return backend;
}

}  // namespace scanrnn
