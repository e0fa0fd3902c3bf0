// SPDX-License-Identifier: Apache-2.0
// DLPack's binary interface (https://dmlc.github.io/dlpack/latest/c_api.html), version 1 and what
// came before it: layouts that every producer and consumer agrees on, and nothing else.
#pragma once

#include <cstdint>

namespace scanrnn::dlpack {

inline constexpr std::uint32_t kMajor = 1, kMinor = 0;  // what we write
inline constexpr const char* kVersioned = "dltensor_versioned";
inline constexpr const char* kLegacy = "dltensor";

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt, kUInt, kFloat, kOpaque, kBfloat, kComplex, kBool };
inline constexpr std::uint64_t kReadOnly = 1;  // a flag

struct Device {
  std::int32_t type, id;
};
struct Type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  Type dtype;
  std::int64_t *sizes, *strides;  // in elements; null strides: contiguous
  std::uint64_t byte_offset;
};
struct Legacy {
  Tensor tensor;
  void* context;
  void (*release)(Legacy*);
};
struct Versioned {
  std::uint32_t major, minor;
  void* context;
  void (*release)(Versioned*);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace scanrnn::dlpack
