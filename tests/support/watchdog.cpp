// SPDX-License-Identifier: Apache-2.0
// The watchdog: one thread that waits for the end of the test that runs, or for the bound.
#include "support/watchdog.h"

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "support/device.h"

namespace scanrnn::test {

Watchdog::Watchdog(double seconds, std::function<void(const std::string&)> late)
    : seconds_(seconds), late_(std::move(late)) {
  if (seconds_ > 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::OnTestStart(const testing::TestInfo& test) {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = std::string(test.test_suite_name()) + "." + test.name();
  ++turn_;
  changed_.notify_all();
}

void Watchdog::OnTestEnd(const testing::TestInfo&) {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_.clear();
  ++turn_;
  changed_.notify_all();
}

void Watchdog::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!over_) {
    const unsigned long turn = turn_;
    const auto moved_on = [&] { return over_ || turn_ != turn; };
    const std::chrono::duration<double> bound(seconds_);
    if (!running_.empty() && !changed_.wait_for(lock, bound, moved_on)) {
      std::ostringstream words;
      words << running_ << " takes longer than " << seconds_
            << " s, the bound in SCANRNN_TEST_SECONDS";
      late_(words.str());
    }
    changed_.wait(lock, moved_on);
  }
}

double seconds_of_a_test() {
  const char* seconds = std::getenv("SCANRNN_TEST_SECONDS");
  if (seconds) return std::atof(seconds);
  return on_cuda() ? 120 : 0;
}

}  // namespace scanrnn::test
