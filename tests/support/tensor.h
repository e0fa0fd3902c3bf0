// SPDX-License-Identifier: Apache-2.0
// Memory for a test: every byte that is not a value is 0xFF, which is a NaN in each dtype, so that
// reading it shows in the result and writing it shows in intact().
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "scanrnn/tensor.h"

namespace scanrnn::test {

// IEEE-like formats by their field widths, written out so that the library's conversions have a
// second opinion: round to nearest, ties to even.
struct Format {
  int exponent_bits, mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
Format format(Dtype dtype);

std::uint64_t encode(double value, Dtype dtype);

double decode(std::uint64_t bits, Dtype dtype);

inline double rounded(double value, Dtype dtype) { return decode(encode(value, dtype), dtype); }

// How a tensor lies in memory.
struct Memory {
  std::int64_t gap = 0;     // elements after each contiguous run of the last axis
  std::int64_t offset = 0;  // elements between an aligned address and the first value
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(Dtype dtype, std::vector<std::int64_t> sizes, Memory memory = {})
      : dtype_(dtype), sizes_(std::move(sizes)), memory_(memory) {
    const std::int64_t last = sizes_.empty() ? 1 : sizes_.back();
    run_ = last + memory_.gap;
    runs_ = 1;
    for (std::size_t i = 0; i + 1 < sizes_.size(); ++i) runs_ *= sizes_[i];
    first_ = kGuard + memory_.offset;
    bytes_.assign(static_cast<std::size_t>(first_ + runs_ * run_ + kGuard) * width() + kAlign,
                  0xFF);
  }
  Tensor(Dtype dtype, std::vector<std::int64_t> sizes, const std::vector<double>& values,
         Memory memory = {})
      : Tensor(dtype, std::move(sizes), memory) {
    fill(values);
  }

  std::int64_t count() const { return runs_ * last(); }

  // Right-most axis fastest.
  void fill(const std::vector<double>& values) {
    if (static_cast<std::int64_t>(values.size()) != count()) throw std::logic_error("fill");
    for (std::int64_t i = 0; i < count(); ++i) {
      const std::uint64_t bits = encode(values[static_cast<std::size_t>(i)], dtype_);
      const std::size_t bytes = std::min(width(), sizeof bits);
      std::memcpy(const_cast<std::uint8_t*>(address(i)), &bits, bytes);  // little-endian
    }
  }
  std::vector<double> values() const {
    std::vector<double> out(static_cast<std::size_t>(count()));
    for (std::int64_t i = 0; i < count(); ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, address(i), std::min(width(), sizeof bits));
      out[static_cast<std::size_t>(i)] = decode(bits, dtype_);
    }
    return out;
  }
  // The bytes of the values alone.
  std::vector<std::uint8_t> bits() const {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(count()) * width());
    for (std::int64_t i = 0; i < count(); ++i) {
      std::memcpy(out.data() + static_cast<std::size_t>(i) * width(), address(i), width());
    }
    return out;
  }
  // All of it, guards and gaps too, and where view() points in it.
  std::vector<std::uint8_t>& bytes() { return bytes_; }
  void poison() { std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{0xFF}); }

  // Guard bands and gaps are as they were made.
  bool intact() const {
    const std::uint8_t* next = bytes_.data();
    for (std::int64_t i = 0; i < count(); i += last()) {
      const std::uint8_t* begin = address(i);
      if (!blank(next, begin)) return false;
      next = begin + static_cast<std::size_t>(last()) * width();
    }
    return blank(next, bytes_.data() + bytes_.size());
  }
  // And no value was written since poison().
  bool untouched() const { return blank(bytes_.data(), bytes_.data() + bytes_.size()); }

  // Null where there is nothing, as an allocator gives it.
  TensorView view() {
    TensorView out;
    if (count() > 0) out.data = const_cast<std::uint8_t*>(address(0));
    out.dtype = dtype_;
    out.rank = static_cast<int>(sizes_.size());
    std::int64_t stride = 1;
    for (int i = out.rank - 1; i >= 0; --i) {
      out.sizes[static_cast<std::size_t>(i)] = sizes_[static_cast<std::size_t>(i)];
      out.strides[static_cast<std::size_t>(i)] = stride;
      stride *= i == out.rank - 1 ? run_ : sizes_[static_cast<std::size_t>(i)];
    }
    return out;
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr std::size_t kAlign = 64;

  std::size_t width() const { return size_of(dtype_); }
  std::int64_t last() const { return run_ - memory_.gap; }
  static bool blank(const std::uint8_t* begin, const std::uint8_t* end) {
    return std::all_of(begin, end, [](std::uint8_t byte) { return byte == 0xFF; });
  }
  const std::uint8_t* address(std::int64_t i) const {
    const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
    const std::size_t shift = (kAlign - base % kAlign) % kAlign;
    const std::int64_t at = first_ + (last() ? i / last() * run_ + i % last() : 0);
    return bytes_.data() + shift + static_cast<std::size_t>(at) * width();
  }

  Dtype dtype_ = Dtype::float32;
  std::vector<std::int64_t> sizes_;
  Memory memory_;
  std::int64_t run_ = 0, runs_ = 0, first_ = 0;
  std::vector<std::uint8_t> bytes_;
};

// Workspace of exactly so many bytes: aligned, poisoned, and watched on both sides.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : size_(bytes), bytes_(bytes + 3 * kAlign, 0xFF) {}
  // Null where there is nothing, as an allocator gives it.
  Span span() { return {size_ ? bytes_.data() + begin() : nullptr, size_}; }
  std::vector<std::uint8_t>& bytes() { return bytes_; }
  std::vector<std::uint8_t> contents() const {
    return {bytes_.data() + begin(), bytes_.data() + begin() + size_};
  }
  bool intact() const {
    const auto blank = [](auto begin, auto end) {
      return std::all_of(begin, end, [](std::uint8_t byte) { return byte == 0xFF; });
    };
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(begin());
    return blank(bytes_.begin(), first) &&
           blank(first + static_cast<std::ptrdiff_t>(size_), bytes_.end());
  }

 private:
  static constexpr std::size_t kAlign = 256;
  // At least one alignment of guard before, and what is left of two after.
  std::size_t begin() const {
    const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return 2 * kAlign - base % kAlign;
  }
  std::size_t size_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace scanrnn::test
