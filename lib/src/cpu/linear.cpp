// SPDX-License-Identifier: Apache-2.0
// One layer in one direction on the CPU: project a tile of tokens, walk it while it is in the
// cache.
#include "cpu/linear.h"

#include <algorithm>
#include <optional>

#include "cpu/gemm.h"
#include "cpu/ragged.h"
#include "cpu/schedule.h"
#include "cpu/team.h"
#include "cpu/wait.h"
#include "recurrence/linear_layer.h"

namespace scanrnn {
namespace {

using scan::Range;
using scan::Team;

template <class T>
void spread_bias(const LayerCall& call, T* bias) {
  std::fill_n(bias, call.width(), T(0));
  if (!call.bias) return;
  const auto [first, last] = call.biased();
  const auto* from = static_cast<const T*>(call.bias.data);
  std::copy_n(from, (last - first) * call.hidden, bias + first * call.hidden);
}

// What the kernels read of the vectors: `prepared`, which has room for them, or the parameter.
template <class T>
const T* vectors_of(const LayerCall& call, const CpuCellKernels<T>& kernels, T* prepared) {
  const auto* given = static_cast<const T*>(call.vectors.data);
  if (!kernels.prepare_vectors || !given) return given;
  kernels.prepare_vectors(given, call.vector_values(), prepared);
  return prepared;
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

// A ragged batch: each stretch of a sequence is a batch of one line. The team walks all of them
// together where one is more than a thread's share, else every thread has stretches of its own.
template <class T>
struct RaggedWalk {
  const LayerCall& call;
  const Sequences& sequences;
  const CpuTypeKernels<T>& table = kernels_of<T>();

  // Every stretch: walk(schedule, sequence, first step, steps, own) between the states in row
  // `sequence.row` of `from` and `to`, where the stretch is at that end of it. `backward`: the walk
  // begins at a stretch's end.
  template <class Walk>
  void run(const Team& team, const CpuSchedule& whole, bool backward, const TensorView& from,
           const TensorView& to, const Walk& walk) const {
    const Index all = sequences.tokens();
    const bool together = sequences.longest() * team.size > all;
    const Index line_values = padded(call.hidden) * kCarryFields;
    Index before = 0;  // tokens of the sequences so far
    for (const Sequence& s : sequences) {
      // Whose share of the tokens has the sequence's middle.
      const Index share = (2 * before + s.count) * team.size / std::max<Index>(1, 2 * all);
      before += s.count;
      if (!together && std::min<Index>(share, team.size - 1) != team.rank) continue;
      sequences.for_stretches(s, [&](Index first, Index end, bool own, bool last) {
        CpuSchedule schedule = whole;
        schedule.lines = 1;
        schedule.steps = end - first;
        if (!together) schedule.team = Team{};
        if (!together || schedule.steps < kLeastChunks * whole.chunk) schedule.chunk = 0;
        schedule.carry = static_cast<T*>(whole.carry) + (together ? 0 : team.rank * line_values);
        const bool begins = backward ? last : own, ends = backward ? own : last;
        table.load_carry(schedule, begins ? row_of(from, s.row) : nullptr, 0);
        if (schedule.chunk != 0) team.barrier();
        if (schedule.steps > 0) walk(schedule, s, first, own);
        if (schedule.chunk != 0) team.barrier();
        if (ends) table.store_carry(schedule, row_of(to, s.row), 0);
        if (backward && first == s.first && !own) clear(to, s.row);
      });
    }
  }

 private:
  static constexpr Index kLeastChunks = 4;  // that a stretch has for a team to share its time
  static T* row_of(const TensorView& states, Index row) {
    return states ? static_cast<T*>(states.data) + row * states.strides[0] : nullptr;
  }
  // Nothing comes back to a state that the first step resets.
  void clear(const TensorView& states, Index row) const {
    if (states) std::fill_n(row_of(states, row), call.hidden, T(0));
  }
};

// All stretches, forward; `args` are those of the whole call.
template <class T, class Kernel>
void walk_stretches(const Team& team, const CpuSchedule& schedule, const RaggedWalk<T>& ragged,
                    const Kernel& kernel, const ForwardKernelArgs<T>& args) {
  const LayerCall& call = ragged.call;
  ragged.run(team, schedule, false, call.h0, call.hn,
             [&](const CpuSchedule& s, const Sequence& of, Index first, bool) {
               const auto at = [&](const auto& tensor) { return moved(tensor, of.line, first); };
               ForwardKernelArgs<T> here = args;
               here.preactivations = at(args.preactivations);
               here.skip = at(args.skip);
               here.y = at(args.y);
               here.states = at(args.states);
               here.masks = args.masks.part(of.line, of.row, first);
               kernel(s, here);
             });
}

// And backward.
template <class T, class Kernel>
void walk_stretches(const Team& team, const CpuSchedule& schedule, const RaggedWalk<T>& ragged,
                    const Kernel& kernel, const BackwardKernelArgs<T>& args) {
  const LayerCall& call = ragged.call;
  ragged.run(team, schedule, true, call.dhn, call.dh0,
             [&](const CpuSchedule& s, const Sequence& of, Index first, bool own) {
               const auto at = [&](const auto& tensor) {
                 return moved(tensor, of.line, call.steps - first - s.steps);
               };
               BackwardKernelArgs<T> here = args;
               here.preactivations = at(args.preactivations);
               here.skip = at(args.skip);
               here.states = at(args.states);
               here.initial = own ? moved(args.initial, of.row, 0) : Strided<const T>{};
               here.dy = at(args.dy);
               here.dpreactivations = at(args.dpreactivations);
               here.dskip = at(args.dskip);
               here.dvectors = at(args.dvectors);
               here.masks = args.masks.part(of.line, of.row, call.steps - first - s.steps);
               kernel(s, here);
             });
}

template <class T>
void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const Index width = call.width();
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  auto* prepared =
      static_cast<T*>(arena.take(static_cast<std::size_t>(call.vector_values()) * sizeof(T)));
  const bool ragged = call.is_ragged();
  const Scratch scratch(arena, plan, ragged ? plan.device.units : call.batch, call.hidden,
                        sizeof(T));
  std::optional<Sequences> sequences;
  if (ragged) sequences.emplace(call, arena);
  auto* kept = static_cast<T*>(call.preactivations);
  const bool tiled = plan.strategy == dispatch::Strategy::fused_sequential && !ragged;
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
  const auto& kernels = table.cells[static_cast<int>(call.cell)][call.variant];
  const auto kernel = kernels.forward;
  const T* vectors = vectors_of(call, kernels, prepared);
  const Matrix<T> weight{static_cast<const T*>(call.weight.data), call.weight.strides[0], true};
  const TensorView states =
      dense(call.states, call.steps, call.batch, call.hidden, call.batch_major);
  // What the kernel is called with for a tile, whose pre-activations lie in `gates`.
  const auto args_of = [&](const Tile& tile, T* gates) {
    const Tile here{0, tile.steps, 0, tile.lines};
    const TensorView tokens = dense(gates, tile.steps, tile.lines, width, call.batch_major);
    return forward_args(call, as_const(walked<T>(tokens, here, call.reverse)), bias, vectors,
                        as_const(walked<T>(call.highway(), tile, call.reverse)),
                        walked<T>(call.y, tile, call.reverse),
                        walked<T>(states, tile, call.reverse), walked(call, tile, call.reverse));
  };
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
    if (!ragged) {
      table.load_carry(schedule, static_cast<const T*>(call.h0.data), call.h0.strides[0]);
    }
    if (plan.in_turn) team.barrier();
    schedule.team = crew;
    for (Index i = first_tile; i < tiles.count(); i += stride) {
      const Tile tile = tiles[i];
      T* gates =
          kept ? kept + first_token(call, tile) * width : scratch_tiles + first_tile * tile_values;
      const auto project = [&](const T* x, Index spacing, Index first, Index count) {
        gemm<T>(crew, split, count, width, call.input, {x, spacing}, weight, gates + first * width,
                width, false);
      };
      if (!call.projected) for_runs<T>(call, tile, call.x, project);
      crew.barrier();
      if (ragged) break;  // it has one tile
      schedule.lines = tile.lines;
      schedule.steps = tile.steps;
      schedule.first_line = tile.first_line;
      if (plan.in_turn) turns.wait(i);
      kernel(schedule, args_of(tile, gates));
      if (plan.in_turn) turns.call(i);
      crew.barrier();
    }
    if (ragged) {
      const auto args = args_of({0, call.steps, 0, call.batch}, kept ? kept : scratch_tiles);
      return walk_stretches(team, schedule, RaggedWalk<T>{call, *sequences}, kernel, args);
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
  const bool adds_skip = call.carries_input();
  auto* bias = static_cast<T*>(arena.take(static_cast<std::size_t>(width) * sizeof(T)));
  const bool ragged = call.is_ragged();
  const Scratch scratch(arena, plan, ragged ? plan.device.units : call.batch, call.hidden,
                        sizeof(T));
  std::optional<Sequences> sequences;
  if (ragged) sequences.emplace(call, arena);
  const auto take = [&](Index count) {
    return static_cast<T*>(arena.take(static_cast<std::size_t>(count) * sizeof(T)));
  };
  auto* dgates = static_cast<T*>(call.dprojected.data);
  if (call.dprojected.rank == 0) dgates = take(tokens * width);
  T* dskip = adds_skip ? take(tokens * call.hidden) : nullptr;
  const Index vector_values = call.vector_values();
  T* prepared = take(vector_values);
  T* dvectors = vector_values > 0 ? take(tokens * vector_values) : nullptr;
  if (arena.counting()) return;
  spread_bias(call, bias);

  const auto& table = kernels_of<T>();
  const auto& kernels = table.cells[static_cast<int>(call.cell)][call.variant];
  const auto kernel = kernels.backward;
  const T* vectors = vectors_of(call, kernels, prepared);
  const Matrix<T> weight{static_cast<const T*>(call.weight.data), call.weight.strides[0]};
  const Tile all{0, call.steps, 0, call.batch};

  run_team(threads_for(plan, call), [&](const Team& team) {
    CpuSchedule schedule = schedule_of(team, plan, scratch);
    schedule.lines = call.batch;
    schedule.hidden = call.hidden;
    schedule.steps = call.steps;
    const auto rows = [&](T* values, Index columns) {
      return dense(values, call.steps, call.batch, columns, call.batch_major);
    };
    const auto args =
        backward_args(call, bias, vectors, dgates, dvectors, rows(dskip, call.hidden));
    if (ragged) {
      walk_stretches(team, schedule, RaggedWalk<T>{call, *sequences}, kernel, args);
      clear_padding<T>(team, rows(dgates, width), call.ragged.lengths);
      if (adds_skip) clear_padding<T>(team, rows(dskip, call.hidden), call.ragged.lengths);
      if (dvectors) clear_padding<T>(team, rows(dvectors, vector_values), call.ragged.lengths);
      team.barrier();
    } else {
      table.load_carry(schedule, static_cast<const T*>(call.dhn.data), call.dhn.strides[0]);
      team.barrier();
      if (tokens > 0) kernel(schedule, args);
      team.barrier();
      table.store_carry(schedule, static_cast<T*>(call.dh0.data), call.dh0.strides[0]);
    }

    const auto add_skip = [&](T* dx, Index spacing, Index first, Index count, bool adds) {
      const Range mine = team.share(count);
      for (Index i = mine.begin; i < mine.end; ++i) {
        const T* from = dskip + (first + i) * call.hidden;
        T* to = dx + i * spacing;
        for (Index j = 0; j < call.hidden; ++j) to[j] = adds ? to[j] + from[j] : from[j];
      }
    };
    if (call.dx) {
      for_runs<T>(call, all, call.dx, [&](T* dx, Index spacing, Index first, Index count) {
        gemm<T>(team, SplitBy::rows, count, call.input, width, {dgates + first * width, width},
                weight, dx, spacing, call.accumulate_dx);
        team.barrier();
        if (adds_skip && !call.dskip) add_skip(dx, spacing, first, count, true);
      });
    }
    if (adds_skip && call.dskip) {
      for_runs<T>(call, all, call.dskip, [&](T* dx, Index spacing, Index first, Index count) {
        add_skip(dx, spacing, first, count, call.accumulate_dskip);
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
    if (call.dvectors) {
      auto* sums = static_cast<T*>(call.dvectors.data);
      table.column_sums(team, dvectors, tokens, vector_values, vector_values, sums);
      if (kernels.finish_vectors) {
        team.barrier();
        const auto* given = static_cast<const T*>(call.vectors.data);
        if (team.rank == 0) kernels.finish_vectors(given, vector_values, sums);
      }
    }
  });
}

}  // namespace

void cpu_forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? forward<double> : forward<float>)(plan, call, workspace);
}
void cpu_backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) {
  (plan.problem.compute_bytes == 8 ? backward<double> : backward<float>)(plan, call, workspace);
}

}  // namespace scanrnn
