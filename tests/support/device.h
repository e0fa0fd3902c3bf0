// SPDX-License-Identifier: Apache-2.0
// Which processor the tests of layers are run on: the CPU, or, where SCANRNN_TEST_DEVICE is "cuda",
// the first CUDA device. The tests are the same.
#pragma once

#include <cstdlib>
#include <string>

#include "scanrnn/tensor.h"

namespace scanrnn::test {

inline Device test_device() {
  const char* name = std::getenv("SCANRNN_TEST_DEVICE");
  return name && std::string(name) == "cuda" ? Device::cuda() : Device::cpu();
}
inline bool on_cuda() { return test_device().kind == Device::Kind::cuda; }

}  // namespace scanrnn::test
