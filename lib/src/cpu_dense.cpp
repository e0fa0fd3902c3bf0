// SPDX-License-Identifier: Apache-2.0
// One dense layer in one direction on the CPU: products with the input for many steps at once, and
// step after step the product with the state. With an arena that only counts, nothing is computed.
#include "cpu_dense.h"

#include <algorithm>

#include "cpu_dense_gradients.h"
#include "cpu_kernels.h"
#include "cpu_layer.h"
#include "cpu_team.h"
#include "gemm_cpu.h"

namespace scanrnn {
namespace {

using scan::Range;
using scan::Team;

// Steps from which packing the recurrent weights, which costs a few products, pays.
constexpr Index kPackedSteps = 4;

// What both directions work with: the weights as they are and packed, and the carried states.
template <class T>
struct Walk {
  const Pass& pass;
  DenseWeight<T> input, recurrent;
  T *bias = nullptr, *packed_input = nullptr, *packed_recurrent = nullptr;
  T *h = nullptr, *c = nullptr;

  Walk(const Pass& p, Arena& arena, bool pack)
      : pass(p),
        input(weight_of(p, p.weight, p.input)),
        recurrent(weight_of(p, p.recurrent_weight, p.hidden)) {
    const Index line = padded(pass.hidden);
    bias = take(arena, pass.kept_width());
    if (pack) {
      packed_input =
          take(arena, pass.gates * std::max(line * pass.input, pass.hidden * padded(pass.input)));
      packed_recurrent = take(arena, pass.width() * line);
    }
    h = take(arena, pass.batch * line);
    if (pass.pair()) c = take(arena, pass.batch * line);
  }
  static DenseWeight<T> weight_of(const Pass& pass, const TensorView& weight, Index columns) {
    return {static_cast<const T*>(weight.data), weight.strides[0], pass.hidden, columns,
            pass.gates};
  }
  static T* take(Arena& arena, Index count) {
    return static_cast<T*>(arena.take(static_cast<std::size_t>(count) * sizeof(T)));
  }

  // Threads worth keeping in step: a barrier takes about as long as this many multiplications.
  int members(const Team& team) const {
    constexpr Index kPerThread = 1 << 14;
    const Index worth = pass.batch * pass.width() * pass.hidden / kPerThread;
    return static_cast<int>(std::clamp<Index>(worth, 1, team.size));
  }
  Index threads(const dispatch::Plan& plan) const {
    return team_size(plan, pass.tokens() * pass.width() * (pass.input + pass.hidden));
  }
  DenseSchedule<T> schedule(const Team& team, StepBarrier& barrier) const {
    DenseSchedule<T> out;
    out.team = {team.rank, members(team)};
    out.barrier = &barrier;
    out.lines = pass.batch;
    out.hidden = pass.hidden;
    out.h = h;
    out.c = c;
    return out;
  }
  static bool takes_part(const DenseSchedule<T>& schedule) {
    return schedule.team.rank < schedule.team.size;
  }

