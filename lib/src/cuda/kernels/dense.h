// SPDX-License-Identifier: Apache-2.0
// Dense cells on CUDA: the launchers of each variant of a cell and dtype, and the layer that calls
// them. Every launcher is asynchronous and returns the launch's status.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/gemm.h"
#include "cuda/pool_rows.h"
#include "recurrence/line.h"
#include "scanrnn/dispatch/stack_step.h"
#include "scanrnn/scan/cuda/memory.cuh"
#include "stack/layer_call.h"

namespace scanrnn {

// A tensor of a state, or its cotangent, at one end of a walk, [B,H]: what launches carry between
// them, in V, or a tensor. Where both are null, `absent` is read and nothing is written.
template <class T, class V>
struct WalkEnd {
  V* carry = nullptr;
  T* tensor = nullptr;
  Index line = 0;  // from one line to the next

  SCANRNN_HD WalkEnd at_line(Index i) const {
    return {carry ? carry + i * line : nullptr, tensor ? tensor + i * line : nullptr, line};
  }
  SCANRNN_HD V read(Index i, Index unit, V absent = V(0)) const {
    if (carry) return carry[i * line + unit];
    return tensor ? static_cast<V>(tensor[i * line + unit]) : absent;
  }
  SCANRNN_HD void write(Index i, Index unit, V value) const {
    if (carry) carry[i * line + unit] = value;
    if (tensor) tensor[i * line + unit] = static_cast<T>(value);
  }
};

// What a walk multiplies states by, and how a launch of it is shared out.
template <class T>
struct CudaRecurrent {
  Index batch = 0, hidden = 0;
  const T* weight = nullptr;  // R, [G*H,H], rows weight_stride apart
  Index weight_stride = 0;
  // W, [G*H,C], of a step that makes all of its products, and of a chain's walk, backward that of
  // the layer above.
  const T* input_weight = nullptr;
  Index input_weight_stride = 0;
  // A persistent walk by heads, each a recurrence of its own of so many units: R is
  // [G*H,head_units] then, and a launch has some of the heads, from this one on. Each head
  // has lines of its own in what blocks exchange; head_lines in all.
  Index head_units = 0, first_head = 0, head_lines = 0;
};

// What a walk over the steps reads and writes; of every kind as in recurrence.h, time in the order
// of the walk. States are computed in V.
template <class T, class V>
struct CudaDenseArgs : CudaRecurrent<T> {
  Index steps = 0;
  const T *bias = nullptr, *recurrent_bias = nullptr;  // forward: [G*H], or absent
  const T* vectors = nullptr;                          // [kVectors*H]
  // The tensors of the state, or of its cotangent, before the walk and after it: h, and as many
  // others as there are.
  WalkEnd<const T, V> from[kStateTensors.size()];
  WalkEnd<T, V> to[kStateTensors.size()];

  Strided<const T> sums;  // forward: W x, [.., G*H]; backward: the sums that were kept, [.., P*H]
  Strided<T> kept;        // forward: the sums, or absent; backward: their cotangents, [.., P*H]
  Strided<T> dvectors;    // backward: the vectors' cotangents of each step, [.., kVectors*H]
  // Forward. Behind y the tensors of the state behind h, row blocks of H, absent where nothing is
  // kept.
  Strided<T> y, cells;
  // h a step before, or backward, where a state has more, what is behind it; backward: dy or
  // absent.
  Strided<const T> before, dy;
  Strided<const T> initial;  // of `before` at the walk's first step in time; absent: a fresh state

  // The step loop. Forward, what a product gave: R h, [B,G*H], or absent where h is zero. A fused
  // step makes its products itself: that with W where `sums` is absent.
  const V* products = nullptr;
  Index input = 0;
  bool exact_products = false;  // of float64, and of float32 where TF32 is not allowed
  Strided<const T> x;
  T* fed = nullptr;  // backward: what the product reads, d(R h), [B,G*H]

  // A step from states that lie in a pool, or absent.
  PoolRows pool;

