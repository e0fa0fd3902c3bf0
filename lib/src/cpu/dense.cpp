// SPDX-License-Identifier: Apache-2.0
// One dense layer in one direction on the CPU: products with the input for many steps at once, and
// step after step the product with the state. With an arena that only counts, nothing is computed.
#include "cpu/dense.h"

#include <algorithm>

#include "cpu/dense_gradients.h"
#include "cpu/dense_walk.h"
#include "cpu/gemm.h"
#include "cpu/linear.h"

namespace scanrnn {
namespace {

using scan::Range;
using scan::Team;

// Steps from which packing the recurrent weights, which costs a few products, pays.
constexpr Index kPackedSteps = 4;

template <class T>
Strided<const T> lines_of(const TensorView& state) {
  return {static_cast<const T*>(state.data), state.strides[0], 0};
}

// The rows of all lines at one step.
template <class T>
Strided<const T> line_rows(const Strided<T>& tensor, Index step) {
  return {tensor.at(step), tensor.line, 0};
}

// Tokens that lie densely in the layer call's order, in its dtype.
TensorView tokens_of(const LayerCall& call, void* data, Index steps, Index width) {
  TensorView out = dense(data, steps, call.batch, width, call.batch_major);
  out.dtype = call.y.dtype;
  return out;
}

template <class T>
const CpuDenseKernels<T>& dense_kernels(const LayerCall& call) {
  return kernels_of<T>().dense[static_cast<int>(call.cell)][call.variant];
}

// Whether the weights are packed for the walk.
bool packs(const LayerCall& call) { return call.is_ragged() || call.steps >= kPackedSteps; }

// Forward: tiles of steps, each the product with the input and the walk. A ragged batch is one
// tile.
template <class T>
struct ForwardTiles {
  const DenseWalk<T>& walk;
  const bool packed, fused;  // fused: each step multiplies its own input
  const Index tile_steps;
  T *products, *projected, *first;
  const LayerCall& call = walk.call;
  const bool keep = call.preactivations != nullptr;

  ForwardTiles(const DenseWalk<T>& of, const dispatch::Plan& plan, Arena& arena)
      : walk(of),
        packed(packs(of.call)),
        fused(packed && plan.tile_steps == 1 && !of.call.feeds_first()),
        tile_steps(steps_of_tile(plan)),
        products(packed ? nullptr : take<T>(arena, of.call.batch * of.call.width())),
        projected(of.call.preactivations || fused
                      ? nullptr
                      : take<T>(arena, tile_steps * of.call.batch * of.call.width())),
        first(of.call.feeds_first() ? take<T>(arena, of.lines * of.call.width()) : nullptr) {}

  Index steps_of_tile(const dispatch::Plan& plan) const {
    if (!packed) return 1;
    return fused || walk.call.is_ragged() ? walk.call.steps
                                          : std::min(plan.tile_steps, walk.call.steps);
  }
  Tile tile_at(Index position) const {
    const Index steps = std::min(tile_steps, call.end() - position);
    return {call.reverse ? call.steps - position - steps : position, steps, 0, call.batch};
  }
  TensorView sums(const Tile& tile) const {
    if (!keep) return tokens_of(call, projected, tile.steps, call.width());
    return steps_of(tokens_of(call, call.preactivations, call.steps, call.kept_width()),
                    tile.first_step, tile.steps);
  }
  DenseForwardArgs<T> args(const Tile& tile, const Strided<const T>& before) const {
    const TensorView cells =
        tokens_of(call, call.states, call.steps, call.more_states() * call.hidden);
    DenseForwardArgs<T> out;
    out.weight = walk.packed_recurrent;
    out.products = products;
    out.input_weight = fused ? walk.packed_input : nullptr;
    out.x = as_const(walked<T>(call.x, tile, call.reverse));
    out.input = call.input;
    out.bias = walk.bias;
    out.vectors = static_cast<const T*>(call.vectors.data);
    out.sums = walked<T>(sums(tile), {0, tile.steps, 0, call.batch}, call.reverse);
    out.keep = keep;
    out.initial = before;
    out.y = walked<T>(call.y, tile, call.reverse);
    out.cells = walked<T>(cells, tile, call.reverse);
    out.masks = walked(call, tile, call.reverse);
    if (!call.is_ragged()) return out;
    out.ragged = walk.sequences->lines();
    out.zeros = walk.zeros;
    return out;
  }

