// SPDX-License-Identifier: Apache-2.0
// Work that can be run again and again, and timed: a CUDA graph, or a function on the CPU.
#pragma once

#include <functional>
#include <memory>

#include "scanrnn/context.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// What a function enqueues on a context's stream, kept so that it runs without the function. The
// context and all memory that the work uses must outlive it. Moved from, it can be assigned to or
// go, no more.
class TimedGraph {
 public:
  // CUDA: calls `work` once while its stream is captured, so that nothing runs yet; `work` must
  // enqueue on that stream alone, which cannot be the default one, and should have run once before,
  // since first calls load code. Throws cuda_error. CPU: keeps `work`. An empty one is a
  // value_error.
  TimedGraph(Context& context, std::function<void()> work);
  ~TimedGraph();
  TimedGraph(TimedGraph&&) noexcept;
  TimedGraph& operator=(TimedGraph&&) noexcept;

  void run();             // once more; asynchronous on the context's stream
  double milliseconds();  // once more; waits for it and says how long the device took

  struct Impl;  // private to the library

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace scanrnn
#pragma GCC visibility pop
