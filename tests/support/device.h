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

// How many GPUs must be there: the number in SCANRNN_REQUIRE_GPU.
inline int required_gpus() {
  const char* count = std::getenv("SCANRNN_REQUIRE_GPU");
  return count ? std::atoi(count) : 0;
}

// Ends a test that lacks `count` GPUs. It is skipped and says so, or fails where they are required.
#define SCANRNN_LACKS_GPUS(count, what)                                                        \
  do {                                                                                         \
    if (::scanrnn::test::required_gpus() >= (count)) {                                         \
      FAIL() << (what) << ", and SCANRNN_REQUIRE_GPU is " << ::scanrnn::test::required_gpus(); \
    }                                                                                          \
    GTEST_SKIP() << (what);                                                                    \
  } while (false)

}  // namespace scanrnn::test
