// SPDX-License-Identifier: Apache-2.0
// One dense layer in one direction on the CPU: products with the input for many steps at once, and
// step after step the product with the state. With an arena that only counts, nothing is computed.
#include "cpu/dense.h"

#include <algorithm>
#include <optional>

#include "cpu/dense_gradients.h"
#include "cpu/gemm.h"
#include "cpu/kernels/table.h"
#include "cpu/linear.h"
#include "cpu/ragged.h"
#include "cpu/team.h"

namespace scanrnn {
namespace {

using scan::Range;
using scan::Team;

// Steps from which packing the recurrent weights, which costs a few products, pays.
constexpr Index kPackedSteps = 4;

// What both directions work with: the weights as they are and packed, and the carried states.
template <class T>
struct Walk {
  const LayerCall& call;
  DenseWeight<T> input, recurrent;
  std::optional<Sequences> sequences;  // of a ragged batch, each a line of the walk
  Index lines;
  T *bias = nullptr, *packed_input = nullptr, *packed_recurrent = nullptr;
  T *h = nullptr, *more = nullptr, *zeros = nullptr;

  Walk(const LayerCall& p, Arena& arena, bool pack)
      : call(p),
        input(weight_of(p, p.weight, p.input)),
        recurrent(weight_of(p, p.recurrent_weight, p.hidden)),
        lines(p.batch) {
    const Index line = padded(call.hidden);
    if (call.is_ragged()) {
      sequences.emplace(call, arena);
      lines = call.sequences;
      zeros = take(arena, line);
      if (!arena.counting()) std::fill_n(zeros, line, T(0));
    }
    bias = take(arena, call.kept_width());
    if (pack) {
      packed_input =
          take(arena, call.gates * std::max(line * call.input, call.hidden * padded(call.input)));
      packed_recurrent = take(arena, call.width() * line);
    }
    h = take(arena, lines * line);
    if (call.more_states() > 0) more = take(arena, call.more_states() * lines * line);
  }
  static DenseWeight<T> weight_of(const LayerCall& call, const TensorView& weight, Index columns) {
    return {static_cast<const T*>(weight.data), weight.strides[0], call.hidden, columns,
            call.gates};
  }
  static T* take(Arena& arena, Index count) {
    return static_cast<T*>(arena.take(static_cast<std::size_t>(count) * sizeof(T)));
  }

  // Threads worth keeping in step: a barrier takes about as long as this many multiplications.
  int members(const Team& team) const {
    constexpr Index kPerThread = 1 << 14;
    const Index worth = lines * call.width() * call.hidden / kPerThread;
    return static_cast<int>(std::clamp<Index>(worth, 1, team.size));
  }
  Index threads(const dispatch::Plan& plan) const {
    return team_size(plan, call.tokens() * call.width() * (call.input + call.hidden));
  }
  DenseSchedule<T> schedule(const Team& team, StepBarrier& barrier) const {
    DenseSchedule<T> out;
    out.team = {team.rank, members(team)};
    out.barrier = &barrier;
    out.lines = lines;
    out.hidden = call.hidden;
    out.h = h;
    out.more = more;
    return out;
  }
  static bool takes_part(const DenseSchedule<T>& schedule) {
    return schedule.team.rank < schedule.team.size;
  }

