// SPDX-License-Identifier: Apache-2.0
// Names and shapes of tensors, in words.
#include "scanrnn/tensor.h"

#include "scanrnn/error.h"

namespace scanrnn {

const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return "float64";
    case Dtype::float32:
      return "float32";
    case Dtype::bfloat16:
      return "bfloat16";
    case Dtype::float16:
      return "float16";
    case Dtype::complex64:
      return "complex64";
    case Dtype::complex128:
      return "complex128";
    case Dtype::boolean:
      return "bool";
    case Dtype::int32:
      return "int32";
    case Dtype::int64:
      return "int64";
  }
  return "?";
}

std::string name(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

TensorView TensorView::of(const void* data, Dtype dtype, std::initializer_list<std::int64_t> sizes,
                          Device device) {
  if (sizes.size() > kMaxRank) {
    throw value_error("sizes: expected at most " + std::to_string(kMaxRank) + ", got " +
                      std::to_string(sizes.size()));
  }
  TensorView out;
  out.data = const_cast<void*>(data);
  out.dtype = dtype;
  out.device = device;
  for (std::int64_t size : sizes) out.sizes[static_cast<std::size_t>(out.rank++)] = size;
  std::int64_t stride = 1;
  for (int axis = out.rank - 1; axis >= 0; --axis) {
    out.strides[static_cast<std::size_t>(axis)] = stride;
    stride *= out.sizes[static_cast<std::size_t>(axis)];
  }
  return out;
}

std::string TensorView::shape() const {
  std::string out = "(";
  for (int axis = 0; axis < rank; ++axis) {
    out += (axis ? ", " : "") + std::to_string(sizes[static_cast<std::size_t>(axis)]);
  }
  return out + (rank == 1 ? ",)" : ")");
}

}  // namespace scanrnn
