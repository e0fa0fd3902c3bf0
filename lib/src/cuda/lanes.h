// SPDX-License-Identifier: Apache-2.0
// Streams on which layer calls run at the same time, between a fork from the caller's stream and a
// join to it, so that whoever waits for that one waits for all, and a capture of it captures all.
#pragma once

#include <array>
#include <functional>

#include "cuda/status.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn {

class CudaLanes {
 public:
  CudaLanes() {
    try {
      for (Lane& lane : lanes_) {
        SCANRNN_CUDA(cudaEventCreateWithFlags(&lane.passed, cudaEventDisableTiming));
        if (&lane == &lanes_.front()) continue;  // the first call stays on the caller's stream
        SCANRNN_CUDA(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
      }
    } catch (...) {
      release();
      throw;
    }
  }
  ~CudaLanes() { release(); }
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  // run(call, part) enqueues on `stream`, which is the lane's meanwhile: see Backend::at_once().
  void run(cudaStream_t& stream, int calls, Index parts, bool chained,
           const std::function<void(int, Index)>& run) {
    Fork fork(*this, stream, calls);
    // A chain's part comes a turn after the same one of the call before.
    const Index turns = parts + (chained ? calls - 1 : 0);
    for (Index turn = 0; turn < turns; ++turn) {
      for (int call = calls - 1; call >= 0; --call) {  // before the event that it waits for is new
        const Index part = chained ? turn - call : turn;
        if (part < 0 || part >= parts) continue;
        stream = fork.of(call);
        if (chained && call > 0) {
          SCANRNN_CUDA(cudaStreamWaitEvent(stream, lane(call - 1).passed, 0));
        }
        run(call, part);
        SCANRNN_CUDA(cudaEventRecord(lane(call).passed, stream));
      }
    }
    fork.join();
  }

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t passed = nullptr;
  };
  struct Fork {
    CudaLanes& lanes;
    cudaStream_t& stream;
    const cudaStream_t own;
    const int calls;
    bool joined = false;

    Fork(CudaLanes& lanes, cudaStream_t& stream, int calls)
        : lanes(lanes), stream(stream), own(stream), calls(calls) {
      SCANRNN_CUDA(cudaEventRecord(lanes.lane(0).passed, own));
      for (int i = 1; i < calls; ++i) {
        SCANRNN_CUDA(cudaStreamWaitEvent(of(i), lanes.lane(0).passed, 0));
      }
    }
    // What is on its way when a call fails still works in the caller's memory.
    ~Fork() {
      stream = own;
      if (joined) return;
      for (int i = 1; i < calls; ++i) {
        cudaEventRecord(lanes.lane(i).passed, of(i));
        cudaStreamWaitEvent(own, lanes.lane(i).passed, 0);
      }
    }
    cudaStream_t of(int call) const { return call == 0 ? own : lanes.lane(call).stream; }
    void join() {
      for (int i = 1; i < calls; ++i) {
        SCANRNN_CUDA(cudaStreamWaitEvent(own, lanes.lane(i).passed, 0));
      }
      joined = true;
    }
  };

  Lane& lane(int i) { return lanes_[static_cast<std::size_t>(i)]; }
  void release() {
    for (Lane& lane : lanes_) {
      if (lane.passed) cudaEventDestroy(lane.passed);
      if (lane.stream) cudaStreamDestroy(lane.stream);
      lane = {};
    }
  }

  std::array<Lane, dispatch::kMostAtOnce> lanes_;
};

}  // namespace scanrnn
