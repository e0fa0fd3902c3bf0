// SPDX-License-Identifier: Apache-2.0
// XLA's foreign-function interface (https://openxla.org/xla/custom_call, API 0.x) as far as we use
// it: the layouts of a binary interface. tests/python/test_jax.py compares every one of them with
// the header of the jaxlib that is installed, so that no build needs jaxlib.
#pragma once

#include <cstddef>
#include <cstdint>

namespace scanrnn::xla {

inline constexpr int kMajor = 0, kMinor = 1;  // the least version with all that is used here

struct Extension {
  std::size_t size;
  int type;  // 1: metadata
  Extension* next;
};
struct Version {
  std::size_t size;
  Extension* extensions;
  int major, minor;
};
struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;
struct ErrorArgs {
  std::size_t size;
  Extension* extensions;
  const char* message;
  int code;
};
struct ExecutionContext;
struct StreamArgs {
  std::size_t size;
  Extension* extensions;
  ExecutionContext* context;
  void* stream;  // out
};
struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArgs*);
  void* get_message;
  void* destroy_error;
  void* register_handler;
  Error* (*get_stream)(StreamArgs*);
};

enum DataType : int { kS64 = 5, kU8 = 6, kF16 = 10, kF32 = 11, kF64 = 12, kBF16 = 16 };
struct Buffer {
  std::size_t size;
  Extension* extensions;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* sizes;
};
struct Buffers {  // arguments or results
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* types;
  Buffer** buffers;
};
struct Text {
  const char* data;
  std::size_t length;
};
struct Scalar {
  int dtype;
  void* value;
};
enum AttributeType : int { kScalar = 3, kString = 4 };
struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* types;
  Text** names;
  void** values;
};
enum Stage : int { kExecute = 3 };
struct CallFrame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;
  void* future;
};

}  // namespace scanrnn::xla
