// SPDX-License-Identifier: Apache-2.0
// One layer in one direction on the CPU: project a tile of tokens, walk it while it is in the
// cache.
#include "cpu_layer.h"

#include <algorithm>

#include "cpu_team.h"
#include "cpu_wait.h"
#include "gemm_cpu.h"
#include "scanrnn/dispatch/tiles.h"

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
    starts = arena.take(units * static_cast<std::size_t>(plan.device.units) * kCarryFields);
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
void spread_bias(const Pass& pass, T* bias) {
  std::fill_n(bias, pass.width(), T(0));
  if (!pass.bias) return;
  const auto [first, last] = pass.biased();
  const auto* from = static_cast<const T*>(pass.bias.data);
  std::copy_n(from, (last - first) * pass.hidden, bias + first * pass.hidden);
}

Tile tile_at(const dispatch::Plan& plan, const Pass& pass, Index& position) {
  Tile tile{0, pass.steps, 0, pass.batch};
  if (plan.strategy == dispatch::Strategy::fused_sequential) {
    if (!pass.batch_major) {
      tile.steps = std::min(plan.tile_steps, pass.steps - position);
      tile.first_step = pass.reverse ? pass.steps - position - tile.steps : position;
      position += tile.steps;
      return tile;
    }
    // Batch-major tokens of a tile stay adjacent: whole sequences, or a piece of one.
    const Index tokens = plan.tile_steps * pass.batch;
    const Index line = position / pass.steps, done = position % pass.steps;
    tile.first_line = line;
    tile.lines = done ? 1 : std::clamp<Index>(tokens / pass.steps, 1, pass.batch - line);
    tile.steps =
        tile.lines > 1 ? pass.steps : std::min(std::max<Index>(1, tokens), pass.steps - done);
    tile.first_step = pass.reverse ? pass.steps - done - tile.steps : done;
  }
  position += pass.batch_major ? tile.tokens() : tile.steps;
  return tile;
}

Index largest_tile(const dispatch::Plan& plan, const Pass& pass) {
  return plan.strategy == dispatch::Strategy::fused_sequential
             ? std::min(pass.tokens(), plan.tile_steps * pass.batch)
             : pass.tokens();
}

Index threads_for(const dispatch::Plan& plan, const Pass& pass) {
  return team_size(plan, pass.tokens() * pass.width() * (pass.input + dispatch::kCpuWalkCost));
}

template <class T>
void forward(const dispatch::Plan& plan, const Pass& pass, Arena& arena) {
  const Index width = pass.width();
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  const Scratch scratch(arena, plan, pass.batch, pass.hidden, sizeof(T));
  auto* kept = static_cast<T*>(pass.preactivations);
  T* scratch_tile = nullptr;
  const Index tile_values = largest_tile(plan, pass) * width;
  if (!kept) {
    const Index tiles = plan.in_turn ? plan.device.units : 1;
    scratch_tile =
        static_cast<T*>(arena.take(static_cast<std::size_t>(tiles * tile_values) * sizeof(T)));
  }
  if (arena.counting()) return;
  spread_bias(pass, bias);

  const auto& table = kernels_of<T>();
  const auto kernel = table.cells[static_cast<int>(pass.cell)][pass.variant].forward;
  const Matrix<T> weight{static_cast<const T*>(pass.weight.data), pass.weight.strides[0], true};
  const TensorView states =
      dense(pass.states, pass.steps, pass.batch, pass.hidden, pass.batch_major);
  const SplitBy split =
      plan.strategy == dispatch::Strategy::direct ? SplitBy::columns : SplitBy::rows;
  const Index end = pass.batch_major ? pass.tokens() : pass.steps;
  Turns turns;

  run_team(threads_for(plan, pass), [&](const Team& team) {
    // Who share a tile: all, or each thread has tiles of its own.
    const bool in_turn = plan.in_turn && team.size > 1;
    const Team crew = in_turn ? Team{} : team;
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.lines = pass.batch;
    schedule.hidden = pass.hidden;
    schedule.steps = pass.steps;
    table.load_carry(schedule, static_cast<const T*>(pass.h0.data), pass.h0.strides[0]);
    if (in_turn) team.barrier();
    schedule.team = crew;
    Index ticket = 0;
    for (Index position = 0; position < end && pass.tokens() > 0; ++ticket) {
      const Tile tile = tile_at(plan, pass, position);
      if (in_turn && ticket % team.size != team.rank) continue;
      T* gates = kept ? kept + first_token(pass, tile) * width
                      : scratch_tile + (in_turn ? team.rank * tile_values : 0);
      for_runs<T>(pass, tile, pass.x, [&](const T* x, Index spacing, Index first, Index count) {
        gemm<T>(crew, split, count, width, pass.input, {x, spacing}, weight, gates + first * width,
                width, false);
      });
      crew.barrier();
      schedule.lines = tile.lines;
      schedule.steps = tile.steps;
      schedule.first_line = tile.first_line;
      ForwardKernelArgs<T> args;
      const Tile here{0, tile.steps, 0, tile.lines};
      args.preactivations = as_const(walked<T>(
          dense(gates, tile.steps, tile.lines, width, pass.batch_major), here, pass.reverse));
      args.bias = bias;
      args.skip = args.preactivations;
      args.skip.data += (pass.gates - 1) * pass.hidden;
      if (!pass.highway_projection()) args.skip = as_const(walked<T>(pass.x, tile, pass.reverse));
      args.y = walked<T>(pass.y, tile, pass.reverse);
      args.states = walked<T>(states, tile, pass.reverse);
      if (in_turn) turns.wait(ticket);
      kernel(schedule, args);
      if (in_turn) turns.pass(ticket);
      crew.barrier();
    }
    if (in_turn) team.barrier();
    schedule.team = team;
    schedule.lines = pass.batch;
    table.store_carry(schedule, static_cast<T*>(pass.hn.data), pass.hn.strides[0]);
  });
}

