// SPDX-License-Identifier: Apache-2.0
// A CUDA device as a backend: each layer is a product and a kernel on the caller's stream. Nothing
// here allocates device memory or waits for the device.
#include "cuda/device.h"
#include "cuda/kernels/dense.h"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/scan.h"
#include "cuda/run.cuh"
#include "recurrence/linear_layer.h"
#include "stack/backend.h"

namespace scanrnn {
namespace {

template <class T>
const CudaCellTable<T>& kernels_of(Cell cell) {
  switch (cell) {
#define SCANRNN_LINEAR_CELL(name, ...) \
  case Cell::name:                     \
    return cuda_cell_table<Cell::name, T>();
#include "scanrnn/cells.def"
    default:
      break;
  }
  throw value_error("cell: there is no such cell");
}

template <class T>
struct LayerRun : CudaRun<T> {
  using Run = CudaRun<T>;
  using V = typename Run::V;
  static constexpr bool kAddsBias = LayerUnits<T>::kAddsBias;
  using Run::all;
  using Run::arena;
  using Run::call;
  using Run::data;
  using Run::plan;
  using Run::product;
  using Run::rows;
  using Run::stream;
  using Run::take;
  using Run::tokens;
  using Run::width;

  CudaSchedule schedule() const {
    CudaSchedule out;
    out.extent = {call.batch, call.hidden, call.steps};
    out.strategy = plan.strategy;
    out.across_blocks = plan.across_blocks;
    out.log_domain = plan.problem.log_domain;
    out.units = static_cast<int>(plan.device.units);
    out.shared = static_cast<std::size_t>(plan.device.shared_bytes);
    out.stream = stream;
    return out;
  }

  // The bias of every row block, null where none has one: the parameter itself, or a copy with
  // zeros for the row blocks that have none.
  const T* whole_bias() {
    if (arena.counting()) return take(width());
    if (!call.bias && !kAddsBias) return nullptr;
    const auto [first, last] = call.biased();
    const bool aligned = reinterpret_cast<std::uintptr_t>(call.bias.data) % 16 == 0;
    if (call.bias && first == 0 && last == call.gates && aligned) return data(call.bias);
    T* out = take(width());
    pointwise::spread<<<pointwise::blocks_for(width()), pointwise::kThreads, 0, stream>>>(
        data(call.bias), first * call.hidden, (last - first) * call.hidden, out, width());
    SCANRNN_CUDA(cudaGetLastError());
    return out;
  }

  void forward() {
    const auto& kernels = kernels_of<T>(call.cell)[call.variant];
    CudaSchedule s = schedule();
    const bool direct = plan.strategy == dispatch::Strategy::direct;
    const T* bias = direct ? data(call.bias) : whole_bias();
    T* gates = static_cast<T*>(call.preactivations);
    void* gemm_space = nullptr;
    if (!direct) {
      if (!gates) gates = take(tokens() * width());
      gemm_space = arena.take(CudaGemm::kWorkspace);
      s.workspace = arena.take(kernels.workspace(s));
    }
    if (arena.counting() || call.batch == 0) return;
    s.initial = call.h0.data;
    s.initial_line = call.h0.strides[0];
    s.final = call.hn.data;
    s.final_line = call.hn.strides[0];
    const TensorView states = rows(call.states, call.hidden);
    const Strided<T> walked_gates = walked<T>(rows(gates, width()), all(), call.reverse);
    const Strided<T> y = walked<T>(call.y, all(), call.reverse);
    const Strided<T> kept_states = walked<T>(states, all(), call.reverse);
    const Strided<const T> x = as_const(walked<T>(call.x, all(), call.reverse));
    if (direct) {
      DirectKernelArgs<T> args;
      args.weight = data(call.weight);
      args.weight_stride = call.weight.strides[0];
      args.input = call.input;
      args.bias = bias;
      args.first_bias = call.biased().first;
      args.last_bias = call.biased().second;
      args.x = x;
      if (!call.highway_projection()) args.skip = x;
      args.preactivations = walked_gates;
      args.y = y;
      args.states = kept_states;
      SCANRNN_CUDA(kernels.direct(s, args));
      return;
    }
    for_runs<T>(call, all(), call.x, [&](const T* from, Index spacing, Index first, Index count) {
      product(count, width(), call.input, {from, spacing},
              {call.weight.data, call.weight.strides[0], true}, gates + first * width(), width(),
              false, kAddsBias ? nullptr : bias, gemm_space);
    });
    const auto args = forward_args(call, as_const(walked_gates), bias, x, y, kept_states);
    SCANRNN_CUDA(kernels.forward(s, args));
  }