  // Before the first step: the weights as the walk reads them, the states, the product with what is
  // fed back.
  void begin(const Team& team) const {
    const auto& tools = kernels_of<T>().tools;
    if (packed && call.begins()) {
      tools.pack_gates(team, walk.input, walk.packed_input);
      tools.pack_gates(team, walk.recurrent, walk.packed_recurrent);
    }
    if (call.begins()) walk.load_more(team, call.more0, true);
    if (!call.first) return;
    gemm<T>(team, walk.lines, call.width(), call.first.sizes[1],
            {static_cast<const T*>(call.first.data), call.first.strides[0]},
            {static_cast<const T*>(call.first_weight.data), call.first_weight.strides[0], true},
            first, call.width(), false);
  }
  // W x of a tile, and of a single step R h, too, from the weights as they are.
  void multiply(const Team& team, const Tile& tile, const DenseForwardArgs<T>& args) const {
    if (packed) {
      if (fused) return;
      const DenseTokens<T> tokens{args.x, args.sums, call.batch, tile.steps};
      return kernels_of<T>().tools.project(team, walk.input, walk.packed_input, tokens);
    }
    const Index width = call.width();
    const auto product = [&](const Strided<const T>& lines, const DenseWeight<T>& weight, T* to,
                             Index spacing) {
      gemm<T>(team, call.batch, width, lines.data ? weight.columns : 0,
              {lines.data, std::max(lines.line, weight.columns)},
              {weight.data, weight.stride, true}, to, spacing, false);
    };
    product(args.x, walk.input, args.sums.data, std::max(args.sums.line, width));
    product(args.initial, walk.recurrent, products, width);
  }
  // What begin() has multiplied, added to the first step of each sequence.
  void add_first(const Team& team, const Tile& tile) const {
    TensorView whole = sums(tile);  // as if it began with the call's first step
    whole.sizes[2] = call.width();
    whole.data = static_cast<T*>(whole.data) - tile.first_step * whole.strides[0];
    add_to_edges<T>(team, EdgeSteps(call, false), {first, call.width(), 0}, whole);
  }

  void run(const Team& team, StepBarrier& barrier) const {
    const auto kernel = dense_kernels<T>(call).forward;
    const auto y = walked<T>(call.y, {0, call.steps, 0, call.batch}, call.reverse);
    DenseSchedule<T> schedule = walk.schedule(team, barrier);
    begin(team);
    team.barrier();
    Strided<const T> before =
        call.begins() ? lines_of<T>(call.h0) : line_rows(y, call.part_begin - 1);
    for (Index position = call.part_begin; position < call.end() && call.batch > 0;
         position += tile_steps) {
      const Tile tile = tile_at(position);
      const DenseForwardArgs<T> now = args(tile, before);
      schedule.steps = call.is_ragged() ? walk.sequences->longest() : tile.steps;
      multiply(team, tile, now);
      if (call.first && position == 0) {
        team.barrier();
        add_first(team, tile);
      }
      team.barrier();
      if (walk.takes_part(schedule)) kernel(schedule, now);
      team.barrier();
      before = line_rows(now.y, tile.steps - 1);
    }
    if (!call.ends()) return;
    walk.store_last(team, y, before);
    walk.store_more(team, call.moren);
  }
};

template <class T>
void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const DenseWalk<T> walk(call, arena, true, packs(call));
  const ForwardTiles<T> tiles(walk, plan, arena);
  if (arena.counting()) return;
  if (call.begins()) walk.add_biases();
  StepBarrier barrier;
  run_team(walk.threads(plan), [&](const Team& team) { tiles.run(team, barrier); });
}

// The tensors of an initial state behind h, which is there or not, to rows of so many blocks of H.
template <class T>
void gather_initial(const Team& team, const LayerCall& call, T* rows) {
  const Range mine = team.share(call.more0[0] ? call.more0[0].sizes[0] : 0);
  for (Index row = mine.begin; row < mine.end; ++row) {
    for (int i = 0; i < call.more_states(); ++i) {
      const TensorView& from = call.more0[static_cast<std::size_t>(i)];
      std::copy_n(static_cast<const T*>(from.data) + row * from.strides[0], call.hidden,
                  rows + (row * call.more_states() + i) * call.hidden);
    }
  }
}

// Backward: the walk of a part against time, and after the last of them the gradients.
template <class T>
struct BackwardPart {
  const DenseWalk<T>& walk;
  const LayerCall& call = walk.call;
  const bool ragged = call.is_ragged();
  const Index kept_states = call.more_states() * call.hidden;
  const Tile part = part_of(call);
  T *dsums, *dvectors;
  T *before, *first;  // of a ragged batch: the h before each step; d of what is fed back
  T* initial;  // the initial state's tensors behind h as kept ones lie, where there are several

  BackwardPart(const DenseWalk<T>& of, Arena& arena) : walk(of) {
    const auto maybe = [&](bool used, Index count) {
      return used ? take<T>(arena, count) : nullptr;
    };
    dsums = take<T>(arena, call.tokens() * call.kept_width());
    dvectors = maybe(call.vector_values() > 0, call.tokens() * call.vector_values());
    before = maybe(ragged, call.tokens() * call.hidden);
    first = maybe(call.feeds_first(), walk.lines * call.width());
    initial = maybe(call.more_states() > 1, walk.lines * kept_states);
  }

