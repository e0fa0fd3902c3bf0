// SPDX-License-Identifier: Apache-2.0
// Non-owning views of memory. One legend for shapes everywhere, right-most fastest:
//   B batch   T steps   C input size   H hidden size   G gates per unit   L layers   D directions
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// Complex ones are of the bare recurrence alone: pairs (real, imaginary), as std::complex is.
// Only `reset` is of booleans, a byte each: anything but 0 is true.
enum class Dtype : std::uint8_t {
  float64,
  float32,
  bfloat16,
  float16,
  complex64,
  complex128,
  boolean,
  int32,
  int64
};

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::complex128:
      return 16;
    case Dtype::float64:
    case Dtype::complex64:
    case Dtype::int64:
      return 8;
    case Dtype::float32:
    case Dtype::int32:
      return 4;
    case Dtype::bfloat16:
    case Dtype::float16:
      return 2;
    case Dtype::boolean:
      break;
  }
  return 1;
}
constexpr bool is_integer(Dtype dtype) { return dtype == Dtype::int32 || dtype == Dtype::int64; }
constexpr bool is_complex(Dtype dtype) {
  return dtype == Dtype::complex64 || dtype == Dtype::complex128;
}
// What a dtype is computed in: itself, or float32 for 16-bit ones.
constexpr Dtype compute_type(Dtype dtype) { return size_of(dtype) == 2 ? Dtype::float32 : dtype; }
const char* name(Dtype dtype);

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {Kind::cuda, index}; }
  friend constexpr bool operator==(Device a, Device b) {
    return a.kind == b.kind && a.index == b.index;
  }
  friend constexpr bool operator!=(Device a, Device b) { return !(a == b); }
};
std::string name(Device device);  // "cpu", "cuda:1"

inline constexpr int kMaxRank = 3;

// Pointer, dtype, sizes and strides (in elements) of memory that somebody else owns and keeps
// alive until the work is done. A null pointer is an absent tensor, but for one whose sizes say
// that it has no elements.
struct TensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::int64_t, kMaxRank> strides{};

  explicit operator bool() const { return data != nullptr; }

  // A contiguous view, of at most kMaxRank sizes (value_error).
  static TensorView of(const void* data, Dtype dtype, std::initializer_list<std::int64_t> sizes,
                       Device device = {});
  std::string shape() const;  // "(2, 8, 256)"
};

// Memory for the library to work in, on the context's device: aligned to 128 bytes on CUDA and to
// 64 on the CPU.
struct Span {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace scanrnn
#pragma GCC visibility pop
