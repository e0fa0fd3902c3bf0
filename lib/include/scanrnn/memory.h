// SPDX-License-Identifier: Apache-2.0
// Memory on a context's device, for a caller that has no allocator of its own.
#pragma once

#include <cstddef>
#include <string>

#include "scanrnn/context.h"

#pragma GCC visibility push(default)  // exported from the library

namespace scanrnn {

// Owns memory of one device, 256-byte aligned. On CUDA everything is ordered on the stream of the
// context that it was made with: allocation, copies and release; the context must outlive it.
class Buffer {
 public:
  Buffer() = default;
  // Throws std::bad_alloc where there is not that much, or cuda_error. The contents are not set.
  Buffer(Context& context, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Span span() const { return {data_, bytes_}; }

  // From or to host memory, from byte `first` of the buffer on and not past its end. Both return
  // when the host memory may be used again; to and from CUDA they go through pinned memory that the
  // calling thread keeps.
  void upload(const void* host, std::size_t bytes, std::size_t first = 0);
  void download(void* host, std::size_t bytes, std::size_t first = 0) const;

 private:
  void release() noexcept;
  char* at(std::size_t first, std::size_t bytes, const char* what) const;

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  void* stream_ = nullptr;
};

// What is enqueued on the stream `after` of the context's device from now on waits for what has
// been enqueued on `before`; the host does not. On the CPU, and for one and the same stream,
// nothing.
void order_streams(const Context& context, void* before, void* after);

// The device on which memory lies that CUDA knows of; type_error for any other, which calls it by
// this name.
Device device_of(const void* pointer, const std::string& name = "pointer");

// Waits for everything that was enqueued on the context's stream. Nothing else in the library waits
// for a device, but for Buffer's copies.
void synchronize(Context& context);

}  // namespace scanrnn

#pragma GCC visibility pop
