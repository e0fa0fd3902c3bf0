// SPDX-License-Identifier: Apache-2.0
// One layer in one direction, as stacks ask for it and backends run it, and its tokens in memory.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "recurrence/ragged.h"
#include "scanrnn/layer.h"

namespace scanrnn {

// The tensors of a state behind h, as many as the cell has.
using MoreStates = std::array<TensorView, kStateTensors.size() - 1>;

// The parameters of layer_norm, or their cotangents: a cell has the first ones of them.
struct Norms {
  TensorView ih, hh, c, c_bias;  // [gates*H] twice, [H] twice
};
inline constexpr std::array<TensorView Norms::*, 4> kNorms{&Norms::ih, &Norms::hh, &Norms::c,
                                                           &Norms::c_bias};
inline constexpr std::array<const char*, 4> kNormNames{"norm_ih", "norm_hh", "norm_c",
                                                       "norm_c_bias"};
inline std::size_t norm_count(const CellInfo& cell) {
  if (cell.recurrence != dispatch::Recurrence::dense) return 1;
  return cell.states == 2 ? 4 : 2;
}

// One layer in one direction. Tensors have the backend's own dtype for the layer's (inner_type).
struct LayerCall {
  Cell cell = Cell::MinGRU;
  int variant = 0;
  int layer = 0;             // of the stack
  bool reverse = false;      // time runs from T-1 to 0
  bool batch_major = false;  // order of the tokens in the pre-activations: [B,T] instead of [T,B]
  Index steps = 0, batch = 0, input = 0, hidden = 0;
  Index skip_size = 0;  // features of what a highway reads
  int gates = 0;        // row blocks of weight, the highway projection included

  // The steps that run now, in the order of the forward walk, of a call that runs part by part:
  // backward the last part comes first. What one leaves for the next stays in the memory that the
  // call works in.
  Index part_begin = 0, part_end = -1;  // -1: all there are

  TensorView x;             // [T,B,C]
  TensorView skip;          // what a highway reads, where that is another tensor than x
  TensorView weight, bias;  // [gates*H,C]; absent, or the bias of the row blocks that have one
  // Dense cells: [gates*H,H], [gates*H] or absent. For a persistent kernel, which walks heads one
  // beside the other, R has the columns of a head alone; its cotangent has all columns.
  TensorView recurrent_weight, recurrent_bias;
  TensorView vectors;     // of a cell that has any: [vectors*H]
  Norms norms;            // of layer_norm
  TensorView projection;  // of LSTM's h, [P,H], or of what SRU reads, [P,C]
  // The product of the first step of a sequence with what is fed back, where that is of another
  // size than h, [B,P] times [gates*H,P]; h0 is absent then.
  TensorView first, first_weight;
  TensorView h0, hn;        // [B,H], may be absent
  MoreStates more0, moren;  // the same, tensors of the state behind h
  TensorView y;             // [T,B,H]
  // Which steps there are; of a packed batch B is 1, and states are [sequences,H].
  dispatch::Batch layout = dispatch::Batch::rectangular;
  Ragged ragged;
  RaggedTables tables;  // what the backend has prepared of it
  Masks masks;          // by seeds and shares
  Index sequences = 0;
  void* preactivations = nullptr;  // kept for backward: [tokens, kept_width()]; null in inference
  // The same, the states that the output does not show: [tokens,H], or of a dense cell so many row
  // blocks of H, the tensors behind h.
  void* states = nullptr;
  // The same, of a call with a projection: what its product with W reads, [T,B,P]; what its cell
  // gives, [T,B,H].
  TensorView read, given;
  // The same, of one with layer_norm: W x and R h as they were, [T,B,gates*H].
  TensorView raw_input, raw_product;
  bool resets = false;  // GRU's r before the product with R
  // What the walk begins with, [T,B,gates*H], where the backend is not to make it: of a linear cell
  // the pre-activations, which lie at `preactivations` then, in inference, too.
  TensorView projected;

  // Backward only; those that are absent are zeros, or not wanted.
  MoreStates dmoren, dmore0;
  TensorView dy, dhn, dx, dh0, dweight, dbias, drecurrent_weight, drecurrent_bias, dvectors,
      dprojection, dfirst, dfirst_weight;
  Norms dnorms;
  TensorView dprojected;  // of one that has `projected`: out, and no cotangent of x or W
  TensorView dskip;       // where the highway's share of dx goes, where not to dx
  bool accumulate_dx = false, accumulate_dskip = false;

