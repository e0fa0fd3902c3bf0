// SPDX-License-Identifier: Apache-2.0
// How threads of a team wait for one another. What they wait for may take less than it takes to
// wake a thread, so they look first, and then give way to whom they may be waiting for.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "platform.h"

namespace scanrnn {

template <class Condition>
void wait_until(const Condition& met) {
  constexpr int kLooks = 256;
  for (int looks = 0; !met(); ++looks) {
    if (looks < kLooks) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// All threads of a team, once a step.
class StepBarrier {
 public:
  void wait(int members) {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    wait_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

// One thread after the other, in the order of their tickets: 0, 1, ...
class Turns {
 public:
  void wait(std::int64_t ticket) const {
    wait_until([&] { return next_.load(std::memory_order_acquire) == ticket; });
  }
  void call(std::int64_t ticket) { next_.store(ticket + 1, std::memory_order_release); }

 private:
  alignas(64) std::atomic<std::int64_t> next_{0};
};

}  // namespace scanrnn