  TensorView dtokens() const { return tokens_of(call, dsums, call.steps, call.kept_width()); }
  TensorView dvector_tokens() const {
    return tokens_of(call, dvectors, call.steps, call.vector_values());
  }
  DenseBackwardArgs<T> args() const {
    const auto against = [&](const TensorView& v) { return walked<T>(v, part, !call.reverse); };
    DenseBackwardArgs<T> out;
    out.weight = walk.packed_recurrent;
    out.sums =
        as_const(against(tokens_of(call, call.preactivations, call.steps, call.kept_width())));
    out.vectors = static_cast<const T*>(call.vectors.data);
    const TensorView states =
        kept_states > 0 ? tokens_of(call, call.states, call.steps, kept_states) : call.y;
    out.states = as_const(against(states));
    out.initial = lines_of<T>(kept_states > 0 ? call.more0[0] : call.h0);
    if (initial && call.more0[0]) out.initial = {initial, kept_states, 0};
    if (!call.begins()) {
      const Tile all{0, call.steps, 0, call.batch};
      out.initial = line_rows(walked<T>(states, all, call.reverse), call.part_begin - 1);
    }
    out.dy = as_const(against(call.dy));
    out.dsums = against(dtokens());
    out.dvectors = against(dvector_tokens());
    out.masks = walked(call, part, !call.reverse);
    if (ragged) out.ragged = walk.sequences->lines();
    return out;
  }

  // Before the walk: the weights as it reads them, the carried cotangents, the padding.
  void begin(const Team& team, const DenseSchedule<T>& schedule) const {
    const auto& tools = kernels_of<T>().tools;
    if (call.ends()) {
      if (call.dx) tools.pack_columns(team, 1, walk.input, walk.packed_input);
      if (walk.takes_part(schedule)) {
        tools.pack_columns(schedule.team, walk.lines, walk.recurrent, walk.packed_recurrent);
      }
      walk.load(team, call.dhn, walk.h, padded(call.hidden), 0);
      walk.load_more(team, call.dmoren, false);
      if (initial) gather_initial(team, call, initial);
    }
    if (!ragged) return;
    clear_padding<T>(team, dtokens(), call.ragged.lengths);
    if (dvectors) clear_padding<T>(team, dvector_tokens(), call.ragged.lengths);
    walk.keep_before(team, before);
  }
  void of_parameters(const Team& team) const {
    const DenseGradients<T> gradients{
        team, call, dtokens(),
        ragged ? tokens_of(call, before, call.steps, call.hidden) : TensorView{}};
    if (call.dweight) gradients.of_weight();
    if (call.drecurrent_weight) gradients.of_recurrent_weight();
    if (call.dbias) gradients.of_biases();
    if (call.dvectors) gradients.of_vectors(dvectors);
    if (!first) return;
    TensorView of_sums = dtokens();
    of_sums.sizes[2] = call.width();
    take_edges<T>(team, EdgeSteps(call, false), of_sums, {first, call.width(), 0});
    team.barrier();
    gradients.of_first(first, walk.lines);
  }

  void run(const Team& team, StepBarrier& barrier, const DenseBackwardArgs<T>& args) const {
    DenseSchedule<T> schedule = walk.schedule(team, barrier);
    schedule.steps = ragged ? walk.sequences->longest() : part.steps;
    begin(team, schedule);
    team.barrier();
    if (walk.takes_part(schedule)) dense_kernels<T>(call).backward(schedule, args);
    team.barrier();
    if (call.dx) {
      const DenseTokens<T> tokens{as_const(walked<T>(dtokens(), part, false)),
                                  walked<T>(call.dx, part, false), call.batch, part.steps};
      kernels_of<T>().tools.project_back(team, walk.input, walk.packed_input, tokens,
                                         call.accumulate_dx);
    }
    if (!call.begins()) return;  // parts are to come
    walk.store(team, walk.h, padded(call.hidden), call.dh0);
    walk.store_more(team, call.dmore0);
    of_parameters(team);
  }
};

template <class T>
void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const DenseWalk<T> walk(call, arena, false, true);
  const BackwardPart<T> back(walk, arena);
  if (arena.counting()) return;
  const DenseBackwardArgs<T> args = back.args();
  StepBarrier barrier;
  run_team(walk.threads(plan), [&](const Team& team) { back.run(team, barrier, args); });
}

}  // namespace

void cpu_dense_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? forward<double> : forward<float>)(plan, call, workspace);
}
void cpu_dense_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? backward<double> : backward<float>)(plan, call, workspace);
}

}  // namespace scanrnn
