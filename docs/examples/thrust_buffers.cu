// SPDX-License-Identifier: Apache-2.0
// Thrust's vectors as tensors: the library works in memory that others own, on their stream. The
// weights are zero, so z = 1/2 and g(0) = 1/2, and a state of 1/2 stays as it is: that is checked
// on the device.
#include <cuda_runtime.h>
#include <scanrnn/scanrnn.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/logical.h>

#include <cstdio>
#include <initializer_list>

namespace {

constexpr std::int64_t kSteps = 100, kBatch = 4, kInput = 32, kHidden = 64;

using Floats = thrust::device_vector<float>;

scanrnn::TensorView view(const Floats& values, std::initializer_list<std::int64_t> sizes) {
  return scanrnn::TensorView::of(thrust::raw_pointer_cast(values.data()), scanrnn::Dtype::float32,
                                 sizes, scanrnn::Device::cuda());
}

struct IsHalf {
  __host__ __device__ bool operator()(float value) const {
    return value >= 0.5f - 1e-6f && value <= 0.5f + 1e-6f;
  }
};

}  // namespace

int main() try {
  cudaStream_t stream;  // ordered with the default stream, on which the vectors are filled
  if (cudaStreamCreate(&stream) != cudaSuccess) return std::puts("there is no CUDA device"), 1;
  scanrnn::ContextOptions where;
  where.device = scanrnn::Device::cuda();
  where.stream = stream;
  scanrnn::Context context(where);
  scanrnn::LayerOptions options;
  options.cell = scanrnn::Cell::MinGRU;
  options.input_size = kInput;
  options.hidden_size = kHidden;
  const scanrnn::Layer layer(options);
  const auto plan = layer.plan(context, kSteps, kBatch, scanrnn::Mode::inference);

  const Floats weight(2 * kHidden * kInput), bias(2 * kHidden);
  const Floats x(kSteps * kBatch * kInput, 1.0f), h0(kBatch * kHidden, 0.5f);
  Floats y(kSteps * kBatch * kHidden), hn(kBatch * kHidden);
  thrust::device_vector<unsigned char> workspace(layer.sizes(plan).workspace);

  scanrnn::ForwardArgs args;
  args.params = {view(weight, {2 * kHidden, kInput}), view(bias, {2 * kHidden})};
  args.x = view(x, {kSteps, kBatch, kInput});
  args.h0.h = view(h0, {1, kBatch, kHidden});
  args.y = view(y, {kSteps, kBatch, kHidden});
  args.hn.h = view(hn, {1, kBatch, kHidden});
  args.workspace = {thrust::raw_pointer_cast(workspace.data()), workspace.size()};
  layer.forward(context, plan, args);  // enqueued, not waited for
  std::printf("%s\n", explain(plan).c_str());

  const auto on_stream = thrust::cuda::par.on(stream);
  const bool right = thrust::all_of(on_stream, y.begin(), y.end(), IsHalf()) &&
                     thrust::all_of(on_stream, hn.begin(), hn.end(), IsHalf());
  std::printf("every output and the last state are 1/2: %s\n", right ? "yes" : "NO");
  cudaStreamDestroy(stream);
  return right ? 0 : 1;
} catch (const scanrnn::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
