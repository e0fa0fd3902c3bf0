// SPDX-License-Identifier: Apache-2.0
// A layer, a size and a strategy to try; the numbers that go in and the numbers that come out. All
// numbers are doubles that the case's dtype can hold, in the order [T,B,.] whatever the layout.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "scanrnn/dispatch/stack_step.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/scanrnn.h"
#include "support/random.h"
#include "support/tensor.h"

namespace scanrnn::test {

using Values = std::vector<double>;

// A strategy, and how it splits the work: as the planner says, or as a test forces it. On CUDA a
// parallel scan splits time inside a block or over blocks, along lanes or not; layer calls of a
// stack run at the same time, one by one, or as one launch; sequences of a ragged batch share
// lines. It does not turn into a bare strategy by itself, which would forget the split.
struct Way {
  enum class Split {
    planned,
    inside_blocks,
    across_blocks,
    lanes,
    lanes_across_blocks,
    at_once,
    one_by_one,
    as_one,
    apart,  // backward by parts, but forward not
    shared_lines,
    warp_groups
  };
  static constexpr std::int64_t kPart = 5;  // steps of a chain's

  dispatch::Strategy strategy = dispatch::Strategy::automatic;
  Split split = Split::planned;

  Way() = default;
  Way(dispatch::Strategy by, Split of_work = Split::planned) : strategy(by), split(of_work) {}
  bool operator==(dispatch::Strategy other) const { return strategy == other; }
  bool operator!=(dispatch::Strategy other) const { return strategy != other; }

  // A plan for the strategy, with the work split this way.
  dispatch::Plan splits(dispatch::Plan plan) const {
    if (split == Split::planned) return plan;
    if (split == Split::as_one) {
      const bool walk = dispatch::run_as_one(plan, dispatch::kMostAtOnce);
      if (!walk && !dispatch::step_as_one(plan)) plan.at_once = plan.at_once_vjp = 1;
      for (auto* shape : {&plan.persistent, &plan.persistent_vjp}) {  // in more than one launch
        shape->steps = std::min<std::int64_t>(shape->steps, 3 * kPart);
      }
      return plan;
    }
    if (split == Split::at_once || split == Split::one_by_one) {
      plan.at_once = plan.at_once_vjp = 1;
      plan.part_steps = plan.part_steps_vjp = 0;
      const int most = split == Split::at_once ? dispatch::kMostAtOnce : 1;
      dispatch::run_at_once(plan, most, kPart);
      return plan;
    }
    if (split == Split::apart) {
      dispatch::Plan forward = plan;
      if (!dispatch::run_as_one(forward, dispatch::kMostAtOnce)) {
        dispatch::run_at_once(forward, 1, 0);
      }
      dispatch::run_at_once(plan, dispatch::kMostAtOnce, kPart);
      plan.persistent = forward.persistent;
      plan.at_once = forward.at_once;
      plan.part_steps = forward.part_steps;
      return plan;
    }
    if (split == Split::shared_lines) {
      share_lines(plan, false);
      if (plan.problem.training) share_lines(plan, true);
      return plan;
    }
    if (split == Split::warp_groups) {
      plan.at_once = plan.at_once_vjp = 1;
      by_warp_groups(plan, false);
      if (plan.problem.training) by_warp_groups(plan, true);
      return plan;
    }
    plan.along_lanes = split == Split::lanes || split == Split::lanes_across_blocks;
    plan.across_blocks = split == Split::across_blocks || split == Split::lanes_across_blocks ||
                         !dispatch::splits_inside_blocks(plan.problem);
    return plan;
  }

