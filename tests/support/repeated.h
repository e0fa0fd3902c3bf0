// SPDX-License-Identifier: Apache-2.0
// Tensors of more than 2^31 elements on a GPU: a few sequences again and again, and where one of
// them lies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "support/case.h"
#include "support/cuda.h"
#include "support/mirror.h"

namespace scanrnn::test {

inline constexpr std::int64_t kMany = std::int64_t{1} << 31;

class CudaLargeTest : public CudaTest {
 protected:
  // True where there is no memory for so many bytes, that of freed buffers included.
  static bool lacks(std::size_t bytes) {
    REQUIRE_CUDA(cudaDeviceSynchronize());
    try {
      const Buffer all(shared_context(1), bytes);
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
  }
};

// `rows` rows of `from`, each `width` bytes, `copies` times beside each other.
inline void repeat(const Buffer& from, std::int64_t rows, std::size_t width, std::int64_t copies,
                   void* to) {
  const std::size_t pitch = width * static_cast<std::size_t>(copies);
  const auto copy = [&](std::int64_t first, const void* source, std::size_t spacing,
                        std::int64_t count) {
    if (rows == 1) {  // whose pitch may be more than CUDA takes
      REQUIRE_CUDA(cudaMemcpyAsync(static_cast<char*>(to) + static_cast<std::size_t>(first) * width,
                                   source, width * static_cast<std::size_t>(count),
                                   cudaMemcpyDeviceToDevice, nullptr));
      return;
    }
    REQUIRE_CUDA(cudaMemcpy2DAsync(static_cast<char*>(to) + static_cast<std::size_t>(first) * width,
                                   pitch, source, spacing, width * static_cast<std::size_t>(count),
                                   static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice,
                                   nullptr));
  };
  copy(0, from.data(), width, 1);
  for (std::int64_t done = 1; done < copies; done *= 2) {
    copy(done, to, pitch, std::min(done, copies - done));
  }
}

// `rows` times `width` bytes, `pitch` apart and `offset` from the beginning.
inline Values fetch(const void* from, std::size_t pitch, std::size_t offset, std::size_t width,
                    std::int64_t rows, Dtype dtype) {
  std::vector<std::uint8_t> bytes(width * static_cast<std::size_t>(rows));
  REQUIRE_CUDA(cudaMemcpy2D(bytes.data(), width, static_cast<const char*>(from) + offset, pitch,
                            width, static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost));
  Values out;
  for (std::size_t at = 0; at < bytes.size(); at += size_of(dtype)) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, size_of(dtype));
    out.push_back(decode(bits, dtype));
  }
  return out;
}

// [T,B,.] with `few` sequences as the batch, repeated `copies` times.
struct Repeated {
  const Case& few;
  std::int64_t copies;
  Context& context;

  Buffer place(const Values& values, std::int64_t outer, std::int64_t width) const {
    Tensor tensor(few.layer.dtype, {outer, few.batch * width}, values);
    const auto bytes = tensor.bits();
    Buffer once(context, bytes.size());
    once.upload(bytes.data(), bytes.size());
    Buffer out(context, bytes.size() * static_cast<std::size_t>(copies));
    repeat(once, outer, bytes.size() / static_cast<std::size_t>(outer), copies, out.data());
    return out;
  }
};

}  // namespace scanrnn::test
