// SPDX-License-Identifier: Apache-2.0
// The only allocations of tensor memory, and the only waits for a device.
#include "scanrnn/memory.h"

#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "backend.h"
#include "check.h"
#ifdef SCANRNN_WITH_CUDA
#include "cuda_status.h"
#endif

namespace scanrnn {
#ifdef SCANRNN_WITH_CUDA
namespace {

// The library's own pool of a device: unlike the default one it keeps what was freed for the next
// buffer, and keeping it is nobody else's business.
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

}  // namespace
#endif

Buffer::Buffer(Context& context, std::size_t bytes)
    : bytes_(bytes), device_(context.options().device), stream_(context.options().stream) {
  if (bytes == 0) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    const DeviceGuard guard(device_.index);
    SCANRNN_CUDA(cudaMallocFromPoolAsync(&data_, bytes, pool_of(device_.index),
                                         static_cast<cudaStream_t>(stream_)));
    return;
  }
#endif
  data_ = ::operator new(bytes, std::align_val_t{Arena::kAlignment});
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
    stream_ = other.stream_;
  }
  return *this;
}

void Buffer::release() noexcept {
  if (!data_) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    int before = 0;  // a destructor has nobody to tell about a failure
    cudaGetDevice(&before);
    cudaSetDevice(device_.index);
    cudaFreeAsync(data_, static_cast<cudaStream_t>(stream_));
    cudaSetDevice(before);
    return;
  }
#endif
  ::operator delete(data_, std::align_val_t{Arena::kAlignment});
}

void Buffer::upload(const void* host, std::size_t bytes) {
  require(bytes <= bytes_, "upload: " + std::to_string(bytes) +
                               " bytes do not fit in a buffer of " + std::to_string(bytes_));
  if (bytes == 0) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    const DeviceGuard guard(device_.index);
    const auto stream = static_cast<cudaStream_t>(stream_);
    SCANRNN_CUDA(cudaMemcpyAsync(data_, host, bytes, cudaMemcpyHostToDevice, stream));
    SCANRNN_CUDA(cudaStreamSynchronize(stream));
    return;
  }
#endif
  std::memcpy(data_, host, bytes);
}

void Buffer::download(void* host, std::size_t bytes) const {
  require(bytes <= bytes_, "download: " + std::to_string(bytes) +
                               " bytes were asked of a buffer of " + std::to_string(bytes_));
  if (bytes == 0) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    const DeviceGuard guard(device_.index);
    const auto stream = static_cast<cudaStream_t>(stream_);
    SCANRNN_CUDA(cudaMemcpyAsync(host, data_, bytes, cudaMemcpyDeviceToHost, stream));
    SCANRNN_CUDA(cudaStreamSynchronize(stream));
    return;
  }
#endif
  std::memcpy(host, data_, bytes);
}

void synchronize(Context& context) {
#ifdef SCANRNN_WITH_CUDA
  const ContextOptions& options = context.options();
  if (options.device.kind == Device::Kind::cuda) {
    const DeviceGuard guard(options.device.index);
    SCANRNN_CUDA(cudaStreamSynchronize(static_cast<cudaStream_t>(options.stream)));
  }
#else
  static_cast<void>(context);
#endif
}

}  // namespace scanrnn
