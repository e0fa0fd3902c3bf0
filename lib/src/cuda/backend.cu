// SPDX-License-Identifier: Apache-2.0
// A CUDA device as a backend: its limits, its handle of cuBLASLt and dropout here, layers in
// cuda/linear.cu and cuda/dense.cu. Nothing allocates device memory or waits for the device.
#include <functional>
#include <optional>

#include "cuda/kernels/dense.h"
#include "cuda/kernels/lines.h"
#include "cuda/kernels/scan.h"
#include "cuda/lanes.h"
#include "cuda/linear.h"
#include "cuda/pointwise.cuh"
#include "cuda/ragged.cuh"
#include "cuda/run.cuh"
#include "cuda/runtime.h"

namespace scanrnn {
namespace {

class CudaBackend : public Backend {
 public:
  CudaBackend() { limits_.processor = dispatch::Processor::cuda; }  // counts, and runs nothing
  explicit CudaBackend(const ContextOptions& options) : CudaBackend() {
    device_ = options.device.index;
    stream_ = static_cast<cudaStream_t>(options.stream);
    const DeviceInfo found = find_cuda_device(device_);
    limits_.units = found.units;
    limits_.shared_bytes = found.shared_memory;
#ifdef SCANRNN_WARP_GROUPS
    limits_.warp_groups = found.architecture == "sm_90";
#endif
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
    lanes_.reset();
    cudaSetDevice(before);
  }