  Index end() const { return part_end < 0 ? steps : part_end; }
  bool begins() const { return part_begin == 0; }
  bool ends() const { return end() == steps; }
  const TensorView& highway() const { return skip ? skip : x; }
  Index width() const { return gates * hidden; }
  // A dense cell keeps the sums that its step reads (step_cell.h), every other the projection.
  Index kept_width() const { return is_dense() ? info(cell).preactivations * hidden : width(); }
  bool is_dense() const { return info(cell).recurrence == dispatch::Recurrence::dense; }
  bool is_ragged() const { return layout != dispatch::Batch::rectangular; }
  int more_states() const { return info(cell).states - 1; }  // behind h
  Index tokens() const { return steps * batch; }
  bool feeds_first() const { return first_weight.rank > 0; }
  bool is_diagonal() const { return info(cell).recurrence == dispatch::Recurrence::diagonal; }
  // Values of its vectors.
  Index vector_values() const { return info(cell).vectors * hidden; }
  // The highway input comes from the last row block, or is x itself.
  bool highway_projection() const { return info(cell).highway && skip_size != hidden; }
  // Whether the highway carries x itself, whose cotangent then has a part that no product gives.
  bool carries_input() const { return info(cell).highway && !highway_projection(); }
  // The row blocks [first, second) that have a bias: the last ones of the cell's own gates.
  std::pair<int, int> biased() const {
    const CellInfo& cell_info = info(cell);
    return {cell_info.gates - cell_info.bias_gates, cell_info.gates};
  }
};

struct Tile {
  Index first_step, steps, first_line, lines;
  Index tokens() const { return steps * lines; }
};

// A tile of a [T,B,.] tensor as the engine walks it.
template <class T>
Strided<T> walked(const TensorView& view, const Tile& tile, bool reverse) {
  Strided<T> out{static_cast<T*>(view.data), view.strides[1], view.strides[0]};
  if (!out.data) return out;
  out.data += tile.first_step * out.step + tile.first_line * out.line;
  if (reverse) {
    out.data += (tile.steps - 1) * out.step;
    out.step = -out.step;
  }
  return out;
}

// The part of a call that runs now.
inline Tile part_of(const LayerCall& call) {
  const Index count = call.end() - call.part_begin;
  return {call.reverse ? call.steps - call.end() : call.part_begin, count, 0, call.batch};
}

template <class T>
Strided<const T> as_const(const Strided<T>& s) {
  return {s.data, s.line, s.step};
}

// A [T,B,width] view of tokens that lie densely in the layer call's order.
inline TensorView dense(void* data, Index steps, Index batch, Index width, bool batch_major) {
  TensorView out;
  out.data = data;
  out.rank = 3;
  out.sizes = {steps, batch, width};
  out.strides = {batch_major ? width : batch * width, batch_major ? steps * width : width, 1};
  return out;
}

// The first token of a tile whose tokens are adjacent in the layer call's order.
inline Index first_token(const LayerCall& call, const Tile& tile) {
  return call.batch_major ? tile.first_line * call.steps + tile.first_step
                          : tile.first_step * call.batch;
}

// Runs of tokens of a tile, in the layer call's order, that are evenly spaced in `view`:
// use(first element in view, spacing, index of the first token in the tile, count).
template <class T, class F>
void for_runs(const LayerCall& call, const Tile& tile, const TensorView& view, F&& use) {
  const Index step = view.strides[0], line = view.strides[1];
  auto* first = static_cast<T*>(view.data) + tile.first_step * step + tile.first_line * line;
  const Index outer = call.batch_major ? tile.lines : tile.steps;
  const Index inner = call.batch_major ? tile.steps : tile.lines;
  const Index outer_stride = call.batch_major ? line : step;
  const Index inner_stride = call.batch_major ? step : line;
  const Index width = view.sizes[2];
  if (inner == 1 || outer == 1 || outer_stride == inner * inner_stride) {
    const Index spacing = inner == 1 ? outer_stride : inner_stride;
    use(first, std::max(spacing, width), Index{0}, outer * inner);
    return;
  }
  for (Index i = 0; i < outer; ++i) {
    use(first + i * outer_stride, std::max(inner_stride, width), i * inner, inner);
  }
}

// Runs of tokens, in the layer call's order, along which two [T,B,.] tensors are both evenly
// spaced: use(first element in a, spacing, first element in b, spacing, count).
template <class A, class B, class F>
void for_pairs(const LayerCall& call, const TensorView& a, const TensorView& b, F&& use) {
  const int outer = call.batch_major ? 1 : 0, inner = 1 - outer;
  const Index count = a.sizes[static_cast<std::size_t>(inner)];
  Index runs = a.sizes[static_cast<std::size_t>(outer)];
  const auto along = [](const TensorView& v, int axis) {
    return v.strides[static_cast<std::size_t>(axis)];
  };
  const auto spacing = [&](const TensorView& v) {  // at least a row, though it be of one row only
    return std::max(along(v, count == 1 ? outer : inner), v.sizes[2]);
  };
  const auto even = [&](const TensorView& v) {
    return runs == 1 || count == 1 || along(v, outer) == count * along(v, inner);
  };
  Index length = count;
  if (even(a) && even(b)) {
    length = runs * count;
    runs = std::min<Index>(runs, 1);
  }
  for (Index i = 0; i < runs && length > 0; ++i) {
    use(static_cast<A*>(a.data) + i * along(a, outer), spacing(a),
        static_cast<B*>(b.data) + i * along(b, outer), spacing(b), length);
  }
}

// What is dropped of a tensor: the share of the elements whose number is below the threshold, all
// others are scaled up. Where there are sequences one number serves all steps of each.
struct Drop : Draw {
  bool adds = false;  // to what is there
  const SequenceBounds* sequences = nullptr;
  double times = 1;      // all of it
  Index first_step = 0;  // of the tensor, where it is a part of one

  double scale() const { return times / (1.0 - share); }
};

// The draws of a tile, as the engine walks it.
inline Masks walked(const LayerCall& call, const Tile& tile, bool reverse) {
  Masks out = call.masks;
  out.line = 1;
  out.step = reverse ? -call.batch : call.batch;
  out.token = (tile.first_step + (reverse ? tile.steps - 1 : 0)) * call.batch + tile.first_line;
  out.sequence = tile.first_line;
  return out;
}

}  // namespace scanrnn
