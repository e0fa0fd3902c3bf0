// SPDX-License-Identifier: Apache-2.0
// The watchdog of all tests says the name of one that takes too long, and nothing of the others.
#include "support/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

namespace scanrnn::test {
namespace {

using std::chrono::milliseconds;

const testing::TestInfo& this_test() {
  return *testing::UnitTest::GetInstance()->current_test_info();
}

TEST(Watchdog, SaysWhichTestIsLate) {
  std::promise<std::string> said;
  Watchdog watchdog(0.05, [&](const std::string& words) { said.set_value(words); });
  watchdog.OnTestStart(this_test());
  std::future<std::string> words = said.get_future();
  ASSERT_EQ(words.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(words.get(),
            "Watchdog.SaysWhichTestIsLate takes longer than 0.05 s, the bound in "
            "SCANRNN_TEST_SECONDS");
  // Once is enough: a second set_value would throw on the watchdog's thread.
  std::this_thread::sleep_for(milliseconds(150));
  watchdog.OnTestEnd(this_test());
}

TEST(Watchdog, SaysNothingOfTestsInTime) {
  std::atomic<int> late{0};
  {
    Watchdog watchdog(0.5, [&](const std::string&) { ++late; });
    for (int i = 0; i < 12; ++i) {  // longer than the bound, all of them together
      watchdog.OnTestStart(this_test());
      std::this_thread::sleep_for(milliseconds(50));
      watchdog.OnTestEnd(this_test());
    }
    std::this_thread::sleep_for(milliseconds(600));  // between two tests
  }
  EXPECT_EQ(late, 0);
}

TEST(Watchdog, WatchesNothingWithoutABound) {
  std::atomic<int> late{0};
  Watchdog watchdog(0, [&](const std::string&) { ++late; });
  watchdog.OnTestStart(this_test());
  std::this_thread::sleep_for(milliseconds(20));
  watchdog.OnTestEnd(this_test());
  EXPECT_EQ(late, 0);
}

}  // namespace
}  // namespace scanrnn::test