template <class T>
void backward(const dispatch::Plan& plan, const Pass& pass, Arena& arena) {
  const Index width = pass.width(), tokens = pass.tokens();
  const bool adds_skip = info(pass.cell).highway && !pass.highway_projection();
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  const Scratch scratch(arena, plan, pass.batch, pass.hidden, sizeof(T));
  auto* dgates = static_cast<T*>(arena.take(static_cast<std::size_t>(tokens * width) * sizeof(T)));
  T* dskip = nullptr;
  if (adds_skip) {
    dskip = static_cast<T*>(arena.take(static_cast<std::size_t>(tokens * pass.hidden) * sizeof(T)));
  }
  if (arena.counting()) return;
  spread_bias(pass, bias);

  const auto& table = kernels_of<T>();
  const auto kernel = table.cells[static_cast<int>(pass.cell)][pass.variant].backward;
  const Matrix<T> weight{static_cast<const T*>(pass.weight.data), pass.weight.strides[0]};
  const Tile all{0, pass.steps, 0, pass.batch};
  const auto view = [&](const void* data, Index columns) {
    return dense(const_cast<void*>(data), pass.steps, pass.batch, columns, pass.batch_major);
  };
  const auto walk = [&](const TensorView& v) {  // against the direction of the forward pass
    return walked<T>(v, all, !pass.reverse);
  };

  run_team(threads_for(plan, pass), [&](const Team& team) {
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.lines = pass.batch;
    schedule.hidden = pass.hidden;
    schedule.steps = pass.steps;
    table.load_carry(schedule, static_cast<const T*>(pass.dhn.data), pass.dhn.strides[0]);
    team.barrier();
    BackwardKernelArgs<T> args;
    args.preactivations = as_const(walk(view(pass.preactivations, width)));
    args.bias = bias;
    args.states = as_const(walk(pass.states ? view(pass.states, pass.hidden) : pass.y));
    args.initial = {static_cast<const T*>(pass.h0.data), pass.h0.strides[0], 0};
    args.dy = as_const(walk(pass.dy));
    args.dpreactivations = walk(view(dgates, width));
    if (adds_skip) {
      args.skip = as_const(walk(pass.x));
      args.dskip = walk(view(dskip, pass.hidden));
    } else if (pass.highway_projection()) {
      const Index block = (pass.gates - 1) * pass.hidden;
      args.skip = args.preactivations;
      args.skip.data += block;
      args.dskip = args.dpreactivations;
      args.dskip.data += block;
    }
    if (tokens > 0) kernel(schedule, args);
    team.barrier();
    table.store_carry(schedule, static_cast<T*>(pass.dh0.data), pass.dh0.strides[0]);

    if (pass.dx) {
      for_runs<T>(pass, all, pass.dx, [&](T* dx, Index spacing, Index first, Index count) {
        gemm<T>(team, SplitBy::rows, count, pass.input, width, {dgates + first * width, width},
                weight, dx, spacing, pass.accumulate_dx);
        team.barrier();
        if (!adds_skip) return;
        const Range mine = team.share(count);
        for (Index i = mine.begin; i < mine.end; ++i) {
          const T* from = dskip + (first + i) * pass.hidden;
          for (Index j = 0; j < pass.hidden; ++j) dx[i * spacing + j] += from[j];
        }
      });
    }
    if (pass.dweight) {
      auto* dweight = static_cast<T*>(pass.dweight.data);
      const Index stride = pass.dweight.strides[0];
      if (tokens == 0)
        gemm<T>(team, SplitBy::rows, width, pass.input, 0, {dgates, width, true}, {dgates, 1},
                dweight, stride, false);
      for_runs<T>(pass, all, pass.x, [&](const T* x, Index spacing, Index first, Index count) {
        for (Index i = 0; i < count; i += kSummedTokens) {
          gemm<T>(team, SplitBy::rows, width, pass.input, std::min(kSummedTokens, count - i),
                  {dgates + (first + i) * width, width, true}, {x + i * spacing, spacing}, dweight,
                  stride, first + i > 0);
        }
      });
    }
    if (pass.dbias) {
      const auto [first, last] = pass.biased();
      table.column_sums(team, dgates + first * pass.hidden, tokens, width,
                        (last - first) * pass.hidden, static_cast<T*>(pass.dbias.data));
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
  run_team(team_size(plan, steps * width * 8), [&](const Team& team) {
    CpuSchedule schedule = schedule_of(team, plan, scratch);
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

void cpu_forward(const dispatch::Plan& plan, const Pass& pass, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? forward<double> : forward<float>)(plan, pass, workspace);
}
void cpu_backward(const dispatch::Plan& plan, const Pass& pass, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? backward<double> : backward<float>)(plan, pass, workspace);
}
void cpu_scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? bare_scan<double> : bare_scan<float>)(plan, args, workspace);
}

}  // namespace scanrnn
