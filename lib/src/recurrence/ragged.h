// SPDX-License-Identifier: Apache-2.0
// The integers that say which steps of a ragged batch there are (docs/ragged.md).
#pragma once

#include "scanrnn/layer.h"

namespace scanrnn {

// int32 or int64 of one axis.
class Integers {
 public:
  explicit Integers(const TensorView& view)
      : data_(view.data), stride_(view.strides[0]), wide_(view.dtype == Dtype::int64) {}
  std::int64_t operator[](std::int64_t i) const {
    return wide_ ? static_cast<const std::int64_t*>(data_)[i * stride_]
                 : static_cast<const std::int32_t*>(data_)[i * stride_];
  }

 private:
  const void* data_;
  std::int64_t stride_;
  bool wide_;
};

}  // namespace scanrnn
