// SPDX-License-Identifier: Apache-2.0
// Timed graphs: what they are is their processor's to say.
#include "scanrnn/timed_graph.h"

#include <utility>

#include "api/check.h"
#include "stack/runtime.h"

namespace scanrnn {

TimedGraph::TimedGraph(Context& context, std::function<void()> work) {
  require(work != nullptr, "work: expected a function, got an empty one");
  impl_ = context.impl().runtime->timed_graph(place_of(context), std::move(work));
}

TimedGraph::~TimedGraph() = default;
TimedGraph::TimedGraph(TimedGraph&&) noexcept = default;
TimedGraph& TimedGraph::operator=(TimedGraph&&) noexcept = default;

void TimedGraph::run() { impl_->run(); }
double TimedGraph::milliseconds() { return impl_->milliseconds(); }

}  // namespace scanrnn
