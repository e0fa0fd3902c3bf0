// SPDX-License-Identifier: Apache-2.0
// Where SCANRNN_REQUIRE_GPU asks for GPUs, the tests have them: a build or a run without any does
// not pass for want of tests.
#include <gtest/gtest.h>

#include "support/device.h"
#include "support/mirror.h"

namespace scanrnn::test {
namespace {

TEST(Device, RequiredGpusAreThere) {
  for (int index = 0; index < required_gpus(); ++index) {
    EXPECT_TRUE(on_cuda()) << "SCANRNN_TEST_DEVICE is not cuda";
    ContextOptions options;
    options.device = Device::cuda(index);
    EXPECT_NO_THROW(Context context(options)) << "cuda:" << index;
  }
}

}  // namespace
}  // namespace scanrnn::test
