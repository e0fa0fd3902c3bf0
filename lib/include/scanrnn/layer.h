// SPDX-License-Identifier: Apache-2.0
// A recurrent layer or stack of layers: a description that holds no tensors.
//
// Every call is asynchronous on the context's stream (on the CPU: done when it returns), allocates
// nothing, but for the two overloads that give what they allocated, and throws argument errors
// before any work. Shapes use the legend of tensor.h; "x-like" is [T,B,.] or, with batch_first,
// [B,T,.]. The last axis of every tensor must be contiguous.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "scanrnn/context.h"
#include "scanrnn/memory.h"
#include "scanrnn/ragged.h"
#include "scanrnn/registry.h"
#include "scanrnn/tensor.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

enum class Domain : std::uint8_t { log, linear };  // of the scan operator that crosses threads
enum class Mode : std::uint8_t { inference, training };

struct LayerOptions {
  Cell cell = Cell::MinGRU;
  std::int64_t input_size = 0, hidden_size = 0;
  int num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0.0;  // between layers, in training mode only
  // Whether training mode draws at all; else it computes what inference does.
  bool draws = true;
  // In training mode, too, a share of this is zero and the rest scaled up: elements of each R of a
  // dense cell, drawn once a call; what a layer reads, drawn once for all steps of a sequence (what
  // a highway adds is x itself); of SRU and QRNN what the state gives to the output, drawn as that.
  double dropconnect = 0.0, input_dropout = 0.0, state_dropout = 0.0;
  // The share of the units whose state a step leaves as it was, drawn for each step in training
  // mode; in inference each state moves by the mean. zoneout is for h and zoneout_cell for c.
  double zoneout = 0.0, zoneout_cell = 0.0;
  // Dense cells: unit j reads the units of its head alone, j / (H / num_heads).
  int num_heads = 1;
  // GRU: r multiplies R_n h + b_hn; or, false, it multiplies h before the product with R_n.
  bool reset_after = true;
  // RNN, LSTM, GRU and IndRNN: norms of W x and of R h, each of all row blocks of a token at
  // once, are scaled and added, and LSTM's output reads a norm of c; IndRNN has that of W x alone.
  bool layer_norm = false;
  // P > 0. LSTM (proj_size): h and y have P features, W_hr times what the cell gives. SRU
  // (projection_size): W is W_2 W_1, with P rows of W_1.
  std::int64_t proj_size = 0, projection_size = 0;
  // SRU: the highway's x' is multiplied by sqrt(1 + 2 e^highway_bias).
  bool rescale = false;
  double highway_bias = 0.0;
  bool bidirectional = false;
  int variant = 0;  // index into CellInfo::variants
  Domain domain = Domain::log;
  Dtype dtype = Dtype::float32;  // of every tensor
};

// An option that not every cell has; its default as a number, of a flag 0 or 1.
struct OwnOption {
  enum class Kind : std::uint8_t { flag, count, number };
  std::string name;
  Kind kind;
  double value;
};
// Those of a cell, in a fixed order.
std::vector<OwnOption> own_options(Cell cell);
// Sets one, or draws, by its name; value_error where there is none, or it cannot be this number.
void set_option(LayerOptions& options, const std::string& name, double value);

struct ParameterInfo {
  std::string name;  // torch's: "weight_ih_l0", "bias_ih_l0_reverse"
  std::vector<std::int64_t> sizes;
};

// The state of every layer and direction, [L*D,B,H] each; with proj_size that of h is [L*D,B,P]. A
// cell has h alone, the pair (h, c), or all of (h, c, n, m), as CellInfo::states says: an initial
// state has all of its tensors or none, and outputs and cotangents may have any.
struct State {
  TensorView h = {}, c = {}, n = {}, m = {};
};
inline constexpr std::array<TensorView State::*, 4> kStateTensors{&State::h, &State::c, &State::n,
                                                                  &State::m};

// Bytes that a call needs, in whole multiples of 256. The reserve carries what backward needs.
struct Sizes {
  std::size_t workspace = 0, reserve = 0;
};

struct ForwardArgs {
  std::vector<TensorView> params;  // in the order of Layer::parameters()
  TensorView x;                    // x-like, C
  State h0;                        // absent: zeros
  TensorView y;                    // out, x-like, D*H
  State hn;                        // out, or absent
  Span workspace;
  Span reserve;            // out, training mode only
  std::uint64_t seed = 0;  // of what is dropped
  Ragged ragged = {};      // of a plan that is not for a rectangular batch
  // One int64 on the context's device that is the seed in place of `seed`, or absent. It is read
  // when the call runs, so that a CUDA graph draws anew where it was written to between replays.
  TensorView seed_in = {};
  // [B] integers, step() alone: h0 is a pool of S states, [L,S,H], or [L,S,P] of h with proj_size,
  // that is updated in place, and row b goes on from state state_indices[b]; -1, and on CUDA any
  // that is none of them: the row is left alone, and its y is 0. hn is absent. The plan is one for
  // a ragged batch.
  TensorView state_indices = {};
};