  // bias_ih and bias_hh, each with the sums that its row blocks add to.
  void add_biases() const {
    const auto [in_order, own] = recurrent_rows(call);
    std::fill_n(bias, call.kept_width(), T(0));
    const auto add = [&](const TensorView& from, Index first, Index last, Index shift) {
      const auto* values = static_cast<const T*>(from.data);
      for (Index i = first; values && i < last; ++i) bias[i + shift] += values[i];
    };
    add(call.bias, 0, call.width(), 0);
    add(call.recurrent_bias, 0, in_order, 0);
    add(call.recurrent_bias, in_order, call.width(), own);
  }
  // Where a [B,H] tensor has the state of a line; null where it is absent.
  T* state(const TensorView& of, Index line) const {
    const Index row = sequences ? sequences->begin()[line].row : line;
    return of ? static_cast<T*>(of.data) + row * of.strides[0] : nullptr;
  }
  // Between a carry, `apart` from line to line, and a [B,H] tensor; absent: all of them `value`.
  void load(const Team& team, const TensorView& from, T* carry, Index apart, double value) const {
    const Range mine = team.share(lines);
    for (Index line = mine.begin; line < mine.end; ++line) {
      T* to = carry + line * apart;
      std::fill_n(to, padded(call.hidden), static_cast<T>(value));
      if (from) std::copy_n(state(from, line), call.hidden, to);
    }
  }
  void store(const Team& team, const T* carry, Index apart, const TensorView& to) const {
    const Range mine = team.share(lines);
    for (Index line = mine.begin; to && line < mine.end; ++line) {
      std::copy_n(carry + line * apart, call.hidden, state(to, line));
    }
  }
  // The same of the tensors behind h; absent: fresh ones, or zeros.
  Index more_apart() const { return call.more_states() * padded(call.hidden); }
  void load_more(const Team& team, const MoreStates& from, bool fresh) const {
    for (int i = 0; i < call.more_states(); ++i) {
      const auto k = static_cast<std::size_t>(i);
      load(team, from[k], more + i * padded(call.hidden), more_apart(),
           fresh ? info(call.cell).fresh[k + 1] : 0);
    }
  }
  void store_more(const Team& team, const MoreStates& to) const {
    for (int i = 0; i < call.more_states(); ++i) {
      store(team, more + i * padded(call.hidden), more_apart(), to[static_cast<std::size_t>(i)]);
    }
  }
  // The h before each step of a ragged batch, [T,B,H], zeros where there is no step.
  void keep_before(const Team& team, T* values) const {
    const Tile all{0, call.steps, 0, call.batch};
    const TensorView view = dense(values, call.steps, call.batch, call.hidden, call.batch_major);
    const auto to = walked<T>(view, all, call.reverse);
    const auto y = walked<T>(call.y, all, call.reverse);
    clear_padding<T>(team, view, call.ragged.lengths);
    for (Index line = team.rank; line < lines; line += team.size) {
      const Sequence& s = sequences->begin()[line];
      for (Index t = 0; t < s.count; ++t) {
        const T* from = t > 0 ? y.at_line(s.line).at(s.first + t - 1) : state(call.h0, line);
        if (sequences->lines().resets(s, s.first + t)) from = nullptr;
        std::copy_n(from ? from : zeros, call.hidden, to.at_line(s.line).at(s.first + t));
      }
    }
  }
  // The h after a line's last step, which is in y or, where there was no step, `before`.
  void store_last(const Team& team, const Strided<T>& y, const Strided<const T>& before) const {
    const Range mine = team.share(lines);
    for (Index line = mine.begin; call.hn && line < mine.end; ++line) {
      const T* from = before.at_line(line).data;
      if (sequences) {
        const Sequence& s = sequences->begin()[line];
        from = s.count > 0 ? y.at_line(s.line).at(s.first + s.count - 1) : state(call.h0, line);
      }
      T* to = state(call.hn, line);
      if (!from) std::fill_n(to, call.hidden, T(0));
      if (from && from != to) std::copy_n(from, call.hidden, to);
    }
  }
};

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

// A step's two products, from the weights as they are.
template <class T>
void multiply_step(const Team& team, const Walk<T>& walk, const Strided<const T>& x,
                   const Strided<const T>& h, const Strided<T>& sums, T* products) {
  const Index width = walk.call.width();
  const auto multiply = [&](const Strided<const T>& lines, const DenseWeight<T>& weight, T* to,
                            Index spacing) {
    gemm<T>(team, SplitBy::columns, walk.call.batch, width, lines.data ? weight.columns : 0,
            {lines.data, std::max(lines.line, weight.columns)}, {weight.data, weight.stride, true},
            to, spacing, false);
  };
  multiply(x, walk.input, sums.data, std::max(sums.line, width));
  multiply(h, walk.recurrent, products, width);
}

template <class T>
void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const bool ragged = call.is_ragged();
  const bool pack = ragged || call.steps >= kPackedSteps, keep = call.preactivations != nullptr;
  // Each step multiplies its own input.
  const bool fuse = pack && plan.tile_steps == 1 && !call.feeds_first();
  const Walk<T> walk(call, arena, pack);
  const Index width = call.width();
  const bool whole = fuse || ragged;  // in one tile
  const Index begin = call.part_begin, end = call.end();
  const Index tile_steps = !pack ? 1 : whole ? call.steps : std::min(plan.tile_steps, call.steps);
  T* products = pack ? nullptr : walk.take(arena, call.batch * width);
  T* projected = keep || fuse ? nullptr : walk.take(arena, tile_steps * call.batch * width);
  T* first = call.feeds_first() ? walk.take(arena, walk.lines * width) : nullptr;
  if (arena.counting()) return;
  if (call.begins()) walk.add_biases();