  // bias_ih and bias_hh, each with the sums that its row blocks add to.
  void add_biases() const {
    const Index own = own_blocks(pass) * pass.hidden, in_order = pass.width() - own;
    std::fill_n(bias, pass.kept_width(), T(0));
    const auto add = [&](const TensorView& from, Index first, Index last, Index shift) {
      const auto* values = static_cast<const T*>(from.data);
      for (Index i = first; values && i < last; ++i) bias[i + shift] += values[i];
    };
    add(pass.bias, 0, pass.width(), 0);
    add(pass.recurrent_bias, 0, in_order, 0);
    add(pass.recurrent_bias, in_order, pass.width(), own);
  }
  // Between a carry and a [B,H] tensor; absent: zeros.
  void load(const Team& team, const TensorView& from, T* carry) const {
    const Range mine = team.share(pass.batch);
    for (Index line = mine.begin; line < mine.end; ++line) {
      T* to = carry + line * padded(pass.hidden);
      std::fill_n(to, padded(pass.hidden), T(0));
      if (from) {
        std::copy_n(static_cast<const T*>(from.data) + line * from.strides[0], pass.hidden, to);
      }
    }
  }
  void store(const Team& team, const T* carry, const TensorView& to) const {
    const Range mine = team.share(pass.batch);
    for (Index line = mine.begin; to && line < mine.end; ++line) {
      std::copy_n(carry + line * padded(pass.hidden), pass.hidden,
                  static_cast<T*>(to.data) + line * to.strides[0]);
    }
  }
};

template <class T>
Strided<const T> lines_of(const TensorView& state) {
  return {static_cast<const T*>(state.data), state.strides[0], 0};
}

// Tokens that lie densely in the pass's order, in its dtype.
TensorView tokens_of(const Pass& pass, void* data, Index steps, Index width) {
  TensorView out = dense(data, steps, pass.batch, width, pass.batch_major);
  out.dtype = pass.y.dtype;
  return out;
}

// A step's two products, from the weights as they are.
template <class T>
void multiply_step(const Team& team, const Walk<T>& walk, const Strided<const T>& x,
                   const Strided<const T>& h, const Strided<T>& sums, T* products) {
  const Index width = walk.pass.width();
  const auto multiply = [&](const Strided<const T>& lines, const DenseWeight<T>& weight, T* to,
                            Index spacing) {
    gemm<T>(team, SplitBy::columns, walk.pass.batch, width, lines.data ? weight.columns : 0,
            {lines.data, std::max(lines.line, weight.columns)}, {weight.data, weight.stride, true},
            to, spacing, false);
  };
  multiply(x, walk.input, sums.data, std::max(sums.line, width));
  multiply(h, walk.recurrent, products, width);
}

template <class T>
void forward(const dispatch::Plan& plan, const Pass& pass, Arena& arena) {
  const bool pack = pass.steps >= kPackedSteps, keep = pass.preactivations != nullptr;
  const bool fuse = pack && plan.tile_steps == 1;  // each step multiplies its own input
  const Walk<T> walk(pass, arena, pack);
  const Index width = pass.width();
  const Index tile_steps = !pack ? 1 : fuse ? pass.steps : std::min(plan.tile_steps, pass.steps);
  T* products = pack ? nullptr : walk.take(arena, pass.batch * width);
  T* projected = keep || fuse ? nullptr : walk.take(arena, tile_steps * pass.batch * width);
  if (arena.counting()) return;
  walk.add_biases();

  const auto& table = kernels_of<T>();
  const auto kernel = table.dense[static_cast<int>(pass.cell)].forward;
  const TensorView kept = tokens_of(pass, pass.preactivations, pass.steps, pass.kept_width());
  const TensorView cells = tokens_of(pass, pass.states, pass.steps, pass.hidden);
  StepBarrier barrier;

  run_team(walk.threads(plan), [&](const Team& team) {
    DenseSchedule<T> schedule = walk.schedule(team, barrier);
    if (pack) {
      table.tools.pack_gates(team, walk.input, walk.packed_input);
      table.tools.pack_gates(team, walk.recurrent, walk.packed_recurrent);
    }
    if (pass.pair()) walk.load(team, pass.c0, walk.c);
    team.barrier();
    Strided<const T> before = lines_of<T>(pass.h0);
    for (Index position = 0; position < pass.steps && pass.batch > 0; position += schedule.steps) {
      schedule.steps = std::min(tile_steps, pass.steps - position);
      const Tile tile{pass.reverse ? pass.steps - position - schedule.steps : position,
                      schedule.steps, 0, pass.batch};
      const TensorView sums = keep ? steps_of(kept, tile.first_step, tile.steps)
                                   : tokens_of(pass, projected, tile.steps, width);
      DenseForwardArgs<T> args;
      args.weight = walk.packed_recurrent;
      args.products = products;
      args.input_weight = fuse ? walk.packed_input : nullptr;
      args.x = as_const(walked<T>(pass.x, tile, pass.reverse));
      args.input = pass.input;
      args.bias = walk.bias;
      args.sums = walked<T>(sums, {0, tile.steps, 0, pass.batch}, pass.reverse);
      args.keep = keep;
      args.initial = before;
      args.y = walked<T>(pass.y, tile, pass.reverse);
      args.cells = walked<T>(cells, tile, pass.reverse);
      if (!pack) multiply_step(team, walk, args.x, before, args.sums, products);
      if (pack && !fuse) {
        const DenseTokens<T> tokens{args.x, args.sums, pass.batch, tile.steps};
        table.tools.project(team, walk.input, walk.packed_input, tokens);
      }
      team.barrier();
      if (walk.takes_part(schedule)) kernel(schedule, args);
      team.barrier();
      before = {args.y.at(tile.steps - 1), args.y.line, 0};
    }
    const Range mine = team.share(pass.batch);
    for (Index line = mine.begin; pass.hn && line < mine.end; ++line) {
      T* to = static_cast<T*>(pass.hn.data) + line * pass.hn.strides[0];
      const T* from = before.at_line(line).data;
      if (!from) std::fill_n(to, pass.hidden, T(0));
      if (from && from != to) std::copy_n(from, pass.hidden, to);
    }
    if (pass.pair()) walk.store(team, walk.c, pass.cn);
  });
}

template <class T>
void backward(const dispatch::Plan& plan, const Pass& pass, Arena& arena) {
  const Walk<T> walk(pass, arena, true);
  const Index kept = pass.kept_width();
  T* dsums = walk.take(arena, pass.tokens() * kept);
  if (arena.counting()) return;

  const auto& table = kernels_of<T>();
  const auto kernel = table.dense[static_cast<int>(pass.cell)].backward;
  const Tile all{0, pass.steps, 0, pass.batch};
  const auto against = [&](const TensorView& v) { return walked<T>(v, all, !pass.reverse); };
  const TensorView dtokens = tokens_of(pass, dsums, pass.steps, kept);
  DenseBackwardArgs<T> args;
  args.weight = walk.packed_recurrent;
  args.sums = as_const(against(tokens_of(pass, pass.preactivations, pass.steps, kept)));
  args.y = as_const(against(pass.y));
  args.cells = as_const(against(tokens_of(pass, pass.states, pass.steps, pass.hidden)));
  args.dy = as_const(against(pass.dy));
  args.initial = lines_of<T>(pass.h0);
  args.initial_cell = lines_of<T>(pass.c0);
  args.dsums = against(dtokens);
  StepBarrier barrier;

  run_team(walk.threads(plan), [&](const Team& team) {
    DenseSchedule<T> schedule = walk.schedule(team, barrier);
    schedule.steps = pass.steps;
    if (pass.dx) table.tools.pack_columns(team, 1, walk.input, walk.packed_input);
    if (walk.takes_part(schedule)) {
      table.tools.pack_columns(schedule.team, pass.batch, walk.recurrent, walk.packed_recurrent);
    }
    walk.load(team, pass.dhn, walk.h);
    if (pass.pair()) walk.load(team, pass.dcn, walk.c);
    team.barrier();
    if (walk.takes_part(schedule)) kernel(schedule, args);
    team.barrier();
    walk.store(team, walk.h, pass.dh0);
    if (pass.pair()) walk.store(team, walk.c, pass.dc0);
    if (pass.dx) {
      const DenseTokens<T> tokens{as_const(walked<T>(dtokens, all, false)),
                                  walked<T>(pass.dx, all, false), pass.batch, pass.steps};
      table.tools.project_back(team, walk.input, walk.packed_input, tokens, pass.accumulate_dx);
    }
    const DenseGradients<T> gradients{team, pass, dtokens};
    if (pass.dweight) gradients.of_weight();
    if (pass.drecurrent_weight) gradients.of_recurrent_weight();
    if (pass.dbias) gradients.of_biases();
  });
}

}  // namespace

void cpu_dense_forward(const dispatch::Plan& plan, const Pass& pass, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? forward<double> : forward<float>)(plan, pass, workspace);
}
void cpu_dense_backward(const dispatch::Plan& plan, const Pass& pass, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? backward<double> : backward<float>)(plan, pass, workspace);
}

}  // namespace scanrnn
