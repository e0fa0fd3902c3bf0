// SPDX-License-Identifier: Apache-2.0
// Buffers, and the order of streams: checks; the runtime of a processor does the rest.
#include "scanrnn/memory.h"

#include <string>
#include <utility>

#include "api/check.h"
#include "stack/runtime.h"

namespace scanrnn {

Buffer::Buffer(Context& context, std::size_t bytes)
    : bytes_(bytes), device_(context.options().device), stream_(context.options().stream) {
  if (bytes > 0) data_ = context.impl().runtime->allocate({device_.index, stream_}, bytes);
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
  if (data_) find_runtime(device_.kind)->release({device_.index, stream_}, data_);
}

char* Buffer::at(std::size_t first, std::size_t bytes, const char* what) const {
  require(first <= bytes_ && bytes <= bytes_ - first, [&] {
    return std::string(what) + ": expected a part of a buffer of " + std::to_string(bytes_) +
           " bytes, got " + std::to_string(bytes) + " from " + std::to_string(first) + " on";
  });
  return static_cast<char*>(data_) + first;
}

void Buffer::upload(const void* host, std::size_t bytes, std::size_t first) {
  char* const to = at(first, bytes, "upload");
  if (bytes > 0) find_runtime(device_.kind)->upload({device_.index, stream_}, to, host, bytes);
}

void Buffer::download(void* host, std::size_t bytes, std::size_t first) const {
  const char* const from = at(first, bytes, "download");
  if (bytes > 0) find_runtime(device_.kind)->download({device_.index, stream_}, host, from, bytes);
}

void order_streams(const Context& context, void* before, void* after) {
  if (before == after) return;
  context.impl().runtime->order({context.options().device.index, before}, after);
}

Device device_of(const void* pointer, const std::string& name) {
  const Runtime* cuda = find_runtime(Device::Kind::cuda);
  const std::optional<Device> found = cuda ? cuda->device_of(pointer) : std::nullopt;
  if (!found) {
    throw type_error(name +
                     ": expected memory of a CUDA device, got memory that CUDA does not know of");
  }
  return *found;
}

void synchronize(Context& context) { context.impl().runtime->synchronize(place_of(context)); }

}  // namespace scanrnn
