// SPDX-License-Identifier: Apache-2.0
// A layer with its tensors on a device, and its matrix products alone: what the benches of layers
// share.
#pragma once

#include "axes.h"
#include "cuda/gemm.h"
#include "engine_cuda.cuh"
#include "scanrnn/scanrnn.h"

namespace scanrnn::bench {
namespace {

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
thrust::device_vector<As> numbers(Index count, double scale, std::uint64_t seed,
                                  double offset = 0) {
  auto unit = filled<float>(count, Fill::value, seed);
  thrust::transform(unit.begin(), unit.end(), unit.begin(), [scale, offset] __device__(float x) {
    return static_cast<float>(scale * x + offset);
  });
  thrust::device_vector<T> held(count);
  thrust::transform(unit.begin(), unit.end(), held.begin(), Convert<T>());
  thrust::device_vector<As> out(count);
  thrust::transform(held.begin(), held.end(), out.begin(), Convert<As>());
  return out;
}

// How many layers a problem has, in how many directions each walks, and how many heads it has.
struct Stack {
  int layers = 1, directions = 1, heads = 1;
};

// A layer with its tensors: inputs are those that `T` can hold, stored as `As`.
template <class T, class As>
struct Problem {
  Shape shape;
  Stack stack;
  Layer layer;
  Context context;
  dispatch::Plan inference, training;
  std::vector<thrust::device_vector<As>> params, dparams;
  thrust::device_vector<As> x, dx, y, dy;
  thrust::device_vector<As> before[kStateTensors.size()], after[kStateTensors.size()];
  thrust::device_vector<char> workspace, reserve;

  static LayerOptions options(const CellInfo& cell, const Shape& s, bool batch_first,
                              const Stack& stack) {
    LayerOptions out;
    out.num_layers = stack.layers;
    out.bidirectional = stack.directions == 2;
    out.num_heads = stack.heads;
    out.cell = cell.cell;
    out.input_size = s.input();
    out.hidden_size = s.hidden;
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
          cudaStream_t stream, MatmulPrecision precision = MatmulPrecision::highest,
          const Stack& stack = {})
      : shape(s),
        stack(stack),
        layer(options(cell, s, batch_first, stack)),
        context(where(stream, precision)),
        inference(layer.plan(context, s.steps, s.batch, Mode::inference, strategy)),
        training(layer.plan(context, s.steps, s.batch, Mode::training, strategy)) {
    for (const ParameterInfo& parameter : layer.parameters()) {
      Index count = 1;
      for (Index size : parameter.sizes) count *= size;
      params.push_back(numbers<T, As>(count, 1 / std::sqrt(double(s.hidden)), params.size() + 5));
      dparams.emplace_back(count);
    }
    const Index tokens = s.batch * s.steps, width = s.hidden * stack.directions;
    x = numbers<T, As>(tokens * s.input(), 1.5, 1);
    dx.resize(tokens * s.input());
    dy = numbers<T, As>(tokens * width, 1, 2);
    y.resize(tokens * width);
    const Index states = stack.layers * stack.directions * s.batch * s.hidden;
    for (std::size_t i = 0; i < kStateTensors.size(); ++i) {
      after[i].resize(states);
      // SLSTM divides by n, which no sequence leaves near zero.
      const double offset = kStateTensors[i] == &State::n ? 2 : 0;
      before[i] = numbers<T, As>(states, 1, 3 + static_cast<int>(i), offset);
    }
    resize();
  }
  void resize() {
    const Sizes one = layer.sizes(inference), other = layer.sizes(training);
    workspace.resize(std::max(one.workspace, other.workspace));
    reserve.resize(other.reserve);
  }

  TensorView tokens(thrust::device_vector<As>& data, Index width) const {
    const bool b = layer.options().batch_first;
    return TensorView::of(raw(data), dtype_of<As>(),
                          {b ? shape.batch : shape.steps, b ? shape.steps : shape.batch, width},
                          Device::cuda());
  }
  TensorView inputs(thrust::device_vector<As>& data) const { return tokens(data, shape.input()); }
  TensorView outputs(thrust::device_vector<As>& data) const {
    return tokens(data, stack.directions * shape.hidden);
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
    return TensorView::of(raw(data), dtype_of<As>(),
                          {stack.layers * stack.directions, shape.batch, shape.hidden},
                          Device::cuda());
  }

