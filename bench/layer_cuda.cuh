// SPDX-License-Identifier: Apache-2.0
// A layer with its tensors on a device, and its matrix products alone: what the benches of layers
// share.
#pragma once

#include "engine_cuda.cuh"
#include "gemm_cuda.h"
#include "scanrnn/scanrnn.h"

namespace scanrnn::bench {
namespace {

struct Shape {
  Index batch, steps, hidden;  // C = H
};

template <class T>
constexpr Dtype dtype_of() {
  return std::is_same_v<T, double>   ? Dtype::float64
         : std::is_same_v<T, float>  ? Dtype::float32
         : std::is_same_v<T, __half> ? Dtype::float16
                                     : Dtype::bfloat16;
}

template <class To>
struct Convert {
  template <class From>
  __host__ __device__ To operator()(From x) const {
    if constexpr (sizeof(From) == 8) {
      return static_cast<To>(x);
    } else {
      return static_cast<To>(static_cast<float>(x));
    }
  }
};

// Inputs that T can hold, in any type, so that two runs read the same numbers.
template <class T, class As>
thrust::device_vector<As> numbers(Index count, double scale, std::uint64_t seed) {
  auto unit = filled<float>(count, Fill::value, seed);
  thrust::transform(unit.begin(), unit.end(), unit.begin(),
                    [scale] __device__(float x) { return static_cast<float>(scale * x); });
  thrust::device_vector<T> held(count);
  thrust::transform(unit.begin(), unit.end(), held.begin(), Convert<T>());
  thrust::device_vector<As> out(count);
  thrust::transform(held.begin(), held.end(), out.begin(), Convert<As>());
  return out;
}

// A layer with its tensors: inputs are those that `T` can hold, stored as `As`.
template <class T, class As>
struct Problem {
  Shape shape;
  Layer layer;
  Context context;
  dispatch::Plan inference, training;
  std::vector<thrust::device_vector<As>> params, dparams;
  thrust::device_vector<As> x, dx, y, dy, hn, h0, c0, cn;
  thrust::device_vector<char> workspace, reserve;

  static LayerOptions options(const CellInfo& cell, const Shape& s, bool batch_first) {
    LayerOptions out;
    out.cell = cell.cell;
    out.input_size = out.hidden_size = s.hidden;
    out.batch_first = batch_first;
    out.dtype = dtype_of<As>();
    return out;
  }
  static ContextOptions where(cudaStream_t stream, MatmulPrecision precision) {
    ContextOptions out;
    out.device = Device::cuda();
    out.stream = stream;
    out.matmul_precision = precision;
    return out;
  }

  Problem(const CellInfo& cell, const Shape& s, bool batch_first, dispatch::Strategy strategy,
          cudaStream_t stream, MatmulPrecision precision = MatmulPrecision::highest)
      : shape(s),
        layer(options(cell, s, batch_first)),
        context(where(stream, precision)),
        inference(layer.plan(context, s.steps, s.batch, Mode::inference, strategy)),
        training(layer.plan(context, s.steps, s.batch, Mode::training, strategy)) {
    for (const ParameterInfo& parameter : layer.parameters()) {
      Index count = 1;
      for (Index size : parameter.sizes) count *= size;
      params.push_back(numbers<T, As>(count, 1 / std::sqrt(double(s.hidden)), params.size() + 5));
      dparams.emplace_back(count);
    }
    const Index count = s.batch * s.steps * s.hidden;
    x = numbers<T, As>(count, 1.5, 1);
    dy = numbers<T, As>(count, 1, 2);
    for (auto* out : {&dx, &y}) out->resize(count);
    for (auto* state : {&hn, &cn}) state->resize(s.batch * s.hidden);
    h0 = numbers<T, As>(s.batch * s.hidden, 1, 3);
    c0 = numbers<T, As>(s.batch * s.hidden, 1, 4);
    resize();
  }
  void resize() {
    const Sizes one = layer.sizes(inference), other = layer.sizes(training);
    workspace.resize(std::max(one.workspace, other.workspace));
    reserve.resize(other.reserve);
  }

  TensorView tokens(thrust::device_vector<As>& data) const {
    const bool b = layer.options().batch_first;
    return TensorView::of(
        raw(data), dtype_of<As>(),
        {b ? shape.batch : shape.steps, b ? shape.steps : shape.batch, shape.hidden},
        Device::cuda());
  }
  std::vector<TensorView> views(std::vector<thrust::device_vector<As>>& all) const {
    std::vector<TensorView> out;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& sizes = layer.parameters()[i].sizes;
      out.push_back(
          sizes.size() == 2
              ? TensorView::of(raw(all[i]), dtype_of<As>(), {sizes[0], sizes[1]}, Device::cuda())
              : TensorView::of(raw(all[i]), dtype_of<As>(), {sizes[0]}, Device::cuda()));
    }
    return out;
  }

  TensorView state(thrust::device_vector<As>& data) const {
    return TensorView::of(raw(data), dtype_of<As>(), {1, shape.batch, shape.hidden},
                          Device::cuda());
  }

