// SPDX-License-Identifier: Apache-2.0
// A timed graph on CUDA: what a function enqueues on a stream, captured, and run between two
// events.
#pragma once

#include <functional>

#include "cuda/status.h"
#include "stack/runtime.h"

namespace scanrnn {

class CudaTimedGraph final : public TimedGraph::Impl {
 public:
  explicit CudaTimedGraph(Place place)
      : device_(place.device), stream_(static_cast<cudaStream_t>(place.stream)) {}
  ~CudaTimedGraph() override {
    const BesideCaptures beside;
    if (executable_) cudaGraphExecDestroy(executable_);
    if (begin_) cudaEventDestroy(begin_);
    if (end_) cudaEventDestroy(end_);
  }
  CudaTimedGraph(const CudaTimedGraph&) = delete;
  CudaTimedGraph& operator=(const CudaTimedGraph&) = delete;

  // Once, before the first run.
  void capture(const std::function<void()>& work) {
    const DeviceGuard guard(device_);
    cudaGraph_t graph = nullptr;
    SCANRNN_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {  // the stream must not stay captured
      cudaStreamEndCapture(stream_, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();  // of a capture that is invalid: `work` has said why
      throw;
    }
    SCANRNN_CUDA(cudaStreamEndCapture(stream_, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check_status(status, "cudaGraphInstantiate");
    SCANRNN_CUDA(cudaEventCreate(&begin_));
    SCANRNN_CUDA(cudaEventCreate(&end_));
  }

  void run() override {
    const DeviceGuard guard(device_);
    SCANRNN_CUDA(cudaGraphLaunch(executable_, stream_));
  }
  double milliseconds() override {
    const DeviceGuard guard(device_);
    SCANRNN_CUDA(cudaEventRecord(begin_, stream_));
    SCANRNN_CUDA(cudaGraphLaunch(executable_, stream_));
    SCANRNN_CUDA(cudaEventRecord(end_, stream_));
    SCANRNN_CUDA(cudaEventSynchronize(end_));
    float out = 0;
    SCANRNN_CUDA(cudaEventElapsedTime(&out, begin_, end_));
    return static_cast<double>(out);
  }

 private:
  int device_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace scanrnn