  const auto& table = kernels_of<T>();
  const auto kernel = table.dense[static_cast<int>(call.cell)][call.variant].forward;
  const Tile all{0, call.steps, 0, call.batch};
  const TensorView kept = tokens_of(call, call.preactivations, call.steps, call.kept_width());
  const TensorView cells =
      tokens_of(call, call.states, call.steps, call.more_states() * call.hidden);
  StepBarrier barrier;

  run_team(walk.threads(plan), [&](const Team& team) {
    DenseSchedule<T> schedule = walk.schedule(team, barrier);
    if (pack && call.begins()) {
      table.tools.pack_gates(team, walk.input, walk.packed_input);
      table.tools.pack_gates(team, walk.recurrent, walk.packed_recurrent);
    }
    if (call.begins()) walk.load_more(team, call.more0, true);
    if (call.first) {
      gemm<T>(team, SplitBy::columns, walk.lines, width, call.first.sizes[1],
              {static_cast<const T*>(call.first.data), call.first.strides[0]},
              {static_cast<const T*>(call.first_weight.data), call.first_weight.strides[0], true},
              first, width, false);
    }
    team.barrier();
    Strided<const T> before = lines_of<T>(call.h0);
    if (!call.begins()) before = line_rows(walked<T>(call.y, all, call.reverse), begin - 1);
    for (Index position = begin; position < end && call.batch > 0; position += tile_steps) {
      const Index steps = std::min(tile_steps, end - position);
      const Tile tile{call.reverse ? call.steps - position - steps : position, steps, 0,
                      call.batch};
      schedule.steps = ragged ? walk.sequences->longest() : steps;
      const TensorView sums = keep ? steps_of(kept, tile.first_step, tile.steps)
                                   : tokens_of(call, projected, tile.steps, width);
      DenseForwardArgs<T> args;
      args.weight = walk.packed_recurrent;
      args.products = products;
      args.input_weight = fuse ? walk.packed_input : nullptr;
      args.x = as_const(walked<T>(call.x, tile, call.reverse));
      args.input = call.input;
      args.bias = walk.bias;
      args.vectors = static_cast<const T*>(call.vectors.data);
      args.sums = walked<T>(sums, {0, tile.steps, 0, call.batch}, call.reverse);
      args.keep = keep;
      args.initial = before;
      args.y = walked<T>(call.y, tile, call.reverse);
      args.cells = walked<T>(cells, tile, call.reverse);
      args.masks = walked(call, tile, call.reverse);
      if (!pack) multiply_step(team, walk, args.x, before, args.sums, products);
      if (pack && !fuse) {
        const DenseTokens<T> tokens{args.x, args.sums, call.batch, tile.steps};
        table.tools.project(team, walk.input, walk.packed_input, tokens);
      }
      if (call.first && position == 0) {
        team.barrier();
        TensorView whole = sums;  // as if it began with the call's first step
        whole.sizes[2] = width;
        whole.data = static_cast<T*>(sums.data) - tile.first_step * sums.strides[0];
        add_to_edges<T>(team, EdgeSteps(call, false), {first, width, 0}, whole);
      }
      if (ragged) {
        args.ragged = walk.sequences->lines();
        args.zeros = walk.zeros;
      }
      team.barrier();
      if (walk.takes_part(schedule)) kernel(schedule, args);
      team.barrier();
      before = line_rows(args.y, tile.steps - 1);
    }
    if (!call.ends()) return;
    walk.store_last(team, walked<T>(call.y, all, call.reverse), before);
    walk.store_more(team, call.moren);
  });
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

template <class T>
void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const bool ragged = call.is_ragged();
  const Walk<T> walk(call, arena, true);
  const Index kept = call.kept_width();
  T* dsums = walk.take(arena, call.tokens() * kept);
  T* dvectors =
      call.vector_values() > 0 ? walk.take(arena, call.tokens() * call.vector_values()) : nullptr;
  T* before = ragged ? walk.take(arena, call.tokens() * call.hidden) : nullptr;
  T* first = call.feeds_first() ? walk.take(arena, walk.lines * call.width()) : nullptr;
  // The initial state's tensors behind h as kept ones lie, where there are several.
  const Index kept_states = call.more_states() * call.hidden;
  T* initial = call.more_states() > 1 ? walk.take(arena, walk.lines * kept_states) : nullptr;
  if (arena.counting()) return;

