// SPDX-License-Identifier: Apache-2.0
// A layer of a linear cell on CUDA: one product for all steps and one kernel, or both in one.
#include "cuda/linear.h"

#include "cuda/kernels/linear.h"
#include "cuda/ragged.cuh"
#include "cuda/run.cuh"
#include "recurrence/linear_layer.h"
#include "scanrnn/dispatch/ragged.h"

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

  CudaSchedule schedule(bool backward) const {
    using dispatch::Strategy;
    const bool direct = plan.strategy == Strategy::direct;
    CudaSchedule out;
    out.extent = {call.batch, call.hidden, call.steps};
    out.strategy = direct && backward ? Strategy::fused_sequential : plan.strategy;
    out.across_blocks = plan.across_blocks;
    out.ragged = call.is_ragged();
    out.drawn = static_cast<bool>(call.masks);
    const bool resets = out.ragged && (arena.counting() || call.ragged.reset);
    if (resets && out.strategy != Strategy::direct && dispatch::scans_resets(plan)) {
      out.strategy = Strategy::parallel_scan;
      out.across_blocks = true;
    }
    out.log_domain = plan.log_domain;
    out.tables = call.tables;
    out.units = static_cast<int>(plan.device.units);
    out.shared = static_cast<std::size_t>(plan.device.shared_bytes);
    out.stream = stream;
    return out;
  }

  // Those of a ragged batch, walked from the last step to the first where `backward`.
  Marks marks(bool backward) const {
    if (!call.is_ragged()) return {};
    const Index step = backward ? -1 : 1;
    return {call.tables.marks + (backward ? call.steps - 1 : 0), call.steps, step, call.reverse};
  }
  // The marks know the sequence of a packed token.
  Masks masks(Masks out) const {
    if (call.layout == dispatch::Batch::packed) out.marks = call.tables.marks;
    return out;
  }
  const SequenceBounds sequences{call.ragged, call.steps, call.sequences,
                                 call.layout == dispatch::Batch::packed};
  // Sequences without a step leave the state that they enter with; resets alone make none such.
  void pass_states(const TensorView& from, const TensorView& to) {
    if (!call.is_ragged() || !to || call.sequences == 0) return;
    if (!call.ragged.lengths && !call.ragged.cu_seqlens && call.steps > 0) return;
    ragged::pass_states<T>(sequences, from, to, stream);
  }

  // Zeros at steps that nothing has walked.
  void clear_padding(const TensorView& tokens) {
    if (call.tokens() == 0) return;
    ragged::clear_padding<T>(tokens, Integers(call.ragged.lengths), stream);
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
    CudaSchedule s = schedule(false);
    const bool direct = plan.strategy == dispatch::Strategy::direct;
    const T* bias = direct ? data(call.bias) : whole_bias();
    T* gates = static_cast<T*>(call.preactivations);
    void* gemm_space = nullptr;
    if (!direct) {
      if (!gates && call.projected.rank == 0) gates = take(tokens() * width());
      gemm_space = arena.take(CudaGemm::kWorkspace);
      s.workspace = arena.take(kernels.workspace(s));
    }
    if (arena.counting() || call.sequences == 0) return;
    s.initial = call.h0.data;
    s.initial_line = call.h0.strides[0];
    s.final = call.hn.data;
    s.final_line = call.hn.strides[0];
    s.marks = marks(call.reverse);
    s.sequences = &sequences;
    s.against_time = call.reverse;
    pass_states(call.h0, call.hn);
    const TensorView states = rows(call.states, call.hidden);
    // A walk back over all tokens reads what is kept of the padding, too, if only to drop it.
    if (call.states && call.ragged.lengths && call.tables.ways.tokens) clear_padding(states);
    const Strided<T> walked_gates = walked<T>(rows(gates, width()), all(), call.reverse);
    const Strided<T> y = walked<T>(call.y, all(), call.reverse);
    const Strided<T> kept_states = walked<T>(states, all(), call.reverse);
    const Strided<const T> x = as_const(walked<T>(call.x, all(), call.reverse));
    const Strided<const T> skip = as_const(walked<T>(call.highway(), all(), call.reverse));
    if (direct) {
      DirectKernelArgs<T> args;
      args.weight = data(call.weight);
      args.weight_stride = call.weight.strides[0];
      args.input = call.input;
      args.bias = bias;
      args.first_bias = call.biased().first;
      args.last_bias = call.biased().second;
      args.vectors = data(call.vectors);
      args.x = x;
      if (!call.highway_projection()) args.skip = skip;
      args.preactivations = walked_gates;
      args.y = y;
      args.states = kept_states;
      args.masks = masks(walked(call, all(), call.reverse));
      SCANRNN_CUDA(kernels.direct(s, args));
      return;
    }
    const auto project = [&](const T* from, Index spacing, Index first, Index count) {
      product(count, width(), call.input, {from, spacing},
              {call.weight.data, call.weight.strides[0], true}, gates + first * width(), width(),
              false, kAddsBias ? nullptr : bias, gemm_space);
    };
    if (!call.projected) for_runs<T>(call, all(), call.x, project);
    const auto args = forward_args(call, as_const(walked_gates), bias, data(call.vectors), skip, y,
                                   kept_states, masks(walked(call, all(), call.reverse)));
    SCANRNN_CUDA(kernels.forward(s, args));
  }

  void backward() {
    const auto& kernels = kernels_of<T>(call.cell)[call.variant];
    CudaSchedule s = schedule(true);
    const bool adds_skip = call.carries_input();
    // The highway's cotangent goes to dx, which the product then adds to, or has its own place; or
    // it waits beside it.
    const TensorView& skip_to = call.dskip ? call.dskip : call.dx;
    const bool adds = call.dskip ? call.accumulate_dskip : call.accumulate_dx;
    const bool skip_aside = adds_skip && (adds || !skip_to || arena.counting());
    const T* bias = kAddsBias ? whole_bias() : nullptr;
    T* dgates = static_cast<T*>(call.dprojected.data);
    if (call.dprojected.rank == 0) dgates = take(tokens() * width());
    T* dskip = skip_aside ? take(tokens() * call.hidden) : nullptr;
    const Index vector_values = call.vector_values();
    // A diagonal cell's walk leaves the sums of lines, or of sequences, in place of what each token
    // has.
    const bool summed = call.is_diagonal() && !s.drawn;
    const Index own_gates = info(call.cell).gates * call.hidden, sums = own_gates + vector_values;
    V* line_sums = summed ? this->template take<V>(call.sequences * sums) : nullptr;
    s.sums = line_sums;
    T* dvectors = vector_values > 0 && !summed ? take(tokens() * vector_values) : nullptr;
    void* gemm_space = arena.take(CudaGemm::kWorkspace);
    s.workspace = arena.take(kernels.workspace(s));
    auto* parts = static_cast<V*>(
        arena.take(static_cast<std::size_t>(pointwise::kParts * width()) * sizeof(V)));
    if (arena.counting()) return;

    s.initial = call.dhn.data;
    s.initial_line = call.dhn.strides[0];
    s.final = call.dh0.data;
    s.final_line = call.dh0.strides[0];
    s.marks = marks(!call.reverse);
    s.sequences = &sequences;
    s.against_time = !call.reverse;
    pass_states(call.dhn, call.dh0);
    auto args = backward_args(call, bias, data(call.vectors), dgates, dvectors,
                              skip_aside ? rows(dskip, call.hidden) : skip_to);
    args.masks = masks(args.masks);
    if (call.sequences > 0) SCANRNN_CUDA(kernels.backward(s, args));
    if (call.ragged.lengths && (call.tables.ways.sequences || call.is_diagonal())) {
      clear_padding(rows(dgates, width()));
      if (dvectors) clear_padding(rows(dvectors, vector_values));
      if (adds_skip) clear_padding(skip_aside ? rows(dskip, call.hidden) : skip_to);
    }

    if (call.dx && tokens() > 0) {
      const bool after_skip = adds_skip && !skip_aside && !call.dskip;
      this->input_cotangent(dgates, width(), call.accumulate_dx || after_skip, gemm_space);
      if (skip_aside) {
        pointwise::
            add<<<pointwise::blocks_for(tokens() * call.hidden), pointwise::kThreads, 0, stream>>>(
                as_const(walked<T>(rows(dskip, call.hidden), all(), false)),
                walked<T>(skip_to, all(), false), call.steps, call.batch, call.hidden);
        SCANRNN_CUDA(cudaGetLastError());
      }
    }
    if (call.dweight) this->weight_cotangent(dgates, width(), gemm_space);
    if (call.dbias) {
      const auto [first, last] = call.biased();
      const Index from = first * call.hidden, columns = (last - first) * call.hidden;
      if (summed) {
        this->sum(line_sums + from, call.sequences, sums, columns, parts, call.dbias.data);
      } else {
        this->sum_tokens(dgates + from, width(), columns, parts, call.dbias.data);
      }
    }
    if (call.dvectors) {
      if (summed) {
        this->sum(line_sums + own_gates, call.sequences, sums, vector_values, parts,
                  call.dvectors.data);
      } else {
        this->sum_tokens(dvectors, vector_values, vector_values, parts, call.dvectors.data);
      }
      if (kernels.finish_vectors) {
        SCANRNN_CUDA(kernels.finish_vectors(data(call.vectors), static_cast<T*>(call.dvectors.data),
                                            vector_values, stream));
      }
    }
  }
};

}  // namespace

void cuda_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena, CudaGemm* gemm,
                  cudaStream_t stream) {
  with_type(call.y.dtype, [&](auto type) {
    LayerRun<decltype(type)>{{plan, call, arena, gemm, stream}}.forward();
  });
}
void cuda_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena, CudaGemm* gemm,
                   cudaStream_t stream) {
  with_type(call.y.dtype, [&](auto type) {
    LayerRun<decltype(type)>{{plan, call, arena, gemm, stream}}.backward();
  });
}

}  // namespace scanrnn
