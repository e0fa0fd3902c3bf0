// SPDX-License-Identifier: Apache-2.0
// One layer in one direction on the CPU: project a tile of tokens, walk it while it is in the
// cache.
#include "cpu_layer.h"

#include <algorithm>

#include "cpu_team.h"
#include "cpu_wait.h"
#include "gemm_cpu.h"

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
void spread_bias(const Pass& pass, T* bias) {
  std::fill_n(bias, pass.width(), T(0));
  if (!pass.bias) return;
  const auto [first, last] = pass.biased();
  const auto* from = static_cast<const T*>(pass.bias.data);
  std::copy_n(from, (last - first) * pass.hidden, bias + first * pass.hidden);
}

// A pass cut into tiles, in the order in which they are walked forward: pieces of time or, where
// the tokens of a sequence are adjacent, whole sequences or pieces of one.
class Tiles {
 public:
  Tiles(const Pass& pass, Index tile_steps) : pass_(pass) {
    if (pass.tokens() == 0) return;
    const Index tokens = tile_steps * pass.batch;
    lines_ = pass.batch_major ? std::clamp<Index>(tokens / pass.steps, 1, pass.batch) : pass.batch;
    steps_ = std::min(pass.steps, pass.batch_major ? tokens : tile_steps);
    pieces_ = (pass.steps + steps_ - 1) / steps_;
    count_ = pieces_ * ((pass.batch + lines_ - 1) / lines_);
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
  const Pass& pass_;
  Index steps_ = 0, lines_ = 0, pieces_ = 0, count_ = 0;
};

Index threads_for(const dispatch::Plan& plan, const Pass& pass) {
  return team_size(plan, pass.tokens() * pass.width() * (pass.input + dispatch::kCpuWalkCost));
}

template <class T>
void forward(const dispatch::Plan& plan, const Pass& pass, Arena& arena) {
  const Index width = pass.width();
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  const Scratch scratch(arena, plan, pass.batch, pass.hidden, sizeof(T));
  auto* kept = static_cast<T*>(pass.preactivations);
  const bool tiled = plan.strategy == dispatch::Strategy::fused_sequential;
  const Tiles tiles(pass, tiled ? plan.tile_steps : pass.steps);
  const Index tile_values = tiles.most_tokens() * width;
  T* scratch_tiles = nullptr;
  if (!kept) {
    const Index crews = plan.in_turn ? std::min(plan.device.units, tiles.count()) : 1;
    scratch_tiles =
        static_cast<T*>(arena.take(static_cast<std::size_t>(crews * tile_values) * sizeof(T)));
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
  Turns turns;

  run_team(threads_for(plan, pass), [&](const Team& team) {
    // The team shares each tile, or every thread has tiles of its own and walks them in its turn.
    const Team crew = plan.in_turn ? Team{} : team;
    const Index first_tile = plan.in_turn ? team.rank : 0, stride = plan.in_turn ? team.size : 1;
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.lines = pass.batch;
    schedule.hidden = pass.hidden;
    schedule.steps = pass.steps;
    table.load_carry(schedule, static_cast<const T*>(pass.h0.data), pass.h0.strides[0]);
    if (plan.in_turn) team.barrier();
    schedule.team = crew;
    for (Index i = first_tile; i < tiles.count(); i += stride) {
      const Tile tile = tiles[i];
      T* gates =
          kept ? kept + first_token(pass, tile) * width : scratch_tiles + first_tile * tile_values;
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
      if (plan.in_turn) turns.wait(i);
      kernel(schedule, args);
      if (plan.in_turn) turns.pass(i);
      crew.barrier();
    }
    if (plan.in_turn) team.barrier();
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
  run_team(team_size(plan, steps * width * dispatch::kCpuWalkCost), [&](const Team& team) {
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
