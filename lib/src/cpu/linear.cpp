// SPDX-License-Identifier: Apache-2.0
// One layer in one direction on the CPU: project a tile of tokens, walk it while it is in the
// cache.
#include "cpu/linear.h"

#include <algorithm>

#include "cpu/gemm.h"
#include "cpu/team.h"
#include "cpu/wait.h"
#include "recurrence/linear_layer.h"

namespace scanrnn {
namespace {

using scan::Range;
using scan::Team;

// Memory that a recurrence works in.
struct Scratch {
  void *carry, *totals = nullptr, *starts = nullptr;

  Scratch(Arena& arena, const dispatch::Plan& plan, Index lines, Index hidden, std::size_t item) {
    const auto units = static_cast<std::size_t>(lines * padded(hidden)) * item;
    carry = arena.take(units * kCarryFields);
    if (plan.chunk_steps == 0) return;
    const Index chunks = scan::chunk_count(plan.problem.steps, plan.chunk_steps);
    totals = arena.take(units * static_cast<std::size_t>(chunks) * kTotalFields);
    starts = arena.take(units * static_cast<std::size_t>(most_threads(plan)) * kCarryFields);
  }
};

CpuSchedule schedule_of(const Team& team, const dispatch::Plan& plan, const Scratch& scratch) {
  CpuSchedule out;
  out.team = team;
  out.chunk = plan.chunk_steps;
  out.log_domain = plan.problem.log_domain;
  out.carry = scratch.carry;
  out.totals = scratch.totals;
  out.starts = scratch.starts;
  return out;
}

template <class T>
void spread_bias(const LayerCall& call, T* bias) {
  std::fill_n(bias, call.width(), T(0));
  if (!call.bias) return;
  const auto [first, last] = call.biased();
  const auto* from = static_cast<const T*>(call.bias.data);
  std::copy_n(from, (last - first) * call.hidden, bias + first * call.hidden);
}

// A layer call cut into tiles, in the order in which they are walked forward: pieces of time or,
// where the tokens of a sequence are adjacent, whole sequences or pieces of one.
class Tiles {
 public:
  Tiles(const LayerCall& call, Index tile_steps) : pass_(call) {
    if (call.tokens() == 0) return;
    const Index tokens = tile_steps * call.batch;
    lines_ = call.batch_major ? std::clamp<Index>(tokens / call.steps, 1, call.batch) : call.batch;
    steps_ = std::min(call.steps, call.batch_major ? tokens : tile_steps);
    pieces_ = (call.steps + steps_ - 1) / steps_;
    count_ = pieces_ * ((call.batch + lines_ - 1) / lines_);
  }
  Index count() const { return count_; }
  Index most_tokens() const { return steps_ * lines_; }
  Tile operator[](Index i) const {
    const Index step = i % pieces_ * steps_, line = i / pieces_ * lines_;
    Tile tile{step, std::min(steps_, pass_.steps - step), line,
              std::min(lines_, pass_.batch - line)};
    if (pass_.reverse) tile.first_step = pass_.steps - step - tile.steps;
    return tile;
  }

 private:
  const LayerCall& pass_;
  Index steps_ = 0, lines_ = 0, pieces_ = 0, count_ = 0;
};

Index threads_for(const dispatch::Plan& plan, const LayerCall& call) {
  return team_size(plan, call.tokens() * call.width() * (call.input + dispatch::kCpuWalkCost));
}

template <class T>
void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const Index width = call.width();
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  const Scratch scratch(arena, plan, call.batch, call.hidden, sizeof(T));
  auto* kept = static_cast<T*>(call.preactivations);
  const bool tiled = plan.strategy == dispatch::Strategy::fused_sequential;
  const Tiles tiles(call, tiled ? plan.tile_steps : call.steps);
  const Index tile_values = tiles.most_tokens() * width;
  T* scratch_tiles = nullptr;
  if (!kept) {
    const Index crews = plan.in_turn ? std::min(plan.device.units, tiles.count()) : 1;
    scratch_tiles =
        static_cast<T*>(arena.take(static_cast<std::size_t>(crews * tile_values) * sizeof(T)));
  }
  if (arena.counting()) return;
  spread_bias(call, bias);

  const auto& table = kernels_of<T>();
  const auto kernel = table.cells[static_cast<int>(call.cell)][call.variant].forward;
  const Matrix<T> weight{static_cast<const T*>(call.weight.data), call.weight.strides[0], true};
  const TensorView states =
      dense(call.states, call.steps, call.batch, call.hidden, call.batch_major);
  const SplitBy split =
      plan.strategy == dispatch::Strategy::direct ? SplitBy::columns : SplitBy::rows;
  Turns turns;

