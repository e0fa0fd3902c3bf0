// SPDX-License-Identifier: Apache-2.0
// The only allocations of tensor memory, and the only waits for a device.
#include "scanrnn/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "api/check.h"
#include "platform.h"
#include "stack/backend.h"
#ifdef SCANRNN_WITH_CUDA
#include "cuda/status.h"
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

// What a device could not give. A bad_alloc, as of the host's memory, that says what was asked for.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& what) : what_(std::make_shared<std::string>(what)) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<std::string> what_;  // an exception's copy must not throw
};

// Pinned host memory through which pageable memory goes to and from a device: two chunks in turn,
// so that one is filled or emptied while the other travels.
class Staging {
 public:
  Staging() {
    for (Chunk& chunk : chunks_) {
      SCANRNN_CUDA(cudaHostAlloc(&chunk.memory, kChunk, cudaHostAllocDefault));
      SCANRNN_CUDA(cudaEventCreateWithFlags(&chunk.idle, cudaEventDisableTiming));
    }
  }
  ~Staging() {
    for (Chunk& chunk : chunks_) {
      if (chunk.idle) cudaEventSynchronize(chunk.idle);
      if (chunk.idle) cudaEventDestroy(chunk.idle);
      cudaFreeHost(chunk.memory);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Returns when `host` has been read.
  void upload(void* device, const void* host, std::size_t bytes, cudaStream_t stream) {
    for (std::size_t at = 0; at < bytes; at += kChunk) {
      const std::size_t count = std::min(kChunk, bytes - at);
      const Chunk& chunk = chunk_at(at);
      SCANRNN_CUDA(cudaEventSynchronize(chunk.idle));
      std::memcpy(chunk.memory, static_cast<const char*>(host) + at, count);
      SCANRNN_CUDA(cudaMemcpyAsync(static_cast<char*>(device) + at, chunk.memory, count,
                                   cudaMemcpyHostToDevice, stream));
      SCANRNN_CUDA(cudaEventRecord(chunk.idle, stream));
    }
  }
  // Returns when `host` has been written.
  void download(void* host, const void* device, std::size_t bytes, cudaStream_t stream) {
    std::size_t asked = 0;
    for (std::size_t at = 0; at < bytes; at += kChunk) {
      for (; asked < std::min(bytes, at + 2 * kChunk); asked += kChunk) {
        const Chunk& chunk = chunk_at(asked);
        SCANRNN_CUDA(cudaEventSynchronize(chunk.idle));
        SCANRNN_CUDA(cudaMemcpyAsync(chunk.memory, static_cast<const char*>(device) + asked,
                                     std::min(kChunk, bytes - asked), cudaMemcpyDeviceToHost,
                                     stream));
        SCANRNN_CUDA(cudaEventRecord(chunk.idle, stream));
      }
      const Chunk& chunk = chunk_at(at);
      SCANRNN_CUDA(cudaEventSynchronize(chunk.idle));
      std::memcpy(static_cast<char*>(host) + at, chunk.memory, std::min(kChunk, bytes - at));
    }
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{4} << 20;
  struct Chunk {
    void* memory = nullptr;
    cudaEvent_t idle = nullptr;  // its last copy is done
  };
  Chunk& chunk_at(std::size_t offset) { return chunks_[offset / kChunk % 2]; }

  Chunk chunks_[2];
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
  ~Event() { cudaEventDestroy(handle); }  // what waits for it goes on waiting
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

}  // namespace
#endif

Buffer::Buffer(Context& context, std::size_t bytes)
    : bytes_(bytes), device_(context.options().device), stream_(context.options().stream) {
  if (bytes == 0) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    const DeviceGuard guard(device_.index);
    const cudaError_t status = cudaMallocFromPoolAsync(&data_, bytes, pool_of(device_.index),
                                                       static_cast<cudaStream_t>(stream_));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it is reported here, and not by the next call again
      throw OutOfMemory(name(device_) + ": there is no memory left for " + std::to_string(bytes) +
                        " bytes");
    }
    check_status(status, "cudaMallocFromPoolAsync");
    return;
  }
#endif
  data_ = ::operator new(bytes, std::align_val_t{Arena::kAlignment});
  want_huge_pages(data_, bytes);
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

char* Buffer::at(std::size_t first, std::size_t bytes, const char* what) const {
  require(first <= bytes_ && bytes <= bytes_ - first, [&] {
    return std::string(what) + ": expected a part of a buffer of " + std::to_string(bytes_) +
           " bytes, got " + std::to_string(bytes) + " from " + std::to_string(first) + " on";
  });
  return static_cast<char*>(data_) + first;
}

void Buffer::upload(const void* host, std::size_t bytes, std::size_t first) {
  char* const device = at(first, bytes, "upload");
  if (bytes == 0) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    const DeviceGuard guard(device_.index);
    staging(device_.index).upload(device, host, bytes, static_cast<cudaStream_t>(stream_));
    return;
  }
#endif
  std::memcpy(device, host, bytes);
}

void Buffer::download(void* host, std::size_t bytes, std::size_t first) const {
  const char* const device = at(first, bytes, "download");
  if (bytes == 0) return;
#ifdef SCANRNN_WITH_CUDA
  if (device_.kind == Device::Kind::cuda) {
    const DeviceGuard guard(device_.index);
    staging(device_.index).download(host, device, bytes, static_cast<cudaStream_t>(stream_));
    return;
  }
#endif
  std::memcpy(host, device, bytes);
}

void order_streams(const Context& context, void* before, void* after) {
  if (before == after) return;
#ifdef SCANRNN_WITH_CUDA
  const ContextOptions& options = context.options();
  if (options.device.kind == Device::Kind::cuda) {
    const DeviceGuard guard(options.device.index);
    const Event event;
    SCANRNN_CUDA(cudaEventRecord(event.handle, static_cast<cudaStream_t>(before)));
    SCANRNN_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(after), event.handle, 0));
  }
#else
  static_cast<void>(context);
#endif
}

Device device_of(const void* pointer) {
#ifdef SCANRNN_WITH_CUDA
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
      (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)) {
    return Device::cuda(attributes.device);
  }
  cudaGetLastError();
#else
  static_cast<void>(pointer);
#endif
  throw type_error("expected memory of a CUDA device, got memory that CUDA does not know of");
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
