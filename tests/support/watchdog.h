// SPDX-License-Identifier: Apache-2.0
// Says which test hangs. Kernels wait for one another on a device, so that an error there may have
// no end, and a run that somebody stops from outside does not say where it was.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace scanrnn::test {

// Calls late() with the words to say, on a thread of its own, where a test takes longer than
// `seconds`; once for each such test. With 0 seconds it watches nothing.
class Watchdog : public testing::EmptyTestEventListener {
 public:
  Watchdog(double seconds, std::function<void(const std::string&)> late);
  ~Watchdog() override;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void OnTestStart(const testing::TestInfo& test) override;
  void OnTestEnd(const testing::TestInfo& test) override;

 private:
  void watch();

  const double seconds_;
  const std::function<void(const std::string&)> late_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string running_;     // a test's name, or nothing
  unsigned long turn_ = 0;  // another with each start and end of a test
  bool over_ = false;
  std::thread thread_;  // the last member, since it uses the others
};

// The bound of every test: SCANRNN_TEST_SECONDS; without it 120 on CUDA, and none on the CPU, where
// sanitizers and busy machines make tests slow, and nothing waits for a device.
double seconds_of_a_test();

}  // namespace scanrnn::test
