// SPDX-License-Identifier: Apache-2.0
// One sequence over two GPUs: each has half of the time and a context, and what goes from one to
// the other is a state of the recurrence, forward, and its cotangent, backward. The batch is cut
// into groups, so that both work at once: while the second half of a group is worked on, the other
// GPU has the first half of the next earlier. The program fails unless outputs and gradients are
// those of the whole sequence on one device. Where there is one GPU, or none, it has both halves.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#ifdef EXAMPLE_WITH_CUDA
#include <cuda_runtime.h>
#endif

#include "tensor.h"

namespace {

constexpr std::int64_t kSteps = 512, kBatch = 8, kInput = 32, kHidden = 64;
constexpr std::int64_t kGroups = 4, kRows = kBatch / kGroups;
constexpr float kAllowed = 1e-4f;  // of the largest value: sums over time have another order

using Values = std::vector<float>;

#ifdef EXAMPLE_WITH_CUDA
void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
cudaStream_t stream_of(const scanrnn::Context& context) {
  return static_cast<cudaStream_t>(context.options().stream);
}
#endif

// A context on a device, on CUDA with a stream of its own.
scanrnn::Context context_on(scanrnn::Device device) {
  scanrnn::ContextOptions options;
  options.device = device;
#ifdef EXAMPLE_WITH_CUDA
  if (device.kind == scanrnn::Device::Kind::cuda) {
    cudaStream_t stream;  // for as long as the program runs
    check(cudaSetDevice(device.index));
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    options.stream = stream;
  }
#endif
  return scanrnn::Context(options);
}

// The state `from`, when its own device has made it, to the other one, whose later work finds it
// there. The host waits for neither.
void hand_on(const scanrnn::Context& maker, const Tensor& from,
             [[maybe_unused]] const scanrnn::Context& reader, const Tensor& to) {
  const std::size_t bytes = from.count() * sizeof(float);
  if (maker.options().device.kind == scanrnn::Device::Kind::cpu) {
    std::memcpy(to.view().data, from.view().data, bytes);
    return;
  }
#ifdef EXAMPLE_WITH_CUDA
  const int source = maker.options().device.index, target = reader.options().device.index;
  cudaEvent_t made;
  check(cudaSetDevice(source));
  check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  check(cudaEventRecord(made, stream_of(maker)));
  check(cudaSetDevice(target));
  check(cudaStreamWaitEvent(stream_of(reader), made, 0));
  check(cudaMemcpyPeerAsync(to.view().data, target, from.view().data, source, bytes,
                            stream_of(reader)));
  check(cudaEventDestroy(made));  // when it has happened
#endif
}

// Rows [first, first + count) of a [T,B,.] tensor, where they lie.
scanrnn::TensorView rows_of(scanrnn::TensorView view, std::int64_t first, std::int64_t count) {
  view.data = static_cast<float*>(view.data) + first * view.strides[1];
  view.sizes[1] = count;
  return view;
}

// Some steps of all rows, group by group, on one device.
class Part {
 public:
  Part(scanrnn::Context& context, const scanrnn::Layer& layer, const std::vector<Values>& params,
       std::int64_t steps, std::int64_t rows, const Values& x_values, const Values& dy_values)
      : context(context),
        layer_(layer),
        rows_(rows),
        plan_(layer.plan(context, steps, rows, scanrnn::Mode::training)),
        workspace_(context, layer.sizes(plan_).workspace),
        x(context, {steps, kBatch, kInput}, x_values),
        y(context, {steps, kBatch, kHidden}),
        dy(context, {steps, kBatch, kHidden}, dy_values),
        dx(context, {steps, kBatch, kInput}) {
    const auto infos = layer.parameters();
    for (std::size_t p = 0; p < params.size(); ++p) {
      params_.emplace_back(context, infos[p].sizes, params[p]);
    }
    for (std::int64_t g = 0; g < kBatch / rows; ++g) {
      groups.emplace_back(context, rows, layer.sizes(plan_).reserve);
      for (const scanrnn::ParameterInfo& info : infos) {
        groups.back().dparams.emplace_back(context, info.sizes);
      }
    }
  }

  // h0 is zeros where nothing was handed on; so are cotangents of hn.
  void forward(std::size_t g, bool begins) {
    scanrnn::ForwardArgs args;
    args.params = views(params_);
    args.x = of_group(x, g);
    if (!begins) args.h0.h = groups[g].h0.view();
    args.y = of_group(y, g);
    args.hn.h = groups[g].hn.view();
    args.workspace = workspace_.span();
    args.reserve = groups[g].reserve.span();
    layer_.forward(context, plan_, args);
  }
  void backward(std::size_t g, bool begins, bool ends) {
    scanrnn::BackwardArgs args;
    args.params = views(params_);
    args.x = of_group(x, g);
    if (!begins) args.h0.h = groups[g].h0.view();
    args.y = of_group(y, g);
    args.dy = of_group(dy, g);
    if (!ends) args.dhn.h = groups[g].dhn.view();
    args.dx = of_group(dx, g);
    if (!begins) args.dh0.h = groups[g].dh0.view();
    args.dparams = views(groups[g].dparams);
    args.workspace = workspace_.span();
    args.reserve = groups[g].reserve.span();
    layer_.backward(context, plan_, args);
  }
  // Added to: of each parameter, over the groups.
  void add_gradients(std::vector<Values>& sums) const {
    for (const Group& group : groups) {
      for (std::size_t p = 0; p < sums.size(); ++p) {
        const Values values = group.dparams[p].values();
        sums[p].resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) sums[p][i] += values[i];
      }
    }
  }

