// SPDX-License-Identifier: Apache-2.0
// One layer in one direction on the CPU: project a tile of tokens, walk it while it is in the
// cache.
#include "cpu/linear.h"

#include <algorithm>
#include <optional>

#include "cpu/gemm.h"
#include "cpu/linear_gradients.h"
#include "cpu/ragged.h"
#include "cpu/schedule.h"
#include "cpu/team.h"
#include "cpu/wait.h"
#include "recurrence/linear_layer.h"

namespace scanrnn {
namespace {

using scan::Range;
using scan::Team;

// A layer call cut into tiles, in the order in which they are walked forward: pieces of time or,
// where the tokens of a sequence are adjacent, whole sequences or pieces of them. There threads
// take sequences of their own, apart from one another, if these can be dealt out evenly. Else a
// tile has as many sequences as keep busy the threads that share it; pieces of several are no tile
// where pre-activations are kept, which lie as the tokens do.
class Tiles {
 public:
  // `shared`: by all threads, unless they are apart; else tiles are taken in turn.
  Tiles(const LayerCall& call, Index tile_steps, Index threads, bool shared) : pass_(call) {
    if (call.tokens() == 0) return;
    const Index tokens = tile_steps * call.batch;
    lines_ = call.batch;
    steps_ = std::min(call.steps, tile_steps);
    if (call.batch_major && !deal(tokens, threads)) {
      constexpr Index kVectors = 4, kLanes = 16;  // that keep a thread busy; of a vector
      const Index vectors = dispatch::ceiling(call.hidden, kLanes);
      const Index busy = shared && threads > 1 ? dispatch::ceiling(kVectors * threads, vectors) : 1;
      lines_ = std::min(std::max(tokens / call.steps, busy), call.batch);
      const bool whole = lines_ * call.steps <= 2 * tokens || (lines_ > 1 && call.preactivations);
      steps_ = whole ? call.steps : std::max<Index>(1, tokens / lines_);
    }
    pieces_ = dispatch::ceiling(call.steps, steps_);
    groups_ = dispatch::ceiling(call.batch, lines_);
  }
  bool apart() const { return apart_; }
  Index count() const { return pieces_ * groups_; }
  Index most_tokens() const { return steps_ * lines_; }
  // Those that a thread goes through: all, shared or in turn, or its own.
  Range of(const Team& team) const {
    const Range groups = apart_ ? team.share(groups_) : Range{0, groups_};
    return {groups.begin * pieces_, groups.end * pieces_};
  }
  Tile operator[](Index i) const {
    const Index step = i % pieces_ * steps_, line = i / pieces_ * lines_;
    Tile tile{step, std::min(steps_, pass_.steps - step), line,
              std::min(lines_, pass_.batch - line)};
    if (pass_.reverse) tile.first_step = pass_.steps - step - tile.steps;
    return tile;
  }

 private:
  // Whether each thread can have about as many sequences as any other, in tiles that are worth a
  // product of their own, for which every thread packs the weights.
  bool deal(Index tokens, Index threads) {
    const Index own = std::max(tokens / threads, dispatch::kCpuTurnTokens);
    const Index most = std::max<Index>(1, own / pass_.steps);
    const Index lines = std::min(most, dispatch::ceiling(pass_.batch, threads));
    const Index of_thread =
        lines * dispatch::ceiling(dispatch::ceiling(pass_.batch, lines), threads);
    const Index steps = std::min(pass_.steps, own);
    apart_ = threads > 1 && 10 * pass_.batch >= 9 * threads * of_thread &&
             2 * lines * steps >= dispatch::kCpuTurnTokens;
    if (apart_) {
      lines_ = lines;
      steps_ = steps;
    }
    return apart_;
  }

  const LayerCall& pass_;
  bool apart_ = false;
  Index steps_ = 0, lines_ = 0, pieces_ = 0, groups_ = 0;
};

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

// What both directions work with: the parameters as kernels read them, and the memory to walk in.
template <class T>
struct Walk {
  const dispatch::Plan& plan;
  const LayerCall& call;
  T* bias;      // of every row block
  T* prepared;  // the vectors, where kernels read others than the parameter
  Scratch scratch;
  std::optional<Sequences> sequences;  // of a ragged batch