  run_team(threads_for(plan, call), [&](const Team& team) {
    // The team shares each tile, or every thread has tiles of its own and walks them in its turn.
    const Team crew = plan.in_turn ? Team{} : team;
    const Index first_tile = plan.in_turn ? team.rank : 0, stride = plan.in_turn ? team.size : 1;
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.lines = call.batch;
    schedule.hidden = call.hidden;
    schedule.steps = call.steps;
    table.load_carry(schedule, static_cast<const T*>(call.h0.data), call.h0.strides[0]);
    if (plan.in_turn) team.barrier();
    schedule.team = crew;
    for (Index i = first_tile; i < tiles.count(); i += stride) {
      const Tile tile = tiles[i];
      T* gates =
          kept ? kept + first_token(call, tile) * width : scratch_tiles + first_tile * tile_values;
      for_runs<T>(call, tile, call.x, [&](const T* x, Index spacing, Index first, Index count) {
        gemm<T>(crew, split, count, width, call.input, {x, spacing}, weight, gates + first * width,
                width, false);
      });
      crew.barrier();
      schedule.lines = tile.lines;
      schedule.steps = tile.steps;
      schedule.first_line = tile.first_line;
      const Tile here{0, tile.steps, 0, tile.lines};
      const TensorView tokens = dense(gates, tile.steps, tile.lines, width, call.batch_major);
      const auto args = forward_args(call, as_const(walked<T>(tokens, here, call.reverse)), bias,
                                     as_const(walked<T>(call.x, tile, call.reverse)),
                                     walked<T>(call.y, tile, call.reverse),
                                     walked<T>(states, tile, call.reverse));
      if (plan.in_turn) turns.wait(i);
      kernel(schedule, args);
      if (plan.in_turn) turns.call(i);
      crew.barrier();
    }
    if (plan.in_turn) team.barrier();
    schedule.team = team;
    schedule.lines = call.batch;
    table.store_carry(schedule, static_cast<T*>(call.hn.data), call.hn.strides[0]);
  });
}

template <class T>
void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const Index width = call.width(), tokens = call.tokens();
  const bool adds_skip = carries_input(call);
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  const Scratch scratch(arena, plan, call.batch, call.hidden, sizeof(T));
  auto* dgates = static_cast<T*>(arena.take(static_cast<std::size_t>(tokens * width) * sizeof(T)));
  T* dskip = nullptr;
  if (adds_skip) {
    dskip = static_cast<T*>(arena.take(static_cast<std::size_t>(tokens * call.hidden) * sizeof(T)));
  }
  if (arena.counting()) return;
  spread_bias(call, bias);

  const auto& table = kernels_of<T>();
  const auto kernel = table.cells[static_cast<int>(call.cell)][call.variant].backward;
  const Matrix<T> weight{static_cast<const T*>(call.weight.data), call.weight.strides[0]};
  const Tile all{0, call.steps, 0, call.batch};

  run_team(threads_for(plan, call), [&](const Team& team) {
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.lines = call.batch;
    schedule.hidden = call.hidden;
    schedule.steps = call.steps;
    table.load_carry(schedule, static_cast<const T*>(call.dhn.data), call.dhn.strides[0]);
    team.barrier();
    const auto args = backward_args(
        call, bias, dgates, dense(dskip, call.steps, call.batch, call.hidden, call.batch_major));
    if (tokens > 0) kernel(schedule, args);
    team.barrier();
    table.store_carry(schedule, static_cast<T*>(call.dh0.data), call.dh0.strides[0]);

    if (call.dx) {
      for_runs<T>(call, all, call.dx, [&](T* dx, Index spacing, Index first, Index count) {
        gemm<T>(team, SplitBy::rows, count, call.input, width, {dgates + first * width, width},
                weight, dx, spacing, call.accumulate_dx);
        team.barrier();
        if (!adds_skip) return;
        const Range mine = team.share(count);
        for (Index i = mine.begin; i < mine.end; ++i) {
          const T* from = dskip + (first + i) * call.hidden;
          for (Index j = 0; j < call.hidden; ++j) dx[i * spacing + j] += from[j];
        }
      });
    }
    if (call.dweight) {
      auto* dweight = static_cast<T*>(call.dweight.data);
      const Index stride = call.dweight.strides[0];
      if (tokens == 0)
        gemm<T>(team, SplitBy::rows, width, call.input, 0, {dgates, width, true}, {dgates, 1},
                dweight, stride, false);
      for_runs<T>(call, all, call.x, [&](const T* x, Index spacing, Index first, Index count) {
        for (Index i = 0; i < count; i += kSummedTokens) {
          gemm<T>(team, SplitBy::rows, width, call.input, std::min(kSummedTokens, count - i),
                  {dgates + (first + i) * width, width, true}, {x + i * spacing, spacing}, dweight,
                  stride, first + i > 0);
        }
      });
    }
    if (call.dbias) {
      const auto [first, last] = call.biased();
      table.column_sums(team, dgates + first * call.hidden, tokens, width,
                        (last - first) * call.hidden, static_cast<T*>(call.dbias.data));
    }
  });
}

template <class T>
void bare_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& arena) {
  const Index steps = plan.problem.steps, width = plan.problem.hidden_size;
  const Scratch scratch(arena, plan, 1, width, sizeof(T));
  if (arena.counting()) return;
  const auto along = [&](const TensorView& v) {
    TensorView line = v;  // [T,N] as [T,1,N]
    line.strides = {v.strides[0], 0, 1};
    return walked<T>(line, {0, steps, 0, 1}, args.reverse);
  };
  const Index tensors = args.sign_b ? 4 : 3;
  const bool streams = steps * width * tensors * static_cast<Index>(sizeof(T)) > last_level_cache();
  run_team(team_size(plan, steps * width * dispatch::kCpuWalkCost), [&](const Team& team) {
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.streams = streams;
    schedule.lines = 1;
    schedule.hidden = width;
    schedule.steps = steps;
    const ScanKernelArgs<T> kernel_args{as_const(along(args.a)), as_const(along(args.b)),
                                        as_const(along(args.sign_b)), along(args.h)};
    kernels_of<T>().load_carry(schedule, static_cast<const T*>(args.h0.data), 0);
    team.barrier();
    (args.log_form ? kernels_of<T>().scan_log : kernels_of<T>().scan)(schedule, kernel_args);
  });
}

}  // namespace

void cpu_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? forward<double> : forward<float>)(plan, call, workspace);
}
void cpu_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? backward<double> : backward<float>)(plan, call, workspace);
}
void cpu_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? bare_scan<double> : bare_scan<float>)(plan, args, workspace);
}

}  // namespace scanrnn