  void backward() {
    const auto& kernels = kernels_of<T>(call.cell)[call.variant];
    CudaSchedule s = schedule();
    if (s.strategy == dispatch::Strategy::direct) s.strategy = dispatch::Strategy::fused_sequential;
    const bool adds_skip = carries_input(call);
    // The highway's cotangent goes to dx, which the product then adds to; or it waits beside it.
    const bool skip_aside = adds_skip && (call.accumulate_dx || !call.dx || arena.counting());
    const T* bias = kAddsBias ? whole_bias() : nullptr;
    T* dgates = take(tokens() * width());
    T* dskip = skip_aside ? take(tokens() * call.hidden) : nullptr;
    void* gemm_space = arena.take(CudaGemm::kWorkspace);
    s.workspace = arena.take(kernels.workspace(s));
    auto* parts = static_cast<V*>(
        arena.take(static_cast<std::size_t>(pointwise::kParts * width()) * sizeof(V)));
    if (arena.counting()) return;

    s.initial = call.dhn.data;
    s.initial_line = call.dhn.strides[0];
    s.final = call.dh0.data;
    s.final_line = call.dh0.strides[0];
    const auto args =
        backward_args(call, bias, dgates, skip_aside ? rows(dskip, call.hidden) : call.dx);
    if (call.batch > 0) SCANRNN_CUDA(kernels.backward(s, args));

    if (call.dx && tokens() > 0) {
      this->input_cotangent(dgates, width(), call.accumulate_dx || (adds_skip && !skip_aside),
                            gemm_space);
      if (skip_aside) {
        pointwise::
            add<<<pointwise::blocks_for(tokens() * call.hidden), pointwise::kThreads, 0, stream>>>(
                as_const(walked<T>(rows(dskip, call.hidden), all(), false)),
                walked<T>(call.dx, all(), false), call.steps, call.batch, call.hidden);
        SCANRNN_CUDA(cudaGetLastError());
      }
    }
    if (call.dweight) this->weight_cotangent(dgates, width(), gemm_space);
    if (call.dbias) {
      const auto [first, last] = call.biased();
      this->sum_tokens(dgates + first * call.hidden, width(), (last - first) * call.hidden, parts,
                       call.dbias.data);
    }
  }
};

class CudaBackend : public Backend {
 public:
  CudaBackend() { limits_.processor = dispatch::Processor::cuda; }  // counts, and runs nothing
  explicit CudaBackend(const ContextOptions& options) : CudaBackend() {
    device_ = options.device.index;
    stream_ = static_cast<cudaStream_t>(options.stream);
    const DeviceInfo found = find_cuda_device(device_);
    limits_.units = found.units;
    limits_.shared_bytes = found.shared_memory;
    const dispatch::Profile* measured = dispatch::find_profile(found.architecture);
    if (measured) profile_ = measured;
    const DeviceGuard guard(device_);
    gemm_ = std::make_unique<CudaGemm>(options.cublas_lt, options.matmul_precision);
  }
  ~CudaBackend() override {
    if (!gemm_) return;
    int before = 0;  // a destructor has nobody to tell about a failure
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    gemm_.reset();
    cudaSetDevice(before);
  }

  const dispatch::DeviceLimits& limits() const override { return limits_; }
  const dispatch::Profile& default_profile() const override { return *profile_; }
  Dtype inner_type(Dtype dtype) const override { return dtype; }
  void set_matmul_precision(MatmulPrecision precision) override { gemm_->set_precision(precision); }
  void set_stream(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) override {
    if (call.is_dense()) {
      return on_device(arena, [&] { cuda_dense_forward(plan, call, arena, gemm_.get(), stream_); });
    }
    with_type(call.y.dtype, [&](auto type) {
      on_device(arena, [&] {
        LayerRun<decltype(type)>{{plan, call, arena, gemm_.get(), stream_}}.forward();
      });
    });
  }
  void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) override {
    if (call.is_dense()) {
      return on_device(arena,
                       [&] { cuda_dense_backward(plan, call, arena, gemm_.get(), stream_); });
    }
    with_type(call.y.dtype, [&](auto type) {
      on_device(arena, [&] {
        LayerRun<decltype(type)>{{plan, call, arena, gemm_.get(), stream_}}.backward();
      });
    });
  }
  void scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena) override {
    on_device(arena, [&] { cuda_scan(plan, args, arena, stream_); });
  }
  void scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args,
                     Arena& arena) override {
    on_device(arena, [&] { cuda_scan_backward(plan, args, arena, stream_); });
  }
  void copy(const TensorView& from, const TensorView& to) override {
    throw type_error(std::string("copy: CUDA works in the tensors' own dtype, got ") +
                     name(from.dtype) + " and " + name(to.dtype));
  }
  void dropout(const TensorView& from, const TensorView& to, double share,
               std::uint64_t seed) override {
    const DeviceGuard guard(device_);
    const Index steps = from.sizes[0], batch = from.sizes[1], width = from.sizes[2];
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      const Tile all{0, steps, 0, batch};
      pointwise::
          drop<<<pointwise::blocks_for(steps * batch * width), pointwise::kThreads, 0, stream_>>>(
              as_const(walked<T>(from, all, false)), walked<T>(to, all, false), steps, batch, width,
              drop_threshold(share), 1.0 / (1.0 - share), seed);
      SCANRNN_CUDA(cudaGetLastError());
    });
  }

 private:
  template <class F>
  void on_device(const Arena& arena, F&& work) {
    if (arena.counting()) return work();
    const DeviceGuard guard(device_);
    work();
  }

  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  dispatch::DeviceLimits limits_;
  const dispatch::Profile* profile_ = &dispatch::generic_cuda_profile();
  std::unique_ptr<CudaGemm> gemm_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const ContextOptions& options) {
  return std::make_unique<CudaBackend>(options);
}
Backend& cuda_counting_backend() {
  static CudaBackend backend;
  return backend;
}

}  // namespace scanrnn
