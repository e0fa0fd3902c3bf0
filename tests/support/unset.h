// SPDX-License-Identifier: Apache-2.0
// Tensors on a context's device: what a call reads is uploaded, and what it writes is memory that
// nobody has set, as an allocator gives it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "scanrnn/scanrnn.h"
#include "support/case.h"

namespace scanrnn::test {

class Unset {
 public:
  explicit Unset(Context& context) : context_(context) {}

  TensorView given(Dtype dtype, const std::vector<std::int64_t>& sizes, const Values& values) {
    Tensor host(dtype, sizes, values);
    const auto bits = host.bits();
    const TensorView out = unset(dtype, sizes);
    memory_.back().upload(bits.data(), bits.size());
    return out;
  }
  TensorView unset(Dtype dtype, const std::vector<std::int64_t>& sizes) {
    TensorView out = TensorView::of(nullptr, dtype, {}, context_.options().device);
    std::int64_t count = 1;
    out.rank = static_cast<int>(sizes.size());
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      out.sizes[axis] = sizes[axis];
      out.strides[axis] = count;
      count *= sizes[axis];
    }
    // A tensor without elements is there, too.
    out.data =
        span(std::max<std::size_t>(1, static_cast<std::size_t>(count) * size_of(dtype))).data;
    return out;
  }
  Span span(std::size_t bytes) {
    memory_.emplace_back(context_, bytes);
    return memory_.back().span();
  }
  Values values(const TensorView& view) {
    std::int64_t count = 1;
    for (int axis = 0; axis < view.rank; ++axis)
      count *= view.sizes[static_cast<std::size_t>(axis)];
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * size_of(view.dtype));
    for (const Buffer& buffer : memory_) {
      if (buffer.data() == view.data) buffer.download(bytes.data(), bytes.size());
    }
    Values out;
    for (std::size_t at = 0; at < bytes.size(); at += size_of(view.dtype)) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + at, size_of(view.dtype));
      out.push_back(decode(bits, view.dtype));
    }
    return out;
  }

 private:
  Context& context_;
  std::vector<Buffer> memory_;
};

}  // namespace scanrnn::test
