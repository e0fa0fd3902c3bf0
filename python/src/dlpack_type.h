// SPDX-License-Identifier: Apache-2.0
// What DLPack calls the dtypes of arrays, for those that come in and those that go out.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>

#include "scanrnn/tensor.h"

namespace scanrnn {

inline DLDataType dlpack_type(Dtype dtype) {
  const DLDataTypeCode code = dtype == Dtype::boolean    ? kDLBool
                              : dtype == Dtype::bfloat16 ? kDLBfloat
                              : is_integer(dtype)        ? kDLInt
                              : is_complex(dtype)        ? kDLComplex
                                                         : kDLFloat;
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
}

}  // namespace scanrnn