  // From zeros, or as decoding does from a state to the next, in its place perhaps.
  void forward(const dispatch::Plan& plan, bool from_state = false, bool in_place = false) {
    ForwardArgs args;
    args.params = views(params);
    args.x = inputs(x);
    args.y = outputs(y);
    const auto tensors = static_cast<std::size_t>(info(layer.options().cell).states);
    for (std::size_t i = 0; i < tensors; ++i) {
      args.hn.*kStateTensors[i] = state(in_place ? before[i] : after[i]);
      if (from_state) args.h0.*kStateTensors[i] = state(before[i]);
    }
    args.workspace = {raw(workspace), workspace.size()};
    args.reserve = {raw(reserve), reserve.size()};
    layer.forward(context, plan, args);
  }
  void backward() {
    BackwardArgs args;
    args.params = views(params);
    args.dparams = views(dparams);
    args.x = inputs(x);
    args.y = outputs(y);
    args.dy = outputs(dy);
    args.dx = inputs(dx);
    args.workspace = {raw(workspace), workspace.size()};
    args.reserve = {raw(reserve), reserve.size()};
    layer.backward(context, training, args);
  }
};

// A strategy as rows name it; a parallel scan splits time in several ways.
inline std::string way_of(const dispatch::Plan& plan) {
  const std::string name = dispatch::name(plan.strategy);
  if (plan.strategy != dispatch::Strategy::parallel_scan) return name;
  if (plan.along_lanes) return name + (plan.across_blocks ? ", lanes, device" : ", lanes");
  return name + (plan.across_blocks ? ", device" : ", block");
}

// Wrong results so far. What is wrong is not timed, and the program goes on and says so at its end.
inline int failures = 0;

// Errors of both passes against a run in float64.
struct Errors {
  double y = 0, gradients = 0;
  bool within(const Errors& bounds) const {  // NaN is not
    return y <= bounds.y && gradients <= bounds.gradients;
  }
};
template <class T>
Errors checked(Problem<T, T>& p, const Problem<T, double>& want, Errors bounds, const char* what) {
  Errors found;
  const auto look = [&] {
    CHECK_CUDA(cudaDeviceSynchronize());
    found.y = std::max(found.y, worst_error(p.y, want.y, largest(want.y)));
  };
  p.forward(p.inference);
  look();
  p.forward(p.training);
  p.backward();  // all products have chosen their algorithms, which a capture may not
  look();
  found.gradients = rms_error(p.dx, want.dx);
  for (std::size_t i = 0; i < p.dparams.size(); ++i) {
    found.gradients = std::max(found.gradients, rms_error(p.dparams[i], want.dparams[i]));
  }
  if (!found.within(bounds)) {
    std::fprintf(stderr, "FAIL %s: errors %g and %g, not timed\n", what, found.y, found.gradients);
    ++failures;
  }
  return found;
}

// A layer's matrix products alone: one, or with backward three.
template <class T>
class Products {
 public:
  Products(const CellInfo& cell, const Shape& s, cudaStream_t stream,
           MatmulPrecision precision = MatmulPrecision::highest)
      : tokens_(s.batch * s.steps),
        width_(cell.gates * s.hidden),
        c_(s.input()),
        stream_(stream),
        gemm_(nullptr, precision),
        x_(numbers<T, T>(tokens_ * c_, 1, 1)),
        weight_(numbers<T, T>(width_ * c_, 0.03, 2)),
        gates_(numbers<T, T>(tokens_ * width_, 1, 3)),
        out_(std::max(tokens_, width_) * c_),
        workspace_(CudaGemm::kWorkspace) {
    (*this)(true);
  }
  void operator()(bool backward) {
    product(tokens_, width_, c_, {raw(x_), c_}, {raw(weight_), c_, true}, raw(gates_), width_);
    if (!backward) return;
    product(tokens_, c_, width_, {raw(gates_), width_}, {raw(weight_), c_}, raw(out_), c_);
    product(width_, c_, tokens_, {raw(gates_), width_, true}, {raw(x_), c_}, raw(out_), c_);
  }
  int add(Turns& turns, int calls, bool backward) {
    return turns.add(calls, [this, backward](int) { (*this)(backward); });
  }

