// SPDX-License-Identifier: Apache-2.0
// A ragged call, and what it should give: a call for each stretch of each sequence by itself.
#pragma once

#include <utility>

#include "support/cases.h"
#include "support/library.h"
#include "support/ragged_case.h"

namespace scanrnn::test {

// A call for each stretch by itself: what the ragged call should give.
Result one_by_one(const RaggedCase& c, const Data& data);

// Products on a GPU are cut otherwise for other numbers of tokens.
inline double more() { return on_cuda() ? 5 : 1; }
inline double forward_bound(const RaggedCase& c) {
  const Dtype dtype = c.whole.layer.dtype;
  return dtype == Dtype::float64 ? 1e-13 : size_of(dtype) == 2 ? 1e-2 : more() * 2e-6;
}
// How a plan splits the work, which decides the order of its sums.
inline std::pair<dispatch::Strategy, bool> way_of(const dispatch::Plan& plan) {
  return {plan.strategy, plan.across_blocks};
}

Result at_once(const RaggedCase& c, const Data& data, bool wide);

Result forward_alone(const RaggedCase& c, const Data& data);

// Forward and backward, where `in_place` with h_n in the memory of h_0 and dh_0 in that of dh_n.
Result with_states(const Case& c, const Data& data, const Ragged& ragged, bool in_place);
Result with_states(const RaggedCase& c, const Data& data, bool in_place);

// Forward and backward, of values that may be no numbers.
Result trained(const RaggedCase& c, const Data& data, std::uint64_t seed = 0);

void expect_alike(const RaggedCase& c, const Result& got, const Result& want);

// What lies in the padding should reach nothing, nor should a state that a reset keeps away.
void poison_padding(const RaggedCase& c, Data& data);

void expect_like_single_calls(RaggedCase c, Random& random);

// Beside a walk step by step, where single calls would draw otherwise, or be many.
void expect_like_steps(RaggedCase c, Random& random, std::uint64_t seed = 0);

}  // namespace scanrnn::test