// Each of the shape of what it is, or is the cotangent of, in ForwardArgs.
struct BackwardArgs {
  std::vector<TensorView> params;   // forward's, and so are x and h0
  TensorView x;                     // x-like, C
  State h0;                         // absent: zeros
  TensorView y;                     // x-like, D*H: what forward gave
  TensorView dy;                    // absent: zeros
  State dhn;                        // absent: zeros
  TensorView dx;                    // out, or absent
  State dh0;                        // out, or absent
  std::vector<TensorView> dparams;  // out; empty, or one for each parameter
  Span workspace;
  Span reserve;  // as forward left it; it is not changed
  std::uint64_t seed = 0;
  Ragged ragged = {};       // forward's
  TensorView seed_in = {};  // forward's, with the same value
};

// What the overloads that allocate give: contiguous tensors, and the memory that they are views of.
// On CUDA it is ordered on the context's stream, and the context must outlive it.
struct ForwardResult {
  dispatch::Plan plan;
  TensorView y;
  State hn;
  Buffer memory, reserve;  // the reserve is empty in inference
  std::uint64_t seed = 0;
};
struct BackwardResult {
  TensorView dx;
  State dh0;
  std::vector<TensorView> dparams;
  Buffer memory;
};

class Layer {
 public:
  // Throws value_error naming the option.
  explicit Layer(const LayerOptions& options);
  // To move one is to copy it: there is none without its parameters.
  Layer(const Layer&) = default;
  Layer& operator=(const Layer&) = default;

  const LayerOptions& options() const { return options_; }
  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  int directions() const { return options_.bidirectional ? 2 : 1; }
  // Features of a direction's output, and of h.
  std::int64_t output_size() const {
    return options_.proj_size > 0 ? options_.proj_size : options_.hidden_size;
  }

  // What dispatch::plan is asked. Throws value_error for sizes below 0, or whose product cannot be
  // counted.
  dispatch::Problem problem(const BatchShape& shape, Mode mode,
                            MatmulPrecision precision = MatmulPrecision::highest,
                            dispatch::Strategy strategy = dispatch::Strategy::automatic) const;
  // Pure: the same arguments give the same plan. Throws as problem() does, and for a forced
  // strategy that cannot run.
  dispatch::Plan plan(const Context& context, const BatchShape& shape, Mode mode,
                      dispatch::Strategy strategy = dispatch::Strategy::automatic) const;
  dispatch::Plan plan(const Context& context, std::int64_t steps, std::int64_t batch, Mode mode,
                      dispatch::Strategy strategy = dispatch::Strategy::automatic) const {
    return plan(context, BatchShape{steps, batch}, mode, strategy);
  }
  // Pure: the larger of what forward and backward need under this plan.
  Sizes sizes(const dispatch::Plan& plan) const;

  // The plan is one of this layer for the sizes of the tensors; in training mode the reserve is
  // filled. Outputs share no memory with inputs or one another, but hn may be h0 itself, and dh0 of
  // backward dhn. Throws value_error or type_error naming the argument, and cuda_error.
  void forward(Context& context, const dispatch::Plan& plan, const ForwardArgs& args) const;
  // With the plan and the tensors of a forward pass in training mode; the same errors.
  void backward(Context& context, const dispatch::Plan& plan, const BackwardArgs& args) const;
  // One step of a sequence: x [B,C] and y [B,H], as in a sequence of one step all else (a reset is
  // [1,B], or [B,1] with batch_first), and a plan for one step. hn may be h0 itself.
  // Equal to running the sequence; a bidirectional layer cannot step (value_error).
  void step(Context& context, const dispatch::Plan& plan, const ForwardArgs& args) const;

  // The same for a caller without an allocator: T and B are those of x, the dispatcher chooses, and
  // outputs and workspace come from Buffer. Throws as above, and as Buffer does.
  ForwardResult forward(Context& context, const std::vector<TensorView>& params,
                        const TensorView& x, const State& h0 = {}, Mode mode = Mode::inference,
                        std::uint64_t seed = 0) const;
  // Backward of a forward pass in training mode, with the same params, x and h0: all their
  // cotangents.
  BackwardResult backward(Context& context, const ForwardResult& forward,
                          const std::vector<TensorView>& params, const TensorView& x,
                          const State& h0, const TensorView& dy, const State& dhn = {}) const;

 private:
  LayerOptions options_;
  std::vector<ParameterInfo> parameters_;
};

}  // namespace scanrnn
#pragma GCC visibility pop
