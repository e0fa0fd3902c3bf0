// SPDX-License-Identifier: Apache-2.0
// Recordings on the CPU; what is theirs on CUDA is in cuda/stream_test.cpp.
#include "scanrnn/recording.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace scanrnn::test {
namespace {

TEST(Recording, RunsItsWorkEachTime) {
  Context context;
  int count = 0;
  Recording recording(context, [&count] { ++count; });
  EXPECT_EQ(count, 0) << "nothing runs while it is made";
  recording.run();
  EXPECT_EQ(count, 1);
  EXPECT_GE(recording.milliseconds(), 0);
  EXPECT_EQ(count, 2);
  Recording moved = std::move(recording);
  moved.run();
  EXPECT_EQ(count, 3);
}

TEST(Recording, SaysHowLongItTook) {
  Context context;
  const auto pause = std::chrono::milliseconds(20);
  Recording recording(context, [pause] { std::this_thread::sleep_for(pause); });
  const double taken = recording.milliseconds();
  EXPECT_GE(taken, 20);
  EXPECT_LT(taken, 2000) << "milliseconds, and not another unit";
}

TEST(Recording, PassesErrorsOn) {
  Context context;
  Recording recording(context, [] { throw std::runtime_error("the work's own"); });
  EXPECT_THROW(recording.run(), std::runtime_error);
  EXPECT_THROW(recording.milliseconds(), std::runtime_error);
}

}  // namespace
}  // namespace scanrnn::test