 private:
  void product(Index m, Index n, Index k, Factor a, Factor b, void* out, Index stride) {
    CudaProduct p;
    p.dtype = dtype_of<T>();
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a;
    p.b = b;
    p.c = out;
    p.c_stride = stride;
    gemm_.run(p, raw(workspace_), stream_);
  }

  Index tokens_, width_, c_;
  cudaStream_t stream_;
  CudaGemm gemm_;
  thrust::device_vector<T> x_, weight_, gates_, out_;
  thrust::device_vector<char> workspace_;
};

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
    std::fprintf(stderr, "FAIL %s, one step: error %g, not timed\n", cell.name.c_str(), error);
    ++failures;
    return;
  }
  const bool dense = cell.recurrence == dispatch::Recurrence::dense;  // W x, and R h of its size
  Products<T> gemm(cell, s, stream);
  Turns turns(stream);
  const int step = turns.add(200, [&](int) { p.forward(p.inference, true); });
  const int product = gemm.add(turns, 200, false);
  turns.measure();
  const Timing time = turns.time(step);
  const double products = turns.time(product).ms * (dense ? 2 : 1);
  const std::string strategy = way_of(p.inference);
  std::printf("%-8s one step B%-3d H%-5d %-8s %-10s %7.2f us, products alone %.2f us\n",
              cell.name.c_str(), (int)batch, (int)hidden, name_of<T>(), strategy.c_str(),
              1e3 * time.ms, 1e3 * products);
  report.add(
      format("{\"bench\": \"step\", \"cell\": \"%s\", \"impl\": \"scanrnn\", \"strategy\": "
             "\"%s\", \"pass\": \"step\", \"B\": %d, \"T\": 1, \"C\": %d, \"H\": %d, "
             "\"dtype\": \"%s\", \"ms\": %.6f, \"ms_spread\": %.6f, \"gemm_ms\": %.6f, "
             "\"max_error\": %.2e, %s}",
             cell.name.c_str(), strategy.c_str(), (int)batch, (int)hidden, (int)hidden,
             name_of<T>(), time.ms, time.spread, products, error, turns.clocks().c_str()));
}

// What a bench is asked to measure alone; empty: all.
inline std::string only_cell, only_size;

// Whether a size was asked for, by a part of "B8 T4096 C512 H1024".
inline bool wanted(const Shape& s) {
  const std::string name =
      format("B%d T%d C%d H%d", (int)s.batch, (int)s.steps, (int)s.input(), (int)s.hidden);
  return name.find(only_size) != std::string::npos;
}

// The program of a bench, [--json FILE] [--cell NAME] [--size PART]: measure(stream, copy, report).
template <class F>
int bench_main(int argc, char** argv, F&& measure) {
  const char* json = nullptr;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc || (flag != "--json" && flag != "--cell" && flag != "--size")) {
      std::fprintf(stderr, "usage: %s [--json FILE] [--cell NAME] [--size PART]\n", argv[0]);
      return 2;
    }
    if (flag == "--json") json = argv[i + 1];
    if (flag == "--cell") only_cell = argv[i + 1];
    if (flag == "--size") only_size = argv[i + 1];
  }
  try {
    cudaStream_t stream;
    int units;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));
    const Copy copy(stream, units);
    Report report(json, argc, argv, copy.gbps());
    measure(stream, copy, report);
    if (failures > 0) std::fprintf(stderr, "%d FAILURES\n", failures);
    return failures > 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace scanrnn::bench