  // A walk by lines: each begins with one of these, and each sequence carries its
  // states where it is; tensors of tokens are those of the whole layer from the first step in time
  // on, `initial` has a state for each sequence. A launch begins at step first_step of each line.
  // Who asks for a step of sequence i without more has lines of one sequence each.
  const RaggedLine* lines = nullptr;
  Index first_step = 0, all_steps = 0;  // of this launch; without lines all
  bool against_time = false;            // the walk; the layer's forward walk
  bool reverse = false;
  // A flag of each token, or absent. Without lines it is in the order of the walk, for each step
  // the one that says that no state comes into it.
  Strided<const std::uint8_t> reset;

  Masks masks;  // of the layer call; by lines in the order of time

  // The row of its state that a line has; -1 where it is skipped.
  SCANRNN_HD Index state_of(Index i) const { return pool ? pool.of(i) : i; }
  // h that a step's product reads; where a line is skipped, that of any other.
  template <bool kPooled>
  SCANRNN_HD const T* h_before(Index i) const {
    const Index state = kPooled ? state_of(i) : i;
    return initial.at_line(state < 0 ? 0 : state).data;
  }
  // The draws of step t of line i in this launch.
  SCANRNN_HD DenseDraws draws(Index i, Index t) const {
    if (!lines) return {masks, masks.token + i * masks.line + t * masks.step, masks.step};
    return draws_at(i, first_step + t);
  }
  // Those of a step of sequence i.
  SCANRNN_HD DenseDraws draws_at(Index i, Index at) const {
    const RaggedLine own = lines[i];
    const Index step = against_time ? own.count - 1 - at : at;
    return {masks, masks.token + own.line * masks.line + (own.first + step) * masks.step,
            against_time ? -masks.step : masks.step};
  }
  // Line i of a tensor of tokens, from this launch's first step on; of a ragged batch there is one.
  template <class U>
  SCANRNN_HD Strided<U> walked(const Strided<U>& tensor, Index i) const {
    return lines ? walked_at(tensor, i, first_step) : tensor.at_line(i);
  }
  // Sequence i of one, from step `at` of it on.
  template <class U>
  SCANRNN_HD Strided<U> walked_at(const Strided<U>& tensor, Index i, Index at) const {
    const RaggedLine own = lines[i];
    const Index step = against_time ? own.count - 1 - at : at;
    return {tensor.data ? tensor.data + own.line * tensor.line + (own.first + step) * tensor.step
                        : nullptr,
            tensor.line, against_time ? -tensor.step : tensor.step};
  }
  // Steps of line i in this launch.
  SCANRNN_HD Index steps_of(Index i) const {
    if (!lines) return steps;
    const Index left = lines[i].steps - first_step;
    return left < 0 ? 0 : left < steps ? left : steps;
  }
  // In a loop of steps, whose lines are not shared: whether line i ends here, or ended before.
  SCANRNN_HD bool ends(Index i) const { return lines[i].count <= first_step + steps; }
  // The flag of each of a line's steps that says that no state comes into it. Against time that is
  // the flag of the step after it, of which a sequence's last one has none.
  SCANRNN_HD Strided<const std::uint8_t> resets_at(Index i, Index at) const {
    auto out = walked_at(reset, i, at);
    if (reverse && out.data) out.data += reset.step;
    return out;
  }
  // The turn whose step has no such flag, in time the last one, for a line or sequence whose steps
  // are turns from `start` on, which may be before this launch, up to `end`; -1: each has one.
  template <class Turn>
  SCANRNN_HD Turn turn_without_flag(Turn start, Turn end) const {
    return !reverse ? Turn{-1} : against_time ? start : end - 1;
  }
  // Whether step `at` of so many that a line or sequence has in all launches has such a flag.
  SCANRNN_HD bool may_reset(Index at, Index count) const {
    return reset.data && at != turn_without_flag(Index{0}, count);
  }
};

// A step of some layers of a stack, each of which reads the y of the one before.
template <class T, class V>
struct CudaStackArgs {
  CudaDenseArgs<T, V> layer[dispatch::kStackLayers];
  // Where h_0 lies that the new h replaces once all have read it; or absent.
  Strided<T> replaced[dispatch::kStackLayers];
  int layers = 0;
  bool replaces = false;  // whether any layer does
};
static_assert(sizeof(CudaStackArgs<double, double>) <= 4096, "as large as arguments may be");

// A walk by whole lines (recurrence/line.h) in one launch: lines from first_line on, of each steps
// [first,end).
template <class T, class V>
struct CudaLineArgs : CudaRecurrent<T> {
  explicit CudaLineArgs(const LineArgs<T, V>& walk) : walk(walk) {}