  Walk(const dispatch::Plan& of, const LayerCall& c, Arena& arena)
      : plan(of),
        call(c),
        bias(take<T>(arena, c.width())),
        prepared(take<T>(arena, c.vector_values())),
        scratch(arena, of, c.is_ragged() ? of.device.units : c.batch, c.hidden, sizeof(T)) {
    if (call.is_ragged()) sequences.emplace(call, arena);
  }

  const CpuCellKernels<T>& kernels() const {
    return kernels_of<T>().cells[static_cast<int>(call.cell)][call.variant];
  }
  void prepare() const {
    std::fill_n(bias, call.width(), T(0));
    if (call.bias) {
      const auto [first, last] = call.biased();
      std::copy_n(static_cast<const T*>(call.bias.data), (last - first) * call.hidden,
                  bias + first * call.hidden);
    }
    if (has_prepared()) kernels().prepare_vectors(given(), call.vector_values(), prepared);
  }
  const T* given() const { return static_cast<const T*>(call.vectors.data); }
  bool has_prepared() const { return kernels().prepare_vectors && given(); }
  const T* vectors() const { return has_prepared() ? prepared : given(); }
  Index threads() const {
    return team_size(plan, call.tokens() * call.width() * (call.input + dispatch::kCpuWalkCost));
  }
  // The schedule of the whole call.
  CpuSchedule schedule(const Team& team) const {
    CpuSchedule out = schedule_of(team, plan, scratch);
    out.lines = call.batch;
    out.hidden = call.hidden;
    out.steps = call.steps;
    return out;
  }
};

// Forward: the team shares each tile, or every thread has tiles of its own and walks them at once
// or, where others go before, in its turn.
template <class T>
struct ForwardTiles {
  const Walk<T>& walk;
  const Tiles tiles;
  const bool in_turn = walk.plan.in_turn && !tiles.apart();
  const bool alone = in_turn || tiles.apart();  // with a tile
  T *kept, *scratch;  // pre-activations: of the whole call, or of a tile for each crew
  const LayerCall& call = walk.call;
  const TensorView states =
      dense(call.states, call.steps, call.batch, call.hidden, call.batch_major);
  Turns turns = {};

  ForwardTiles(const Walk<T>& of, Arena& arena)
      : walk(of),
        tiles(of.call, is_tiled() ? of.plan.tile_steps : of.call.steps,
              is_tiled() ? of.threads() : 1, !of.plan.in_turn),
        kept(static_cast<T*>(of.call.preactivations)),
        scratch(kept ? nullptr : take<T>(arena, crews() * tile_values())) {}

  bool is_tiled() const {
    return walk.plan.strategy == dispatch::Strategy::fused_sequential && !walk.call.is_ragged();
  }
  Index crews() const { return alone ? walk.plan.device.units : 1; }
  Index tile_values() const { return tiles.most_tokens() * walk.call.width(); }
  T* preactivations(const Tile& tile, Index crew) const {
    return kept ? kept + first_token(call, tile) * call.width() : scratch + crew * tile_values();
  }

  // What the kernel is called with for a tile, whose pre-activations lie in `gates`.
  ForwardKernelArgs<T> args(const Tile& tile, T* gates) const {
    const Tile here{0, tile.steps, 0, tile.lines};
    const TensorView tokens = dense(gates, tile.steps, tile.lines, call.width(), call.batch_major);
    return forward_args(call, as_const(walked<T>(tokens, here, call.reverse)), walk.bias,
                        walk.vectors(), as_const(walked<T>(call.highway(), tile, call.reverse)),
                        walked<T>(call.y, tile, call.reverse),
                        walked<T>(states, tile, call.reverse), walked(call, tile, call.reverse));
  }
  void project(const Team& crew, const Tile& tile, T* gates) const {
    const Index width = call.width();
    const Matrix<T> weight{static_cast<const T*>(call.weight.data), call.weight.strides[0], true};
    for_runs<T>(call, tile, call.x, [&](const T* x, Index spacing, Index first, Index count) {
      gemm<T>(crew, count, width, call.input, {x, spacing}, weight, gates + first * width, width,
              false);
    });
  }