  const dispatch::DeviceLimits& limits() const override { return limits_; }
  const dispatch::Profile& default_profile() const override { return *profile_; }
  Dtype inner_type(Dtype dtype) const override { return dtype; }
  void set_matmul_precision(MatmulPrecision precision) override { gemm_->set_precision(precision); }
  void set_stream(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) override {
    const auto run = call.is_dense() ? cuda_dense_forward : cuda_forward;
    on_device(arena, [&] { run(plan, call, arena, gemm_.get(), stream_); });
  }
  void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) override {
    const auto run = call.is_dense() ? cuda_dense_backward : cuda_backward;
    on_device(arena, [&] { run(plan, call, arena, gemm_.get(), stream_); });
  }
  void at_once(int calls, Index parts, bool chained,
               const std::function<void(int, Index)>& run) override {
    const DeviceGuard guard(device_);
    if (!lanes_) lanes_.emplace();
    lanes_->run(stream_, calls, parts, chained, run);
  }
  void chain(const dispatch::Plan& plan, const std::vector<LayerCall>& calls, bool backward,
             Arena& arena) override {
    on_device(arena, [&] { cuda_dense_chain(plan, calls, backward, arena, gemm_.get(), stream_); });
  }
  void step_stack(const dispatch::Plan& plan, const std::vector<LayerCall>& calls,
                  const TensorView& indices) override {
    const DeviceGuard guard(device_);
    cuda_dense_step_stack(plan, calls, indices, stream_);
  }
  void scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena) override {
    on_device(arena, [&] { cuda_scan(plan, args, arena, stream_); });
  }
  void scan_backward(const dispatch::Plan& plan, const ScanBackwardArgs& args,
                     Arena& arena) override {
    on_device(arena, [&] { cuda_scan_backward(plan, args, arena, stream_); });
  }
  void copy(const TensorView& from, const TensorView& to) override {
    if (from.dtype != to.dtype) {
      throw type_error(std::string("copy: CUDA works in the tensors' own dtype, got ") +
                       name(from.dtype) + " and " + name(to.dtype));
    }
    over_rows(to, [&](auto type, unsigned blocks) {
      ragged::with_pieces<decltype(type)>({from, to}, [&](auto piece, Index each) {
        using Piece = decltype(piece);
        ragged::copy<Piece><<<blocks, pointwise::kThreads, 0, stream_>>>(
            ragged::Cube<const Piece>(from, each), ragged::Cube<Piece>(to, each));
      });
    });
  }
  void dropout(const TensorView& from, const TensorView& to, const Drop& drop) override {
    const DeviceGuard guard(device_);
    const Index steps = from.sizes[0], batch = from.sizes[1], width = from.sizes[2];
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      const Tile all{0, steps, 0, batch};
      pointwise::
          drop<<<pointwise::blocks_for(steps * batch * width), pointwise::kThreads, 0, stream_>>>(
              as_const(walked<T>(from, all, false)), walked<T>(to, all, false), steps, batch, width,
              drop.threshold(), static_cast<typename scan::Units<T>::V>(drop.scale()), drop.seed,
              drop.adds, !drop.sequences, drop.first_step,
              drop.sequences ? *drop.sequences : SequenceBounds({}, 0, 0, false));
      SCANRNN_CUDA(cudaGetLastError());
    });
  }

  void product(Dtype dtype, Index m, Index n, Index k, const Factor& a, const Factor& b, void* c,
               Index c_stride, bool accumulate, Arena& workspace, bool wide) override {
    void* const memory = workspace.take(CudaGemm::kWorkspace);
    if (workspace.counting() || m == 0 || n == 0 || (k == 0 && accumulate)) return;
    const DeviceGuard guard(device_);
    if (k == 0) {  // which nobody asks for in another type
      SCANRNN_CUDA(cudaMemset2DAsync(c, static_cast<std::size_t>(c_stride) * size_of(dtype), 0,
                                     static_cast<std::size_t>(n) * size_of(dtype),
                                     static_cast<std::size_t>(m), stream_));
      return;
    }
    CudaProduct p{dtype, m, n, k, a, b, c, c_stride, accumulate};
    p.wide = wide;
    gemm_->run(p, memory, stream_);
  }
  void sum_tokens(const TensorView& tokens, const TensorView& sums, Arena& workspace) override {
    const Index columns = tokens.sizes[2];
    with_type(tokens.dtype, [&](auto type) {
      using T = decltype(type);
      using V = typename scan::Units<T>::V;
      auto* parts = static_cast<V*>(
          workspace.take(static_cast<std::size_t>(pointwise::kParts * columns) * sizeof(V)));
      if (workspace.counting()) return;
      const DeviceGuard guard(device_);
      const pointwise::ToColumns<T> to{static_cast<T*>(sums.data)};
      SCANRNN_CUDA(pointwise::sum_rows<T>(
          static_cast<const T*>(tokens.data), tokens.sizes[0] * tokens.sizes[1],
          std::min(tokens.strides[0], tokens.strides[1]), columns, parts, to, stream_));
    });
  }
  void norm_tokens(const TensorView& from, const TensorView& scale, const TensorView& bias,
                   const TensorView& to) override {
    over_tokens(from, [&](auto type) {
      using T = decltype(type);
      CudaNormArgs<T> args = norm_args<T>(from, scale);
      args.bias = static_cast<const T*>(bias.data);
      args.to = tokens_of<T>(to);
      SCANRNN_CUDA(cuda_norm(args, stream_));
    });
  }
  void norm_tokens_vjp(const TensorView& from, const TensorView& scale, const TensorView& d,
                       const TensorView& dfrom, const TensorView& dscale) override {
    over_tokens(from, [&](auto type) {
      using T = decltype(type);
      CudaNormArgs<T> args = norm_args<T>(from, scale);
      args.d = tokens_of<T>(d);
      args.dfrom = tokens_of<T>(dfrom);
      args.dscale = tokens_of<T>(dscale);
      SCANRNN_CUDA(cuda_norm_vjp(args, stream_));
    });
  }
  void line_step(const LineStep& step) override {
    if (step.lines() == 0) return;
    const DeviceGuard guard(device_);
    with_type(step.call.y.dtype, [&](auto type) {
      using T = decltype(type);
      using V = typename scan::Units<T>::V;
      SCANRNN_CUDA(cuda_line_step<T>(step.call.cell, step.call.variant, step.phase,
                                     line_args<T, V>(step), step.lines(), stream_));
    });
  }
  void walk_lines(const dispatch::Plan& plan, const LineStep& step, Index first, Index end,
                  bool backward, Arena& arena) override {
    on_device(arena, [&] { cuda_walk_lines(plan, step, first, end, backward, arena, stream_); });
  }
  // How long packed sequences are is told on the device.
  Index most_steps(const dispatch::Plan& plan, const LayerCall& call) const override {
    const Index longest = plan.problem.longest;
    return call.layout == dispatch::Batch::packed && longest > 0 ? longest : call.steps;
  }
  void spread_heads(const TensorView& from, const TensorView& to, bool back) override {
    const DeviceGuard guard(device_);
    const TensorView &heads = back ? to : from, &whole = back ? from : to;
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      const auto run = back ? pointwise::spread_heads<T, true> : pointwise::spread_heads<T, false>;
      run<<<pointwise::blocks_for(whole.sizes[0] * whole.sizes[1]), pointwise::kThreads, 0,
            stream_>>>(static_cast<T*>(heads.data), heads.strides[0], static_cast<T*>(whole.data),
                       whole.strides[0], whole.sizes[0], heads.sizes[1], whole.sizes[1]);
      SCANRNN_CUDA(cudaGetLastError());
    });
  }
  void add_to_last(const LayerCall& call, const TensorView& rows,
                   const TensorView& tokens) override {
    over_rows(rows, [&](auto type, unsigned blocks) {
      using T = decltype(type);
      ragged::add_to_edges<T><<<blocks, pointwise::kThreads, 0, stream_>>>(
          EdgeSteps(call, true),
          Strided<const T>{static_cast<const T*>(rows.data), rows.strides[0], 0},
          ragged::Cube<T>(tokens), tokens.sizes[2]);
    });
  }
  void take_last(const LayerCall& call, const TensorView& tokens, const TensorView& rows) override {
    over_rows(rows, [&](auto type, unsigned blocks) {
      using T = decltype(type);
      ragged::take_edges<T><<<blocks, pointwise::kThreads, 0, stream_>>>(
          EdgeSteps(call, true), ragged::Cube<const T>(tokens),
          Strided<T>{static_cast<T*>(rows.data), rows.strides[0], 0}, tokens.sizes[2]);
    });
  }
  void take_entering(const LayerCall& call, const TensorView& states,
                     const TensorView& rows) override {
    over_rows(rows, [&](auto type, unsigned blocks) {
      using T = decltype(type);
      ragged::take_entering<T><<<blocks, pointwise::kThreads, 0, stream_>>>(
          EdgeSteps(call, false), ragged::Cube<const T>(states), ragged::Cube<T>(rows));
    });
  }
  void pass_states(const SequenceBounds& sequences, const TensorView& from,
                   const TensorView& to) override {
    if (sequences.count == 0) return;
    const DeviceGuard guard(device_);
    with_type(to.dtype, [&](auto type) {
      ragged::pass_states<decltype(type)>(sequences, from, to, stream_);
    });
  }

  RaggedTables prepare(const dispatch::Plan& plan, const Ragged& told, bool backward,
                       Arena& arena) override {
    RaggedTables out;
    on_device(arena, [&] { out = ragged::prepare(plan, told, backward, arena, stream_); });
    return out;
  }
  void clear_padding(const TensorView& view, const TensorView& lengths) override {
    over_tokens(view, [&](auto type) {
      ragged::clear_padding<decltype(type)>(view, Integers(lengths), stream_);
    });
  }
  void clear_skipped(const TensorView& view, const TensorView& indices, Index states) override {
    over_rows(view, [&](auto type, unsigned blocks) {
      ragged::clear_skipped<<<blocks, pointwise::kThreads, 0, stream_>>>(
          ragged::Cube<decltype(type)>(view), PoolRows{Integers(indices), states});
    });
  }
  void take_states(const TensorView& pool, const TensorView& indices,
                   const TensorView& rows) override {
    over_rows(rows, [&](auto type, unsigned blocks) {
      using T = decltype(type);
      ragged::take_states<T><<<blocks, pointwise::kThreads, 0, stream_>>>(
          ragged::Cube<const T>(pool), PoolRows{Integers(indices), pool.sizes[1]},
          ragged::Cube<T>(rows));
    });
  }
  void put_states(const TensorView& rows, const TensorView& indices,
                  const TensorView& pool) override {
    over_rows(rows, [&](auto type, unsigned blocks) {
      using T = decltype(type);
      ragged::put_states<T><<<blocks, pointwise::kThreads, 0, stream_>>>(
          ragged::Cube<const T>(rows), PoolRows{Integers(indices), pool.sizes[1]},
          ragged::Cube<T>(pool));
    });
  }

 private:
  // launch(T(), blocks) for a tensor that is worked on by rows.
  template <class F>
  void over_rows(const TensorView& view, F&& launch) {
    const Index rows = ragged::rows_of(view);
    if (rows == 0) return;
    const DeviceGuard guard(device_);
    with_type(view.dtype, [&](auto type) {
      launch(type, ragged::blocks_for_rows(rows));
      SCANRNN_CUDA(cudaGetLastError());
    });
  }
  template <class T>
  static Strided<T> tokens_of(const TensorView& view) {
    return {static_cast<T*>(view.data), view.strides[1], view.strides[0]};
  }
  template <class T>
  static CudaNormArgs<T> norm_args(const TensorView& from, const TensorView& scale) {
    CudaNormArgs<T> out;
    out.steps = from.sizes[0], out.batch = from.sizes[1], out.width = from.sizes[2];
    out.from = tokens_of<T>(from);
    out.scale = static_cast<const T*>(scale.data);
    return out;
  }
  // launch(T()) where there are tokens.
  template <class F>
  void over_tokens(const TensorView& view, F&& launch) {
    if (view.sizes[0] * view.sizes[1] == 0) return;
    const DeviceGuard guard(device_);
    with_type(view.dtype, launch);
  }
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
  std::optional<CudaLanes> lanes_;  // once there are calls at the same time
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
