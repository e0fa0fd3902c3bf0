// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of dense cells are called with. Every thread of a team owns a share of the
// units, or of the batch, through the whole sequence, so that its part of the recurrent weights
// stays in its cache; all it waits for is the state of the others, once a step.
#pragma once

#include <atomic>
#include <thread>

#include "recurrence.h"
#include "scanrnn/scan/cpu.h"

namespace scanrnn {

// Units as whole vectors of any instruction set.
inline constexpr Index kUnitPadding = 16;
constexpr Index padded(Index hidden) {
  return (hidden + kUnitPadding - 1) / kUnitPadding * kUnitPadding;
}

// All threads of a team, once a step. A step may take less than it takes to wake a thread, so those
// that wait look first, and then give way to whom they may be waiting for.
class StepBarrier {
 public:
  void wait(int members) {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; phase_.load(std::memory_order_acquire) == phase; ++looks) {
      if (looks < kLooks) {
        __builtin_ia32_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int kLooks = 256;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

// Who walks, and how much. The carry, [lines][padded(hidden)] of each state, is the walked state's
// own: of h (backward: the cotangent that does not come through R) and of c.
template <class T>
struct DenseSchedule {
  scan::Team team;
  StepBarrier* barrier = nullptr;
  Index lines = 0, hidden = 0, steps = 0;
  T *h = nullptr, *c = nullptr;
};

// The sums of a step are row blocks of H, as step_cell.h orders them.
template <class T>
struct DenseForwardArgs {
  const T* weight = nullptr;    // of pack_forward; null where `products` holds R h of the one step
  const T* products = nullptr;  // [lines][gates * H]
  const T* bias = nullptr;      // of all sums
  Strided<T> sums;              // in: W x; out, where they are kept: the sums
  bool keep = false;
  Strided<const T> initial;  // the state before the first step, [lines][H]; null: zeros
  Strided<T> y, cells;       // cells: of c, or null
};

// Walked against time, with one more step at the end: the initial state's cotangent goes to the
// carry.
template <class T>
struct DenseBackwardArgs {
  const T* weight = nullptr;  // of pack_backward
  Strided<const T> sums, y, cells, dy;
  Strided<const T> initial, initial_cell;  // h_0 and c_0, or null
  Strided<T> dsums;
};

template <class T>
struct CpuDenseKernels {
  void (*forward)(const DenseSchedule<T>&, const DenseForwardArgs<T>&) = nullptr;
  void (*backward)(const DenseSchedule<T>&, const DenseBackwardArgs<T>&) = nullptr;
};

// The recurrent weight, [gates * H, H] with rows `stride` apart, in the order in which a pass reads
// it: gates * H * padded(H) values. A team packs together.
template <class T>
struct CpuPackKernels {
  void (*forward)(const DenseSchedule<T>&, const T* weight, Index stride, int gates, T* packed);
  void (*backward)(const DenseSchedule<T>&, const T* weight, Index stride, int gates, T* packed);
};

}  // namespace scanrnn
