// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime, and the only place that asks a device what it is. Memory comes from a pool of the
// library's own and is ordered on the caller's stream.
#include "cuda/runtime.h"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "cuda/graph.h"
#include "cuda/staging.h"
#include "cuda/status.h"

namespace scanrnn {
namespace {

// The library's own pool of a device. Unlike the default pool it keeps what was freed for the next
// buffer, and it has no other user.
cudaMemPool_t pool_of(int device) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  const std::lock_guard<std::mutex> lock(mutex);
  cudaMemPool_t& pool = pools[device];
  if (!pool) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    SCANRNN_CUDA(cudaMemPoolCreate(&pool, &properties));
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    SCANRNN_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  }
  return pool;
}

// A device has too little memory: a bad_alloc, as for the host's, that says what was asked for.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& what) : what_(std::make_shared<std::string>(what)) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<std::string> what_;  // an exception's copy must not throw
};

// Memory for copies to and from the current device. Each thread has its own, so that none waits for
// another.
Staging& staging(int device) {
  thread_local std::map<int, Staging> all;
  return all[device];
}

struct Event {
  cudaEvent_t handle = nullptr;

  Event() { SCANRNN_CUDA(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(handle); }  // a stream that waits for it still does
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

cudaStream_t stream_of(Place place) { return static_cast<cudaStream_t>(place.stream); }

class CudaRuntime final : public Runtime {
 public:
  int count() const override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
  }
  DeviceInfo device(int index) const override {
    cudaDeviceProp properties{};
    DeviceInfo out;
    out.device = Device::cuda(index);
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return out;
    out.name = properties.name;
    out.units = properties.multiProcessorCount;
    out.memory = static_cast<std::int64_t>(properties.totalGlobalMem);
    out.shared_memory = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
    out.architecture = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
    return out;
  }
  std::string code() const override {
    return std::to_string(CUDART_VERSION / 1000) + "." +
           std::to_string(CUDART_VERSION % 1000 / 10) + ", code for " SCANRNN_CUDA_ARCHITECTURES;
  }
  std::unique_ptr<Backend> make_backend(const ContextOptions& options) const override {
    return make_cuda_backend(options);
  }
  Backend& counting_backend() const override { return cuda_counting_backend(); }

  void* allocate(Place place, std::size_t bytes) const override {
    const DeviceGuard guard(place.device);
    const BesideCaptures beside;
    const cudaMemPool_t pool = pool_of(place.device);
    void* out = nullptr;
    const auto take = [&] {
      const auto status = cudaMallocFromPoolAsync(&out, bytes, pool, stream_of(place));
      // It is reported here, and not by the next call again.
      if (status == cudaErrorMemoryAllocation) cudaGetLastError();
      return status;
    };
    cudaError_t status = take();
    if (status == cudaErrorMemoryAllocation) {
      // What the pool keeps may be in pieces that are too small.
      SCANRNN_CUDA(cudaMemPoolTrimTo(pool, 0));
      status = take();
    }
    if (status == cudaErrorMemoryAllocation) {
      throw OutOfMemory(name(Device::cuda(place.device)) + ": there is no memory left for " +
                        std::to_string(bytes) + " bytes");
    }
    check_status(status, "cudaMallocFromPoolAsync");
    return out;
  }
  void release(Place place, void* data) const noexcept override {
    const BesideCaptures beside;
    int before = 0;  // a destructor has nobody to tell about a failure
    cudaGetDevice(&before);
    cudaSetDevice(place.device);
    cudaFreeAsync(data, stream_of(place));
    cudaSetDevice(before);
  }
  void upload(Place place, void* to, const void* host, std::size_t bytes) const override {
    const DeviceGuard guard(place.device);
    const BesideCaptures beside;
    staging(place.device).upload(to, host, bytes, stream_of(place));
  }
  void download(Place place, void* host, const void* from, std::size_t bytes) const override {
    const DeviceGuard guard(place.device);
    const BesideCaptures beside;
    staging(place.device).download(host, from, bytes, stream_of(place));
  }
  std::unique_ptr<TimedGraph::Impl> timed_graph(Place place,
                                                std::function<void()> work) const override {
    auto out = std::make_unique<CudaTimedGraph>(place);
    out->capture(work);
    return out;
  }

  std::optional<Device> device_of(const void* pointer) const override {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
        (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)) {
      return Device::cuda(attributes.device);
    }
    cudaGetLastError();
    return {};
  }
  void order(Place before, void* after) const override {
    const DeviceGuard guard(before.device);
    const Event event;
    SCANRNN_CUDA(cudaEventRecord(event.handle, stream_of(before)));
    SCANRNN_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(after), event.handle, 0));
  }
  void synchronize(Place place) const override {
    const DeviceGuard guard(place.device);
    SCANRNN_CUDA(cudaStreamSynchronize(stream_of(place)));
  }
};

}  // namespace

const Runtime& cuda_runtime() {
  static const CudaRuntime runtime;
  return runtime;
}

DeviceInfo find_cuda_device(int index) {
  const int count = cuda_runtime().count();
  if (index < 0 || index >= count) {
    throw cuda_error("device: " + name(Device::cuda(index)) +
                     " was asked for; CUDA devices here: " + std::to_string(count));
  }
  return cuda_runtime().device(index);
}

}  // namespace scanrnn