  void run(const Team& team) {
    const auto& table = kernels_of<T>();
    CpuSchedule schedule = walk.schedule(team);
    table.load_carry(schedule, static_cast<const T*>(call.h0.data), call.h0.strides[0]);
    if (alone) team.barrier();
    const Team crew = alone ? Team{} : team;
    const Range mine = tiles.of(team);
    schedule.team = crew;
    for (Index i = mine.begin + (in_turn ? team.rank : 0); i < mine.end;
         i += in_turn ? team.size : 1) {
      const Tile tile = tiles[i];
      T* gates = preactivations(tile, alone ? team.rank : 0);
      if (!call.projected) project(crew, tile, gates);
      crew.barrier();
      schedule.lines = tile.lines;
      schedule.steps = tile.steps;
      schedule.first_line = tile.first_line;
      if (in_turn) turns.wait(i);
      walk.kernels().forward(schedule, args(tile, gates));
      if (in_turn) turns.call(i);
      crew.barrier();
    }
    if (alone) team.barrier();
    schedule.team = team;
    schedule.lines = call.batch;
    table.store_carry(schedule, static_cast<T*>(call.hn.data), call.hn.strides[0]);
  }
  // A ragged batch has one tile, if it has tokens.
  void run_ragged(const Team& team) const {
    const Tile all{0, call.steps, 0, call.batch};
    T* gates = preactivations(all, 0);
    if (tiles.count() > 0 && !call.projected) project(team, all, gates);
    team.barrier();
    walk_stretches(team, walk.schedule(team), RaggedWalk<T>{call, *walk.sequences},
                   walk.kernels().forward, args(all, gates));
  }
};

template <class T>
void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const Walk<T> walk(plan, call, arena);
  ForwardTiles<T> tiles(walk, arena);
  if (arena.counting()) return;
  walk.prepare();
  run_team(walk.threads(), [&](const Team& team) {
    if (call.is_ragged()) {
      tiles.run_ragged(team);
    } else {
      tiles.run(team);
    }
  });
}

// The walk against time, which writes the cotangents of the pre-activations.
template <class T>
void walk_back(const Team& team, const Walk<T>& walk, const LinearGradients<T>& d) {
  const LayerCall& call = walk.call;
  const auto& table = kernels_of<T>();
  const auto kernel = walk.kernels().backward;
  CpuSchedule schedule = walk.schedule(team);
  const auto rows = [&](T* values, Index columns) {
    return dense(values, call.steps, call.batch, columns, call.batch_major);
  };
  const auto args =
      backward_args(call, walk.bias, walk.vectors(), d.gates, d.vectors, rows(d.skip, call.hidden));
  if (call.is_ragged()) {
    walk_stretches(team, schedule, RaggedWalk<T>{call, *walk.sequences}, kernel, args);
    const TensorView& lengths = call.ragged.lengths;
    clear_padding<T>(team, rows(d.gates, call.width()), lengths);
    if (d.skip) clear_padding<T>(team, rows(d.skip, call.hidden), lengths);
    if (d.vectors) clear_padding<T>(team, rows(d.vectors, call.vector_values()), lengths);
    team.barrier();
    return;
  }
  table.load_carry(schedule, static_cast<const T*>(call.dhn.data), call.dhn.strides[0]);
  team.barrier();
  if (call.tokens() > 0) kernel(schedule, args);
  team.barrier();
  table.store_carry(schedule, static_cast<T*>(call.dh0.data), call.dh0.strides[0]);
}

template <class T>
void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& arena) {
  const Walk<T> walk(plan, call, arena);
  const LinearGradients<T> d(call, arena);
  if (arena.counting()) return;
  walk.prepare();
  run_team(walk.threads(), [&](const Team& team) {
    walk_back(team, walk, d);
    if (call.dx) d.of_input(team);
    if (d.skip && call.dskip) d.of_highway(team);
    if (call.dweight) d.of_weight(team);
    if (call.dbias) d.of_bias(team);
    if (call.dvectors) d.of_vectors(team, walk.kernels().finish_vectors);
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
