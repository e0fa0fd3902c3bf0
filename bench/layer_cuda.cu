// SPDX-License-Identifier: Apache-2.0
// Whole layers on CUDA through the public API: each against a float64 run of another strategy
// first, then against its floor, which is its matrix products alone and the fewest bytes of its
// recurrence at the bandwidth of a copy, all measured in the same run.
//   layer_cuda [--json FILE]
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
  thrust::device_vector<As> x, dx, y, dy, hn;
  thrust::device_vector<char> workspace, reserve;

  static LayerOptions options(const CellInfo& cell, const Shape& s, bool batch_first) {
    LayerOptions out;
    out.cell = cell.cell;
    out.input_size = out.hidden_size = s.hidden;
    out.batch_first = batch_first;
    out.dtype = dtype_of<As>();
    return out;
  }
  static ContextOptions where(cudaStream_t stream) {
    ContextOptions out;
    out.device = Device::cuda();
    out.stream = stream;
    return out;
  }

  Problem(const CellInfo& cell, const Shape& s, bool batch_first, dispatch::Strategy strategy,
          cudaStream_t stream)
      : shape(s),
        layer(options(cell, s, batch_first)),
        context(where(stream)),
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
    hn.resize(s.batch * s.hidden);
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

  void forward(const dispatch::Plan& plan) {
    ForwardArgs args;
    args.params = views(params);
    args.x = tokens(x);
    args.y = tokens(y);
    args.hn.h =
        TensorView::of(raw(hn), dtype_of<As>(), {1, shape.batch, shape.hidden}, Device::cuda());
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
double products_ms(const CellInfo& cell, const Shape& s, bool backward, cudaStream_t stream) {
  const Index tokens = s.batch * s.steps, width = cell.gates * s.hidden, c = s.hidden;
  auto x = numbers<T, T>(tokens * c, 1, 1), weight = numbers<T, T>(width * c, 0.03, 2);
  auto gates = numbers<T, T>(tokens * width, 1, 3);
  thrust::device_vector<char> workspace(CudaGemm::kWorkspace);
  CudaGemm gemm(nullptr, MatmulPrecision::highest);
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

// The fewest elements of B*T*H that a recurrence moves, given its pre-activations.
double elements(const CellInfo& cell, bool backward) {
  const double gates = cell.gates, skip = cell.highway;
  const double forward = gates + 1 + skip;
  if (!backward) return forward;
  return forward + skip + (gates + 1 + 1 + 2 * skip) + gates + skip;
}

// The kernels that a plan can name, forced by the plan itself.
struct Choice {
  const char* name;
  dispatch::Strategy strategy;
  bool across_blocks;
};
constexpr Choice kChoices[] = {
    {"fused_sequential", dispatch::Strategy::fused_sequential, false},
    {"parallel_scan, block", dispatch::Strategy::parallel_scan, false},
    {"parallel_scan, device", dispatch::Strategy::parallel_scan, true},
};

template <class T>
void measure(const CellInfo& cell, const Shape& s, bool batch_first, const Choice& choice,
             const Problem<T, double>& want, const double (&products)[2], cudaStream_t stream,
             Report& report) {
  Problem<T, T> p(cell, s, batch_first, dispatch::Strategy::automatic, stream);
  const dispatch::Plan pick = p.training;
  for (dispatch::Plan* plan : {&p.inference, &p.training}) {
    plan->strategy = choice.strategy;
    plan->across_blocks = choice.across_blocks;
  }
  p.resize();
  const bool picked =
      pick.strategy == choice.strategy && pick.across_blocks == choice.across_blocks;
  p.forward(p.inference);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  const double error = worst_error(p.y, want.y, largest(want.y));
  if (!(error < (sizeof(T) == 4 ? 1e-5 : 0.05))) {
    std::fprintf(stderr, "%s: error %g, not timed\n", cell.name.c_str(), error);
    std::exit(1);
  }
  p.forward(p.training);
  p.backward();  // chooses the products' algorithms, which a capture may not
  const Index n = s.batch * s.steps * s.hidden;
  for (const bool backward : {false, true}) {
    const auto time = time_calls(stream, 3, [&](int) {
      p.forward(backward ? p.training : p.inference);
      if (backward) p.backward();
    });
    const double moved = elements(cell, backward) * n * sizeof(T);
    const double floor = products[backward] + moved / report.copy() / 1e6;
    std::printf(
        "%-8s B%-2d T%-6d H%-5d %-8s %s %-21s %-3s %8.4f ms, products %.4f, floor %.4f: "
        "%.2f x%s\n",
        cell.name.c_str(), (int)s.batch, (int)s.steps, (int)s.hidden, name_of<T>(),
        batch_first ? "BTH" : "TBH", choice.name, backward ? "f+b" : "f", time.ms,
        products[backward], floor, time.ms / floor, picked ? " (picked)" : "");
    report.add(format(
        "{\"bench\": \"layer\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": \"%s\", "
        "\"domain\": \"log\", \"pass\": \"%s\", \"layout\": \"%s\", \"B\": %d, \"T\": %d, "
        "\"C\": %d, \"H\": %d, \"dtype\": \"%s\", \"ms\": %.5f, \"ms_spread\": %.5f, "
        "\"gemm_ms\": %.5f, \"floor_ms\": %.5f, \"floor_ratio\": %.3f, \"peak_bytes\": %.0f, "
        "\"max_error\": %.2e, \"picked\": %s}",
        cell.name.c_str(), choice.name, backward ? "forward_backward" : "forward",
        batch_first ? "BTH" : "TBH", (int)s.batch, (int)s.steps, (int)s.hidden, (int)s.hidden,
        name_of<T>(), time.ms, time.spread, products[backward], floor, time.ms / floor,
        double(p.workspace.size() + p.reserve.size()), error, picked ? "true" : "false"));
  }
}

template <class T>
void measure_all(const CellInfo& cell, const Shape& s, cudaStream_t stream, Report& report) {
  const double products[2] = {products_ms<T>(cell, s, false, stream),
                              products_ms<T>(cell, s, true, stream)};
  for (const bool batch_first : {false, true}) {
    Problem<T, double> want(cell, s, batch_first, dispatch::Strategy::fused_sequential, stream);
    want.forward(want.inference);
    for (const Choice& choice : kChoices) {
      if (s.steps > 16384 && choice.strategy == dispatch::Strategy::fused_sequential) continue;
      measure<T>(cell, s, batch_first, choice, want, products, stream, report);
    }
  }
}

// One step of one sequence beside the matrix product's launch alone.
template <class T>
void decode(const CellInfo& cell, Index hidden, cudaStream_t stream, Report& report) {
  const Shape s{1, 1, hidden};
  Problem<T, T> p(cell, s, false, dispatch::Strategy::automatic, stream);
  p.forward(p.inference);
  const auto time = time_calls(stream, 200, [&](int) { p.forward(p.inference); });
  const double products = products_ms<T>(cell, s, false, stream);
  std::printf("%-8s one step H%-5d %-8s %-10s %7.2f us, product alone %.2f us\n", cell.name.c_str(),
              (int)hidden, name_of<T>(), dispatch::name(p.inference.strategy), 1e3 * time.ms,
              1e3 * products);
  report.add(
      format("{\"bench\": \"step\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": "
             "\"%s\", \"pass\": \"step\", \"B\": 1, \"T\": 1, \"C\": %d, \"H\": %d, "
             "\"dtype\": \"%s\", \"ms\": %.6f, \"ms_spread\": %.6f, \"gemm_ms\": %.6f}",
             cell.name.c_str(), dispatch::name(p.inference.strategy), (int)hidden, (int)hidden,
             name_of<T>(), time.ms, time.spread, products));
}

int run_all(int argc, char** argv) {
  const bool json = argc == 3 && std::string(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: %s [--json FILE]\n", argv[0]);
    return 2;
  }
  cudaStream_t stream;
  int units;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));
  Report report(json ? argv[2] : nullptr, argc, argv, copy_gbps(stream, units));
  for (const CellInfo& cell : cells()) {
    if (cell.recurrence != dispatch::Recurrence::linear) continue;
    for (const Shape& s : {Shape{8, 4096, 1024}, Shape{16, 1024, 768}, Shape{1, 65536, 1024},
                           Shape{32, 128, 512}, Shape{64, 1024, 1024}}) {
      measure_all<__nv_bfloat16>(cell, s, stream, report);
    }
    measure_all<float>(cell, {8, 4096, 1024}, stream, report);
    decode<__nv_bfloat16>(cell, 1024, stream, report);
  }
  return 0;
}

}  // namespace
}  // namespace scanrnn::bench

int main(int argc, char** argv) {
  try {
    return scanrnn::bench::run_all(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