  // From zeros, or as decoding does from a state to the next.
  void forward(const dispatch::Plan& plan, bool from_state = false) {
    ForwardArgs args;
    args.params = views(params);
    args.x = tokens(x);
    args.y = tokens(y);
    const bool pair = info(layer.options().cell).states == 2;
    args.hn.h = state(hn);
    if (pair) args.hn.c = state(cn);
    if (from_state) args.h0.h = state(h0);
    if (from_state && pair) args.h0.c = state(c0);
    args.workspace = {raw(workspace), workspace.size()};
    args.reserve = {raw(reserve), reserve.size()};
    layer.forward(context, plan, args);
  }
  void backward() {
    BackwardArgs args;
    args.params = views(params);
    args.dparams = views(dparams);
    args.x = tokens(x);
    args.y = tokens(y);
    args.dy = tokens(dy);
    args.dx = tokens(dx);
    args.workspace = {raw(workspace), workspace.size()};
    args.reserve = {raw(reserve), reserve.size()};
    layer.backward(context, training, args);
  }
};

// Milliseconds of the layer's matrix products alone: one, or with backward three.
template <class T>
double products_ms(const CellInfo& cell, const Shape& s, bool backward, cudaStream_t stream,
                   MatmulPrecision precision = MatmulPrecision::highest) {
  const Index tokens = s.batch * s.steps, width = cell.gates * s.hidden, c = s.hidden;
  auto x = numbers<T, T>(tokens * c, 1, 1), weight = numbers<T, T>(width * c, 0.03, 2);
  auto gates = numbers<T, T>(tokens * width, 1, 3);
  thrust::device_vector<char> workspace(CudaGemm::kWorkspace);
  CudaGemm gemm(nullptr, precision);
  const auto product = [&](Index m, Index n, Index k, CudaMatrix a, CudaMatrix b, void* out,
                           Index stride) {
    CudaProduct p;
    p.dtype = dtype_of<T>();
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a;
    p.b = b;
    p.c = out;
    p.c_stride = stride;
    gemm.run(p, raw(workspace), stream);
  };
  thrust::device_vector<T> out(std::max(tokens * c, width * c));
  const auto all = [&](int) {
    product(tokens, width, c, {raw(x), c}, {raw(weight), c, true}, raw(gates), width);
    if (!backward) return;
    product(tokens, c, width, {raw(gates), width}, {raw(weight), c}, raw(out), c);
    product(width, c, tokens, {raw(gates), width, true}, {raw(x), c}, raw(out), c);
  };
  all(0);
  return time_calls(stream, 4, all).ms;
}

// One step, the way that the planner picks, beside the launches of its matrix products alone.
template <class T>
void decode(const CellInfo& cell, Index batch, Index hidden, cudaStream_t stream, Report& report) {
  const Shape s{batch, 1, hidden};
  Problem<T, double> want(cell, s, false, dispatch::Strategy::automatic, stream);
  Problem<T, T> p(cell, s, false, dispatch::Strategy::automatic, stream);
  want.forward(want.inference, true);
  p.forward(p.inference, true);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  const double error = worst_error(p.y, want.y, largest(want.y));
  if (!(error < (sizeof(T) == 4 ? 1e-5 : 0.05))) {
    std::fprintf(stderr, "%s one step: error %g, not timed\n", cell.name.c_str(), error);
    std::exit(1);
  }
  const auto time = time_calls(stream, 200, [&](int) { p.forward(p.inference, true); });
  const bool dense = cell.recurrence == dispatch::Recurrence::dense;  // W x, and R h of its size
  const double products = products_ms<T>(cell, s, false, stream) * (dense ? 2 : 1);
  const char* strategy = dispatch::name(p.inference.strategy);
  std::printf("%-8s one step B%-3d H%-5d %-8s %-10s %7.2f us, products alone %.2f us\n",
              cell.name.c_str(), (int)batch, (int)hidden, name_of<T>(), strategy, 1e3 * time.ms,
              1e3 * products);
  report.add(
      format("{\"bench\": \"step\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": "
             "\"%s\", \"pass\": \"step\", \"B\": %d, \"T\": 1, \"C\": %d, \"H\": %d, "
             "\"dtype\": \"%s\", \"ms\": %.6f, \"ms_spread\": %.6f, \"gemm_ms\": %.6f, "
             "\"max_error\": %.2e}",
             cell.name.c_str(), strategy, (int)batch, (int)hidden, (int)hidden, name_of<T>(),
             time.ms, time.spread, products, error));
}

// The program of a bench, [--json FILE]: measure(stream, report).
template <class F>
int bench_main(int argc, char** argv, F&& measure) {
  const bool json = argc == 3 && std::string(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: %s [--json FILE]\n", argv[0]);
    return 2;
  }
  try {
    cudaStream_t stream;
    int units;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));
    Report report(json ? argv[2] : nullptr, argc, argv, copy_gbps(stream, units));
    measure(stream, report);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace scanrnn::bench
