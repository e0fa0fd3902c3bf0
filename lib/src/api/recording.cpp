// SPDX-License-Identifier: Apache-2.0
// Recordings: a captured graph between two events, or a function between two looks at the clock.
#include "scanrnn/recording.h"

#include <chrono>
#include <utility>

#ifdef SCANRNN_WITH_CUDA
#include "cuda/status.h"
#endif

namespace scanrnn {

#ifdef SCANRNN_WITH_CUDA
namespace {

struct Graph {
  cudaStream_t stream;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;

  explicit Graph(cudaStream_t on) : stream(on) {}
  ~Graph() {
    if (executable) cudaGraphExecDestroy(executable);
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void capture(const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    SCANRNN_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {  // the stream must not stay captured
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();  // of a capture that is invalid: `work` has said why
      throw;
    }
    SCANRNN_CUDA(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check_status(status, "cudaGraphInstantiate");
    SCANRNN_CUDA(cudaEventCreate(&begin));
    SCANRNN_CUDA(cudaEventCreate(&end));
  }
};

}  // namespace
#endif

struct Recording::Impl {
  std::function<void()> work;  // CPU
#ifdef SCANRNN_WITH_CUDA
  int device = 0;
  std::unique_ptr<Graph> graph;
#endif
};

Recording::Recording(Context& context, std::function<void()> work)
    : impl_(std::make_unique<Impl>()) {
#ifdef SCANRNN_WITH_CUDA
  const ContextOptions& options = context.options();
  if (options.device.kind == Device::Kind::cuda) {
    impl_->device = options.device.index;
    const DeviceGuard guard(impl_->device);
    impl_->graph = std::make_unique<Graph>(static_cast<cudaStream_t>(options.stream));
    impl_->graph->capture(work);
    return;
  }
#else
  static_cast<void>(context);
#endif
  impl_->work = std::move(work);
}

Recording::~Recording() = default;
Recording::Recording(Recording&&) noexcept = default;
Recording& Recording::operator=(Recording&&) noexcept = default;

void Recording::run() {
#ifdef SCANRNN_WITH_CUDA
  if (const auto& graph = impl_->graph) {
    const DeviceGuard guard(impl_->device);
    SCANRNN_CUDA(cudaGraphLaunch(graph->executable, graph->stream));
    return;
  }
#endif
  impl_->work();
}

double Recording::milliseconds() {
#ifdef SCANRNN_WITH_CUDA
  if (const auto& graph = impl_->graph) {
    const DeviceGuard guard(impl_->device);
    SCANRNN_CUDA(cudaEventRecord(graph->begin, graph->stream));
    SCANRNN_CUDA(cudaGraphLaunch(graph->executable, graph->stream));
    SCANRNN_CUDA(cudaEventRecord(graph->end, graph->stream));
    SCANRNN_CUDA(cudaEventSynchronize(graph->end));
    float out = 0;
    SCANRNN_CUDA(cudaEventElapsedTime(&out, graph->begin, graph->end));
    return static_cast<double>(out);
  }
#endif
  const auto start = std::chrono::steady_clock::now();
  impl_->work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace scanrnn