  const auto& table = kernels_of<T>();
  const auto kernel = table.dense[static_cast<int>(call.cell)][call.variant].backward;
  const Tile all{0, call.steps, 0, call.batch}, part = part_of(call);
  const auto against = [&](const TensorView& v) { return walked<T>(v, part, !call.reverse); };
  const TensorView dtokens = tokens_of(call, dsums, call.steps, kept);
  DenseBackwardArgs<T> args;
  args.weight = walk.packed_recurrent;
  args.sums = as_const(against(tokens_of(call, call.preactivations, call.steps, kept)));
  args.vectors = static_cast<const T*>(call.vectors.data);
  const TensorView states =
      kept_states > 0 ? tokens_of(call, call.states, call.steps, kept_states) : call.y;
  args.states = as_const(against(states));
  args.initial = lines_of<T>(kept_states > 0 ? call.more0[0] : call.h0);
  if (initial && call.more0[0]) args.initial = {initial, kept_states, 0};
  if (!call.begins()) {
    args.initial = line_rows(walked<T>(states, all, call.reverse), call.part_begin - 1);
  }
  args.dy = as_const(against(call.dy));
  args.dsums = against(dtokens);
  const TensorView dvector_tokens = tokens_of(call, dvectors, call.steps, call.vector_values());
  args.dvectors = against(dvector_tokens);
  args.masks = walked(call, part, !call.reverse);
  if (ragged) args.ragged = walk.sequences->lines();
  StepBarrier barrier;

  run_team(walk.threads(plan), [&](const Team& team) {
    DenseSchedule<T> schedule = walk.schedule(team, barrier);
    schedule.steps = ragged ? walk.sequences->longest() : part.steps;
    if (call.ends()) {
      if (call.dx) table.tools.pack_columns(team, 1, walk.input, walk.packed_input);
      if (walk.takes_part(schedule)) {
        table.tools.pack_columns(schedule.team, walk.lines, walk.recurrent, walk.packed_recurrent);
      }
      walk.load(team, call.dhn, walk.h, padded(call.hidden), 0);
      walk.load_more(team, call.dmoren, false);
      if (initial) gather_initial(team, call, initial);
    }
    if (ragged) {
      clear_padding<T>(team, dtokens, call.ragged.lengths);
      if (dvectors) clear_padding<T>(team, dvector_tokens, call.ragged.lengths);
      walk.keep_before(team, before);
    }
    team.barrier();
    if (walk.takes_part(schedule)) kernel(schedule, args);
    team.barrier();
    if (call.dx) {
      const DenseTokens<T> tokens{as_const(walked<T>(dtokens, part, false)),
                                  walked<T>(call.dx, part, false), call.batch, part.steps};
      table.tools.project_back(team, walk.input, walk.packed_input, tokens, call.accumulate_dx);
    }
    if (!call.begins()) return;  // parts are to come
    walk.store(team, walk.h, padded(call.hidden), call.dh0);
    walk.store_more(team, call.dmore0);
    const DenseGradients<T> gradients{
        team, call, dtokens,
        ragged ? tokens_of(call, before, call.steps, call.hidden) : TensorView{}};
    if (call.dweight) gradients.of_weight();
    if (call.drecurrent_weight) gradients.of_recurrent_weight();
    if (call.dbias) gradients.of_biases();
    if (call.dvectors) gradients.of_vectors(dvectors);
    if (!first) return;
    TensorView of_sums = dtokens;
    of_sums.sizes[2] = call.width();
    take_edges<T>(team, EdgeSteps(call, false), of_sums, {first, call.width(), 0});
    team.barrier();
    gradients.of_first(first, walk.lines);
  });
}

}  // namespace

void cpu_dense_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? forward<double> : forward<float>)(plan, call, workspace);
}
void cpu_dense_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? backward<double> : backward<float>)(plan, call, workspace);
}

}  // namespace scanrnn
