// SPDX-License-Identifier: Apache-2.0
// Timed graphs on the CPU; what is theirs on CUDA is in cuda/stream_test.cpp.
#include "scanrnn/timed_graph.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "scanrnn/error.h"

namespace scanrnn::test {
namespace {

TEST(TimedGraph, RunsItsWorkEachTime) {
  Context context;
  int count = 0;
  TimedGraph graph(context, [&count] { ++count; });
  EXPECT_EQ(count, 0) << "nothing runs while it is made";
  graph.run();
  EXPECT_EQ(count, 1);
  EXPECT_GE(graph.milliseconds(), 0);
  EXPECT_EQ(count, 2);
  TimedGraph moved = std::move(graph);
  moved.run();
  EXPECT_EQ(count, 3);
}

TEST(TimedGraph, SaysHowLongItTook) {
  Context context;
  const auto pause = std::chrono::milliseconds(20);
  TimedGraph graph(context, [pause] { std::this_thread::sleep_for(pause); });
  const double taken = graph.milliseconds();
  EXPECT_GE(taken, 20);
  EXPECT_LT(taken, 2000) << "milliseconds, and not another unit";
}

TEST(TimedGraph, WithoutWork) {
  Context context;
  try {
    TimedGraph graph(context, {});
    FAIL() << "nothing was thrown";
  } catch (const value_error& e) {
    EXPECT_STREQ(e.what(), "work: expected a function, got an empty one");
  }
}

TEST(TimedGraph, PassesErrorsOn) {
  Context context;
  TimedGraph graph(context, [] { throw std::runtime_error("the work's own"); });
  EXPECT_THROW(graph.run(), std::runtime_error);
  EXPECT_THROW(graph.milliseconds(), std::runtime_error);
}

}  // namespace
}  // namespace scanrnn::test