  LineArgs<T, V> walk;
  Index first_line = 0, first = 0, end = 0;
};

inline constexpr int kMaxDenseVariants = 2;

template <class T>
struct CudaDenseKernels {
  using V = typename std::conditional<std::is_same<T, double>::value, double, float>::type;
  // A walk of one step: from the products with R, all in one launch, and back.
  cudaError_t (*step)(const CudaDenseArgs<T, V>&, cudaStream_t);
  cudaError_t (*fused_step)(const CudaDenseArgs<T, V>&, cudaStream_t);
  cudaError_t (*step_vjp)(const CudaDenseArgs<T, V>&, cudaStream_t);
  // A step of layers one behind the other in one launch, on so many multiprocessors.
  cudaError_t (*stack_step)(const CudaStackArgs<T, V>&, Index units, cudaStream_t);
  // The whole walk in one launch, of which float64 has none: an error, which no plan asks for.
  // `exchange` has the bytes that dispatch::exchange_bytes says, and all its bits are set.
  cudaError_t (*persistent)(const CudaDenseArgs<T, V>&, const dispatch::PersistentShape&,
                            void* exchange, cudaStream_t);
  cudaError_t (*persistent_vjp)(const CudaDenseArgs<T, V>&, const dispatch::PersistentShape&,
                                void* exchange, cudaStream_t);
  // The walks of so many layers of a chain, in the order in which they are walked.
  cudaError_t (*chain)(const CudaDenseArgs<T, V>*, int, const dispatch::PersistentShape&,
                       void* exchange, cudaStream_t);
  cudaError_t (*chain_vjp)(const CudaDenseArgs<T, V>*, int, const dispatch::PersistentShape&,
                           void* exchange, cudaStream_t);
  // The same by whole lines, of a cell that is kByLines.
  cudaError_t (*lines)(const CudaLineArgs<T, V>&, const dispatch::PersistentShape&, void* exchange,
                       cudaStream_t);
  cudaError_t (*lines_vjp)(const CudaLineArgs<T, V>&, const dispatch::PersistentShape&,
                           void* exchange, cudaStream_t);
};

// Defined by cuda/kernels/dense.cu, compiled once for each variant of a dense cell and dtype.
template <Cell cell, int variant, class T>
const CudaDenseKernels<T>& cuda_dense_variant();

struct LineStep;  // stack/line_step.h

// As Backend's functions of that name; the calls are of one layer in one direction each.
void cuda_dense_step_stack(const dispatch::Plan& plan, const std::vector<LayerCall>& calls,
                           const TensorView& indices, cudaStream_t stream);
void cuda_dense_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena,
                        CudaGemm* gemm, cudaStream_t stream);
void cuda_dense_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena,
                         CudaGemm* gemm, cudaStream_t stream);
// And as Backend::walk_lines(), chain().
void cuda_walk_lines(const dispatch::Plan& plan, const LineStep& step, Index first, Index end,
                     bool backward, Arena& arena, cudaStream_t stream);
void cuda_dense_chain(const dispatch::Plan& plan, const std::vector<LayerCall>& calls,
                      bool backward, Arena& arena, CudaGemm* gemm, cudaStream_t stream);

}  // namespace scanrnn
