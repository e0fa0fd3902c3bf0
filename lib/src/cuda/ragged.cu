// SPDX-License-Identifier: Apache-2.0
#include "cuda/ragged.cuh"

#include "cuda/line_tables.cuh"

namespace scanrnn::ragged {

namespace {

// The mark of each token, of one line after another.
__global__ void __launch_bounds__(kThreads)
    mark_tokens(const SequenceBounds all, Index lines, Strided<const std::uint8_t> reset,
                const RaggedWays ways, std::uint32_t* marks) {
  if (!ways.runs(false)) return;
  for (Index i = pointwise::first_item(); i < all.steps * lines; i += pointwise::item_stride()) {
    const Index line = i / all.steps, t = i % all.steps;
    const Index n = all.packed ? all.at(t) : line;
    const Index first = all.first(n), end = all.end(n);
    std::uint32_t out = static_cast<std::uint32_t>(n) << mark::kSequenceBit;
    const auto resets = [&](Index step) { return reset.data && *reset.at_line(line).at(step); };
    if (n >= all.count || t < first || t >= end) {
      out |= mark::kAbsent;
    } else {
      if (t == first) out |= mark::kFirst;
      if (t + 1 == end) out |= mark::kLast;
      if (resets(t)) out |= mark::kReset;
      if (t + 1 < end && resets(t + 1)) out |= mark::kResetAfter;
    }
    marks[i] = out;
  }
}

// By one block.
__global__ void __launch_bounds__(kThreads) find_longest(const SequenceBounds all, Index* longest) {
  __shared__ Index lengths[kThreads];
  Index own = 0;
  for (Index n = threadIdx.x; n < all.count; n += kThreads) own = max(own, all.length(n));
  lengths[threadIdx.x] = own;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      lengths[threadIdx.x] = max(lengths[threadIdx.x], lengths[threadIdx.x + half]);
    }
  }
  if (threadIdx.x == 0) *longest = lengths[0];
}

// `longest` is where the device will have found it.
RaggedWays ways_of(const dispatch::Plan& plan, const Ragged& told, bool backward,
                   const Index* longest) {
  const auto& p = plan.problem;
  RaggedWays out;
  const bool direct = plan.strategy == dispatch::Strategy::direct && !backward;
  if (direct || p.recurrence == dispatch::Recurrence::dense || told.reset || p.batch == 0) {
    return out;
  }
  out.most = dispatch::longest_alone(plan);
  if (out.most > 0 && p.longest == 0) {
    out.sequences = true;
    out.longest = longest;
  } else {
    out.sequences = plan.strategy != dispatch::Strategy::parallel_scan ||
                    (p.longest > 0 && p.longest <= out.most);
    out.tokens = !out.sequences;
  }
  return out;
}

// The lines of a dense cell's walk, in memory of the arena.
const RaggedLine* prepare_lines(const dispatch::Plan& plan, const Ragged& told,
                                const SequenceBounds& all, bool backward, Arena& arena,
                                cudaStream_t stream) {
  const Index count = plan.problem.batch;
  const bool shares = dispatch::shares_lines(plan, backward);
  const auto take = [&] {
    return static_cast<RaggedLine*>(
        arena.take(static_cast<std::size_t>(count) * sizeof(RaggedLine)));
  };
  RaggedLine* const sequences = take();
  RaggedLine* const lines = shares ? take() : sequences;
  if (is_rectangle(plan, told, backward)) return nullptr;  // after the memory that is counted
  if (arena.counting() || count == 0) return lines;
  order_lines<<<pointwise::blocks_for(count), kThreads, 0, stream>>>(all, sequences);
  SCANRNN_CUDA(cudaGetLastError());
  if (!shares) return lines;
  const auto& shape = backward ? plan.persistent_vjp : plan.persistent;
  share_lines<<<1, kThreads, 0, stream>>>(sequences, count, shape.lines, lines);
  SCANRNN_CUDA(cudaGetLastError());
  return lines;
}

}  // namespace

RaggedTables prepare(const dispatch::Plan& plan, const Ragged& told, bool backward, Arena& arena,
                     cudaStream_t stream) {
  const auto& p = plan.problem;
  const bool dense = p.recurrence == dispatch::Recurrence::dense;
  const bool packed = p.layout == dispatch::Batch::packed;
  const Index lines = packed ? 1 : p.batch, tokens = p.steps * lines;
  const bool marks = !dense || p.training;
  auto* of_tokens = static_cast<std::uint32_t*>(
      marks ? arena.take(static_cast<std::size_t>(tokens) * sizeof(std::uint32_t)) : nullptr);
  auto* longest = static_cast<Index*>(packed && !dense ? arena.take(sizeof(Index)) : nullptr);
  const SequenceBounds all(told, p.steps, p.batch, packed);
  const auto* of_lines = dense ? prepare_lines(plan, told, all, backward, arena, stream) : nullptr;
  if (arena.counting()) return {};
  const RaggedWays ways = ways_of(plan, told, backward, longest);
  const Strided<const std::uint8_t> reset{static_cast<const std::uint8_t*>(told.reset.data),
                                          told.reset.strides[1], told.reset.strides[0]};
  if (ways.longest) {
    find_longest<<<1, kThreads, 0, stream>>>(all, longest);
    SCANRNN_CUDA(cudaGetLastError());
  }
  if (marks && ways.tokens && tokens > 0) {
    mark_tokens<<<pointwise::blocks_for(tokens), kThreads, 0, stream>>>(all, lines, reset, ways,
                                                                        of_tokens);
    SCANRNN_CUDA(cudaGetLastError());
  }
  return {of_tokens, of_lines, ways};
}

}  // namespace scanrnn::ragged
