// SPDX-License-Identifier: Apache-2.0
// Streams and events of the tests' own, and a training step that stays on the device: what the
// tests of tests/cuda need of the CUDA runtime. They are built where CUDA is, and skip elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "support/library.h"

namespace scanrnn::test {

inline void require_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}
#define REQUIRE_CUDA(call) ::scanrnn::test::require_success((call), #call)

// That of a test, since the suite as a whole runs on one device.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_cuda()) SCANRNN_LACKS_GPUS(1, "SCANRNN_TEST_DEVICE is not cuda");
  }
};

// Steps of a tile of the device kernel, forward and backward, on the tests' device.
std::vector<std::int64_t> device_tiles(Cell cell, Dtype dtype);

// Not ordered with the default stream: what is enqueued on the wrong one shows.
class Stream {
 public:
  Stream() { REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() const { REQUIRE_CUDA(cudaStreamSynchronize(stream_)); }
  bool busy() const {
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status != cudaErrorNotReady) require_success(status, "cudaStreamQuery");
    return status == cudaErrorNotReady;
  }
  // What comes next here comes after all that `other` has now.
  void wait_for(const Stream& other) const {
    cudaEvent_t event;
    REQUIRE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    REQUIRE_CUDA(cudaEventRecord(event, other.get()));
    REQUIRE_CUDA(cudaStreamWaitEvent(stream_, event, 0));
    REQUIRE_CUDA(cudaEventDestroy(event));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

inline Context make_context(const Stream& stream) {
  ContextOptions options;
  options.device = test_device();
  options.stream = stream.get();
  return Context(options);
}

// Forward and backward of a case whose tensors stay on the device, enqueued without waiting; or
// forward alone, in the way of inference.
class Training {
 public:
  Training(const Case& c, const Data& data, Context& context, Mode mode = Mode::training)
      : context_(context), layer_(c.layer), buffers_(c, data), mirror_(context), mode_(mode) {
    plan_ = buffers_.plan_for(context, mode);
    const Sizes bytes = layer_.sizes(plan_);
    workspace_ = Workspace(bytes.workspace);
    reserve_ = Workspace(mode == Mode::training ? bytes.reserve : 0);
    forward_ = buffers_.forward_args(mirror_);
    backward_ = buffers_.backward_args(mirror_);
    forward_.workspace = backward_.workspace = mirror_.span(workspace_);
    forward_.reserve = backward_.reserve = mirror_.span(reserve_);
  }

  const dispatch::Plan& plan() const { return plan_; }
  const TensorView& x() const { return forward_.x; }
  // A ragged batch: tensors on the device that outlive this.
  void tell(const Ragged& ragged) { forward_.ragged = backward_.ragged = ragged; }
  void draw_by(std::uint64_t seed) { forward_.seed = backward_.seed = seed; }
  void draw_by(const TensorView& seed) { forward_.seed_in = backward_.seed_in = seed; }
  void enqueue() {
    layer_.forward(context_, plan_, forward_);
    if (mode_ == Mode::training) layer_.backward(context_, plan_, backward_);
  }
  // Enqueues NaN over all that a run writes.
  void poison() {
    const auto stream = static_cast<cudaStream_t>(context_.options().stream);
    const auto fill = [&](void* data, std::size_t bytes) {
      if (bytes) REQUIRE_CUDA(cudaMemsetAsync(data, 0xFF, bytes, stream));
    };
    for (const Span& span : {forward_.workspace, forward_.reserve}) fill(span.data, span.bytes);
    std::vector<TensorView> outputs = backward_.dparams;
    outputs.insert(outputs.end(), {forward_.y, forward_.hn.h, forward_.hn.c, backward_.dx,
                                   backward_.dh0.h, backward_.dh0.c});
    for (const TensorView& view : outputs) {
      if (view) fill(view.data, bytes_of(view));
    }
  }
  // Waits, looks at the guards, and gives the bytes of every output.
  std::vector<std::uint8_t> bits() {
    mirror_.bring_back();
    EXPECT_TRUE(workspace_.intact() && reserve_.intact() && buffers_.intact());
    return buffers_.bits();
  }
  // A contiguous tensor's bytes.
  static std::size_t bytes_of(const TensorView& view) {
    std::size_t count = 1;
    for (int axis = 0; axis < view.rank; ++axis) {
      count *= static_cast<std::size_t>(view.sizes[static_cast<std::size_t>(axis)]);
    }
    return count * size_of(view.dtype);
  }

 private:
  Context& context_;
  Layer layer_;
  Buffers buffers_;
  Mirror mirror_;
  Mode mode_;
  dispatch::Plan plan_;
  Workspace workspace_{0}, reserve_{0};
  ForwardArgs forward_;
  BackwardArgs backward_;
};

}  // namespace scanrnn::test