  struct Group {
    Tensor h0, hn, dh0, dhn;
    scanrnn::Buffer reserve;  // what forward leaves for backward
    std::vector<Tensor> dparams;

    Group(scanrnn::Context& context, std::int64_t rows, std::size_t bytes)
        : h0(context, {1, rows, kHidden}),
          hn(context, {1, rows, kHidden}),
          dh0(context, {1, rows, kHidden}),
          dhn(context, {1, rows, kHidden}),
          reserve(context, bytes) {}
  };

  scanrnn::Context& context;

 private:
  static std::vector<scanrnn::TensorView> views(const std::vector<Tensor>& tensors) {
    std::vector<scanrnn::TensorView> out;
    for (const Tensor& tensor : tensors) out.push_back(tensor.view());
    return out;
  }
  scanrnn::TensorView of_group(const Tensor& tensor, std::size_t g) const {
    return rows_of(tensor.view(), static_cast<std::int64_t>(g) * rows_, rows_);
  }

  const scanrnn::Layer& layer_;
  std::int64_t rows_;
  scanrnn::dispatch::Plan plan_;
  scanrnn::Buffer workspace_;
  std::vector<Tensor> params_;

 public:
  Tensor x, y, dy, dx;
  std::vector<Group> groups;
};

// The largest difference over the largest value.
float error_of(const Values& got, const Values& want) {
  float worst = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float error = std::fabs(got[i] - want[i]);
    if (!(error <= worst)) worst = error;  // this way round a NaN is kept
    largest = std::fmax(largest, std::fabs(want[i]));
  }
  return worst / largest;
}

Values joined(const Tensor& first, const Tensor& second) {
  Values out = first.values();
  const Values more = second.values();
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  const scanrnn::Device first = where(argc, argv).device;
  scanrnn::Device second = first;
  if (first.kind == scanrnn::Device::Kind::cuda && scanrnn::devices().size() > 2) {
    second = scanrnn::Device::cuda(1);  // the list begins with the CPU
  }
  const bool two = second.index != first.index;
  std::printf("%s\n", two ? "each half on a GPU of its own" : "both halves on one device");
  scanrnn::Context early = context_on(first), late = context_on(second);

  scanrnn::LayerOptions options;
  options.cell = scanrnn::Cell::MinGRU;
  options.input_size = kInput;
  options.hidden_size = kHidden;
  const scanrnn::Layer layer(options);
  std::mt19937 random(1);
  std::vector<Values> params;
  for (const scanrnn::ParameterInfo& info : layer.parameters()) {
    std::size_t count = 1;
    for (std::int64_t size : info.sizes) count *= static_cast<std::size_t>(size);
    params.push_back(uniform(random, count, 1 / std::sqrt(float{kHidden})));
  }
  const Values x = uniform(random, kSteps * kBatch * kInput, 1.0f);
  const Values dy = uniform(random, kSteps * kBatch * kHidden, 1.0f);
  const auto half = [](const Values& values, bool of_late) {  // time is the first axis
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    return of_late ? Values(middle, values.end()) : Values(values.begin(), middle);
  };

  Part earlier(early, layer, params, kSteps / 2, kRows, half(x, false), half(dy, false));
  Part later(late, layer, params, kSteps / 2, kRows, half(x, true), half(dy, true));
  // All of this is enqueued at once: a GPU waits only for the other one's state.
  for (std::size_t g = 0; g < kGroups; ++g) {
    earlier.forward(g, true);
    hand_on(early, earlier.groups[g].hn, late, later.groups[g].h0);
    later.forward(g, false);
  }
  for (std::size_t g = 0; g < kGroups; ++g) {
    later.backward(g, false, true);
    hand_on(late, later.groups[g].dh0, early, earlier.groups[g].dhn);
    earlier.backward(g, true, false);
  }

  Part whole(early, layer, params, kSteps, kBatch, x, dy);
  whole.forward(0, true);
  whole.backward(0, true, true);
  std::vector<Values> want(params.size()), got(params.size());
  whole.add_gradients(want);
  earlier.add_gradients(got);
  later.add_gradients(got);
  float worst = std::fmax(error_of(joined(earlier.y, later.y), whole.y.values()),
                          error_of(joined(earlier.dx, later.dx), whole.dx.values()));
  for (std::size_t p = 0; p < want.size(); ++p) {
    const float error = error_of(got[p], want[p]);
    if (!(error <= worst)) worst = error;
  }
  std::printf("largest difference between the halves and the whole: %g of the largest value\n",
              worst);
  return worst <= kAllowed ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
