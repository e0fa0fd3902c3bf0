// SPDX-License-Identifier: Apache-2.0
// The bare recurrence over Thrust's vectors, forward and backward: h_t = h_{t-1} / 2 + 1 from zero
// is 2 - 2^(1-t), and each row has the gradients of the sum of its states. All that is checked is
// checked on the device.
#include <cuda_runtime.h>
#include <scanrnn/scanrnn.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/logical.h>

#include <cstdio>
#include <initializer_list>

namespace {

constexpr std::int64_t kSteps = 1 << 16, kRows = 48;

using Floats = thrust::device_vector<float>;

scanrnn::TensorView view(const Floats& values, std::initializer_list<std::int64_t> sizes) {
  return scanrnn::TensorView::of(thrust::raw_pointer_cast(values.data()), scanrnn::Dtype::float32,
                                 sizes, scanrnn::Device::cuda());
}

// What stands at an index of [T,N].
struct IsRight {
  const float *h, *da, *db;

  __host__ __device__ static bool near(float got, float want) {
    return got >= want - 1e-5f && got <= want + 1e-5f;
  }
  __host__ __device__ bool operator()(std::int64_t i) const {
    const float step = static_cast<float>(i / kRows + 1);
    const float left = static_cast<float>(kSteps - i / kRows);  // this one counted
    const float before = 2.0f - exp2f(2.0f - step), lambda = 2.0f - exp2f(1.0f - left);
    return near(h[i], 2.0f - exp2f(1.0f - step)) && near(db[i], lambda) &&
           near(da[i], lambda * before);
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
  scanrnn::ScanShape shape;
  shape.steps = kSteps;
  shape.rows = kRows;
  shape.training = true;
  const auto plan = scanrnn::linear_scan_plan(context, shape);

  const Floats a(kSteps * kRows, 0.5f), b(kSteps * kRows, 1.0f), dh(kSteps * kRows, 1.0f);
  Floats h(kSteps * kRows), da(kSteps * kRows), db(kSteps * kRows);
  thrust::device_vector<unsigned char> memory(scanrnn::linear_scan_workspace(plan));
  const scanrnn::Span workspace{thrust::raw_pointer_cast(memory.data()), memory.size()};

  scanrnn::ScanArgs args;
  args.a = view(a, {kSteps, kRows});
  args.b = view(b, {kSteps, kRows});
  args.h = view(h, {kSteps, kRows});
  args.workspace = workspace;
  linear_scan(context, plan, args);  // enqueued, not waited for

  scanrnn::ScanBackwardArgs back;
  back.a = args.a;
  back.h = args.h;
  back.dh = view(dh, {kSteps, kRows});
  back.da = view(da, {kSteps, kRows});
  back.db = view(db, {kSteps, kRows});
  back.workspace = workspace;
  linear_scan_backward(context, plan, back);
  std::printf("%s\n", explain(plan).c_str());

  const IsRight is_right{thrust::raw_pointer_cast(h.data()), thrust::raw_pointer_cast(da.data()),
                         thrust::raw_pointer_cast(db.data())};
  const thrust::counting_iterator<std::int64_t> first(0);
  const bool right =
      thrust::all_of(thrust::cuda::par.on(stream), first, first + kSteps * kRows, is_right);
  std::printf("states and gradients are right: %s\n", right ? "yes" : "NO");
  cudaStreamDestroy(stream);
  return right ? 0 : 1;
} catch (const scanrnn::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