 private:
  // A pass by the first cut of warp groups that there is, in launches of two steps and of lines of
  // one group.
  static void by_warp_groups(dispatch::Plan& plan, bool backward) {
    for (auto shape : dispatch::persistent_shapes(plan.problem, plan.device, backward)) {
      if (!shape.large) continue;
      shape.lines /= shape.groups;
      shape.groups = 1;
      shape.steps = 2;
      (backward ? plan.persistent_vjp : plan.persistent) = shape;
      return;
    }
  }
  // A pass cut so that it has room for the lines that sequences share, but not for all of these; in
  // launches of a few steps. It is the one whose threads step the most items.
  static void share_lines(dispatch::Plan& plan, bool backward) {
    dispatch::PersistentShape& out = backward ? plan.persistent_vjp : plan.persistent;
    dispatch::DeviceLimits share = plan.device;
    share.units /= plan.at_once;
    const std::int64_t lines = (5 * plan.problem.batch + 7) / 8;
    int items = 0;
    for (auto shape : dispatch::persistent_shapes(plan.problem, share, backward)) {
      if (shape.in_block || shape.lines < lines) continue;
      const auto& tile = backward ? dispatch::kPersistentBackward[shape.tile]
                                  : dispatch::kPersistentForward[shape.tile];
      if (tile.items <= items) continue;
      items = tile.items;
      const std::int64_t most = shape.lines / shape.groups, groups = (lines + most - 1) / most;
      shape.groups = std::min(shape.groups, std::max(2, static_cast<int>(groups)));
      shape.lines = lines;
      shape.steps = std::min<std::int64_t>(shape.steps, 3 * kPart);
      out = shape;
    }
  }
};
inline std::string name(const Way& way) {
  const std::string out = dispatch::name(way.strategy);
  constexpr const char* kSplits[] = {"",
                                     "_block",
                                     "_device",
                                     "_lanes",
                                     "_lanes_device",
                                     "_at_once",
                                     "_one_by_one",
                                     "_as_one",
                                     "_apart",
                                     "_shared_lines",
                                     "_warp_groups"};
  return out + kSplits[static_cast<int>(way.split)];
}

// A cell that reads x of its own unit takes no other size of x; heads divide the units, and a
// projection has less.
inline void fit(LayerOptions& layer) {
  if (layer.hidden_size % layer.num_heads != 0) {
    layer.num_heads = static_cast<int>(layer.hidden_size);
  }
  layer.proj_size = std::min(layer.proj_size, layer.hidden_size - 1);
  if (!info(layer.cell).square) return;
  layer.input_size = layer.hidden_size;
  if (layer.bidirectional) layer.num_layers = 1;
}

struct Case {
  LayerOptions layer;
  std::int64_t steps = 0, batch = 0;
  Way way;
  int threads = 1;
  bool h0 = true;
  dispatch::Batch layout = dispatch::Batch::rectangular;  // packed: tokens of so many sequences
  std::int64_t longest = 0;  // of packed sequences, where a plan is told

  std::size_t more_states() const {  // tensors of the state behind h
    return static_cast<std::size_t>(info(layer.cell).states - 1);
  }
  // Whether the last of them, m, scales the others, and is a constant to the adjoint.
  bool is_scaled() const { return more_states() == 3; }

  int directions() const { return layer.bidirectional ? 2 : 1; }
  // The features of a row of tensor i of the state; h has those of one direction's part of y.
  std::int64_t features(std::size_t i = 0) const {
    return i == 0 && layer.proj_size > 0 ? layer.proj_size : layer.hidden_size;
  }
  std::int64_t states(std::size_t i = 0) const {  // values of that tensor
    return layer.num_layers * directions() * batch * features(i);
  }
  bool packed() const { return layout == dispatch::Batch::packed; }
  std::int64_t tokens() const { return steps * (packed() ? 1 : batch); }
  std::int64_t inputs() const { return tokens() * layer.input_size; }
  std::int64_t outputs() const { return tokens() * directions() * features(); }
  std::int64_t input_size(int l) const {
    return l == 0 ? layer.input_size : directions() * features();
  }
};

std::string text(const Case& c);

// The tensors of a state behind h: c, n, m, those that a cell has not empty.
using MoreValues = std::array<Values, kStateTensors.size() - 1>;
// The letter of each, and of h.
inline std::string letter(std::size_t tensor) { return std::string(1, "hcnm"[tensor]); }

struct Data {
  std::vector<Values> params;
  Values x, h0, dy, dhn;  // h0 is empty when the case has none
  MoreValues more0, dmoren;
};

struct Result {
  Values y, hn, dx, dh0;
  MoreValues moren, dmore0;
  std::vector<Values> dparams;
};

// How large what was added up is, where the sum itself may have cancelled: of a state the largest
// on its way, of a gradient the root of the sum of its terms' squares.
struct Terms {
  double state = 0;
  double growth = 0;       // times that a norm makes the rounding of its values larger
  double logit_error = 0;  // root mean square, of pre-activations that are kept in a 16-bit dtype
  Values dx;               // of a norm, whose cotangents cancel; else empty
  Values dh0;
  MoreValues dmore0;
  std::vector<Values> dparams;
};

// Whether a slope has a jump: that of the candidate g, of relu.
inline bool has_jump(const LayerOptions& layer) {
  const std::string& variant =
      info(layer.cell).variants.at(static_cast<std::size_t>(layer.variant));
  return variant == "g" || variant == "relu";
}

// Anything, with both sides of a jump near each other.
Data free_data(const Case& c, Random& random);

// Numbers of which finite differences are the gradients: of c and n they are not, whose scale m is
// a constant to the adjoint.
inline void forget_scale(const Case& c, Data& data) {
  if (!c.is_scaled()) return;
  for (Values& values : data.dmoren) std::fill(values.begin(), values.end(), 0.0);
}

Data random_data(const Case& c, Random& random);

}  // namespace scanrnn::test
