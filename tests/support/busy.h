// SPDX-License-Identifier: Apache-2.0
// Another stream's kernel that keeps multiprocessors to itself: what kernels share a device with,
// whose blocks must all be resident at the same time.
#pragma once

#include <chrono>

#include "support/cuda.h"

namespace scanrnn::test {

class Busy {
 public:
  // Takes so many multiprocessors whole and returns once it has them all. They are free again after
  // release(), or after `most`, whoever forgets it.
  Busy(int multiprocessors, std::chrono::milliseconds most);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  bool running() const { return stream_.busy(); }
  void release();

 private:
  // On the host, where the device sees them: blocks that have begun, and whether to end.
  enum Word { kBegun, kEnd, kWords };

  Stream stream_;
  volatile int* words_ = nullptr;
};

}  // namespace scanrnn::test
