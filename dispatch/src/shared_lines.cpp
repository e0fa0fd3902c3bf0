// SPDX-License-Identifier: Apache-2.0
// Whether sequences of a ragged batch share the lines of a persistent kernel's walk, and how many
// lines those are: only a device knows the lengths.
#include <algorithm>

#include "scanrnn/dispatch/persistent.h"
#include "scanrnn/dispatch/ragged.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::dispatch {

// Lengths uniform in [1,T] make 35 lines of 64 sequences on average, and more than 40 in one batch
// of 12.
Problem with_shared_lines(const Problem& problem) {
  Problem out = problem;
  out.layout = Batch::rectangular;
  const bool shares = problem.layout != Batch::rectangular && !by_lines(problem) &&
                      problem.batch <= kMostSharing && problem.batch > 0;
  if (!shares) return out;
  const std::int64_t lines = knows_lengths(problem)
                                 ? ceiling(9 * problem.steps, 8 * problem.longest)
                                 : ceiling(5 * problem.batch, 8);
  out.batch = std::clamp<std::int64_t>(lines, 1, problem.batch);
  return out;
}

std::int64_t walked_lines(const Plan& plan, const PersistentShape& shape, bool backward) {
  const Problem& p = plan.problem;
  if (shape.tile < 0 || shape.in_block || shape.layers > 1) return p.batch;
  const Problem shared = with_shared_lines(p);
  Problem each = p;
  each.layout = Batch::rectangular;
  const bool pays = kSharedClocks * clocks(shared, plan.device, shape, backward) <
                    clocks(each, plan.device, shape, backward);
  return pays ? shared.batch : p.batch;
}

bool shares_lines(const Plan& plan, bool backward) {
  const PersistentShape& shape = backward ? plan.persistent_vjp : plan.persistent;
  return is_persistent(plan, backward) && walked_lines(plan, shape, backward) < plan.problem.batch;
}

void recut(Plan& plan) {
  const Problem& p = plan.problem;
  const bool shared = plan.at_once > 1 || plan.at_once_vjp > 1;
  if (plan.persistent.tile < 0 || shared || !knows_lengths(p)) return;
  plan.persistent = persistent_shape(p, plan.device, false);
  if (plan.persistent_vjp.tile >= 0) plan.persistent_vjp = persistent_shape(p, plan.device, true);
}

}  // namespace scanrnn::dispatch
