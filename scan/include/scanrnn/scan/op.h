// SPDX-License-Identifier: Apache-2.0
// The scan operators: the affine maps x -> a x + b, held linearly or by logarithms.
//
// An Op says what a recurrence is made of; the engine asks for nothing else:
//   Step     what a Source gives for one (row, t)
//   Local    the composition of some steps inside one thread
//   Element  a composition that crosses threads, warps, blocks
//   State    what is walked along time
//   then(Local, Step) -> Local           append one step, kLocalSteps times at most
//   join(Local f, Local g) -> Local      "first f, then g", inside one thread
//   alone(Step) -> Local                 a step by itself
//   append(Local f, Local g) -> Local    join, where both together are kLocalSteps at most
//   promote(Local) -> Element
//   combine(Element f, Element g)        "first f, then g": associative, not commutative
//   combine_all<n>(get) -> Element       get(0), then get(1) ... get(n - 1); on CUDA's device scan
//   linear(Element) -> Affine            the map itself, or what apply() takes in its place
//   apply(Local | Element, State) -> State
//   apply_step(Step, State) -> State
//   advance(Step, State) -> State        the same, where at most kLocalSteps follow an apply
// combine and then take identities: local_identity(), identity(). One that knows cuts has besides
//   Uncut                                the Op of the same Local for steps between cuts
//   settle(Local) -> Local               of such steps: what only underflows is no cut
// One that appends steps to something else than a Local has besides (RunOf)
//   Run, no_steps() -> Run, then(Run, Step) -> Run, whole(Run) -> Local
//
// One whose Local is empty composes nothing: then() gives nothing, and steps are only walked.
//
// AffineOp and LogAffineOp are for cells, whose decays are between 0 and 1; AnyAffineOp (any_op.h)
// and AnyLogAffineOp are for decays and states of any size, AnyPlainOp where z of a step is 1 - a.
// ResetOp and LogResetOp, AnyResetOp and AnyLogResetOp are the same for sequences that are cut: a
// decay that is exactly zero forgets whatever came before, infinities and NaN too. A product of
// decays that only underflows is no zero to them.
#pragma once

#include <type_traits>

#include "scanrnn/scan/any_op.h"
#include "scanrnn/scan/linear_op.h"
#include "scanrnn/scan/log_op.h"

namespace scanrnn::scan {

// What steps are appended to, where it is no Local.
template <class Op, class = void>
struct RunOf {
  using Local = typename Op::Local;
  SCANRNN_HD static Local none() { return Op::local_identity(); }
  SCANRNN_HD static const Local& whole(const Local& f) { return f; }
};
template <class Op>
struct RunOf<Op, std::void_t<typename Op::Run>> {
  using Run = typename Op::Run;
  SCANRNN_HD static Run none() { return Op::no_steps(); }
  SCANRNN_HD static typename Op::Local whole(const Run& f) { return Op::whole(f); }
};

}  // namespace scanrnn::scan
