// SPDX-License-Identifier: Apache-2.0
// A dense layer's walk over time as launches that follow one another, each from where the last one
// ended: of one step, or of as many as a persistent kernel has room for.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "cuda/kernels/large.h"
#include "cuda/ragged.cuh"
#include "cuda/run.cuh"
#include "scanrnn/cells/activation.h"
#include "scanrnn/dispatch/ragged.h"

namespace scanrnn {

// f(a dense cell as a constant, the list of its variants).
template <class F>
decltype(auto) with_dense_cell(Cell cell, F&& f) {
  switch (cell) {
#define SCANRNN_DENSE_CELL(name, option, list, ...) \
  case Cell::name:                                  \
    return f(std::integral_constant<Cell, Cell::name>(), cell::list());
#include "scanrnn/cells.def"
    default:
      break;
  }
  throw value_error("cell: there is no such cell");
}
template <Cell cell, class T, std::size_t... kVariant>
const CudaDenseKernels<T>& chosen_variant(int variant, std::index_sequence<kVariant...>) {
  using Variant = const CudaDenseKernels<T>& (*)();
  static constexpr Variant of[] = {cuda_dense_variant<cell, kVariant, T>...};
  return of[variant]();
}
template <class... Options>
std::index_sequence_for<Options...> indices_of(cell::Variants<Options...>) {
  return {};
}
template <class T>
const CudaDenseKernels<T>& cuda_dense_kernels(Cell cell, int variant) {
  return with_dense_cell(cell, [&](auto one, auto list) -> const CudaDenseKernels<T>& {
    return chosen_variant<decltype(one)::value, T>(variant, indices_of(list));
  });
}
// And by warp groups, in 16 bits.
template <class T>
const CudaLargeTable<T>& cuda_large_kernels(Cell cell) {
  return with_dense_cell(cell, [](auto one, auto) -> const CudaLargeTable<T>& {
    return cuda_large_table<decltype(one)::value, T>();
  });
}

// Copies a [B,H] tensor, or `fresh` to all where it is absent.
template <class From, class To>
__global__ void convert(const From* from, Index from_line, To* to, Index to_line, Index batch,
                        Index hidden, float fresh) {
  for (Index i = pointwise::first_item(); i < batch * hidden; i += pointwise::item_stride()) {
    const From* line = from + i / hidden * from_line;
    to[i / hidden * to_line + i % hidden] = from ? static_cast<To>(line[i % hidden]) : To(fresh);
  }
}

template <class T>
struct CudaWalk : CudaRun<T> {
  using Run = CudaRun<T>;
  using V = typename Run::V;
  using Args = CudaDenseArgs<T, V>;
  using Run::call;
  using Run::plan;
  using Run::stream;
  // What launches carry from one to the next: h, [B,H], and of each line what is behind it.
  V *h_carry = nullptr, *more_carry = nullptr;

  Index hidden() const { return call.hidden; }
  // Lines that are walked: of a packed batch the sequences.
  Index lines() const { return call.is_ragged() ? call.sequences : call.batch; }
  void take_carries() {
    h_carry = this->template take<V>(lines() * hidden());
    if (call.more_states() > 0) more_carry = this->template take<V>(lines() * more_width());
  }
  Index more_width() const { return call.more_states() * hidden(); }
  // Tensor i of a state, h being 0.
  struct Carry {
    V* values;
    Index line;
  };
  Carry carry(int i) const {
    if (i == 0) return {h_carry, hidden()};
    return {more_carry + (i - 1) * hidden(), more_width()};
  }
  static const TensorView& tensor(int i, const TensorView& h, const MoreStates& more) {
    return i == 0 ? h : more[static_cast<std::size_t>(i - 1)];
  }
  double fresh(int i, bool backward) const {
    return backward ? 0 : info(call.cell).fresh[static_cast<std::size_t>(i)];
  }

  template <class From, class To>
  void copy(const From* from, Index from_line, To* to, Index to_line, Index columns,
            double fresh = 0) {
    convert<<<pointwise::blocks_for(call.batch * columns), pointwise::kThreads, 0, stream>>>(
        from, from_line, to, to_line, call.batch, columns, static_cast<float>(fresh));
    SCANRNN_CUDA(cudaGetLastError());
  }
  // A walk of no steps: the state passes through.
  void copy_states(const TensorView& h, const MoreStates& more, const TensorView& h_to,
                   const MoreStates& more_to, bool backward) {
    for (int i = 0; i <= call.more_states(); ++i) {
      const TensorView &from = tensor(i, h, more), &to = tensor(i, h_to, more_to);
      if (!to) continue;
      copy(this->data(from), from.strides[0], static_cast<T*>(to.data), to.strides[0], hidden(),
           fresh(i, backward));
    }
  }
  WalkEnd<const T, V> from(const TensorView& state) const {
    return {nullptr, this->data(state), state.strides[0]};
  }
  void end_at(Args& args, const TensorView& h, const MoreStates& more) const {
    for (int i = 0; i <= call.more_states(); ++i) {
      const TensorView& to = tensor(i, h, more);
      args.to[i] = {nullptr, static_cast<T*>(to.data), to.strides[0]};
    }
  }

  // Whether a pass walks by a table of lines. Where one kernel walks a padded batch of which all
  // steps are there, and resets are all that it is told, that is a rectangle. While memory is
  // counted nothing is told, so that none may depend on this.
  bool has_lines(bool backward) const {
    return call.is_ragged() && !ragged::is_rectangle(plan, call.ragged, backward);
  }
  // A tensor of tokens in the order of the walk; of one by lines in that of time, from which each
  // line finds its own way.
  Strided<T> in_order(const TensorView& view, bool backward) const {
    return walked<T>(view, this->all(), !has_lines(backward) && call.reverse != backward);
  }
  // What walks of both kinds begin with; states of a walk by lines go to these first, and
  // `rounded`, where a product reads h, too.
  void begin(Args& args, const TensorView& h, const MoreStates& more, bool backward, T* rounded) {
    args.batch = lines();
    args.hidden = hidden();
    args.steps = call.steps;
    args.weight = this->data(call.recurrent_weight);
    args.weight_stride = call.recurrent_weight.strides[0];
    args.head_units = hidden() / plan.problem.heads;
    args.vectors = this->data(call.vectors);
    args.masks = walked(call, this->all(), !has_lines(backward) && call.reverse != backward);
    args.against_time = call.reverse != backward;
    args.reverse = call.reverse;
    args.all_steps = call.steps;
    args.reset = resets(backward);
    if (!has_lines(backward)) {
      for (int i = 0; i <= call.more_states(); ++i) args.from[i] = from(tensor(i, h, more));
      return;
    }
    args.lines = call.tables.lines;
    for (int i = 0; i <= call.more_states(); ++i) {
      const TensorView& state = tensor(i, h, more);
      ragged::to_lines<<<ragged::blocks_for_rows(lines()), pointwise::kThreads, 0, stream>>>(
          args.lines, lines(), Strided<const T>{this->data(state), state.strides[0], 0},
          carry(i).values, carry(i).line, i == 0 ? rounded : nullptr, hidden(),
          static_cast<V>(fresh(i, backward)));
      SCANRNN_CUDA(cudaGetLastError());
    }
  }
  // The flag of each step, in the order of the walk, that says that no state comes into it: in a
  // layer that goes against time that of the step behind it.
  Strided<const std::uint8_t> resets(bool backward) const {
    const TensorView& reset = call.ragged.reset;
    const auto* const data = static_cast<const std::uint8_t*>(reset.data);
    const Index line = reset.strides[1], step = reset.strides[0];
    if (!data || has_lines(backward)) return {data, line, step};
    const auto* const own = data + (call.reverse ? step : 0);
    if (call.reverse == backward) return {own, line, step};
    return {own + (call.steps - 1) * step, line, -step};
  }
  // Hands the lines' states back to the sequences.
  void end_ragged(const TensorView& h, const MoreStates& more) {
    for (int i = 0; i <= call.more_states(); ++i) {
      const TensorView& to = tensor(i, h, more);
      if (!to) continue;
      ragged::from_lines<<<ragged::blocks_for_rows(lines()), pointwise::kThreads, 0, stream>>>(
          call.tables.lines, lines(), carry(i).values, carry(i).line,
          Strided<T>{static_cast<T*>(to.data), to.strides[0], 0}, hidden());
      SCANRNN_CUDA(cudaGetLastError());
    }
  }

  // Steps that lines from this one on have at most: those of a packed batch are told on the device,
  // but it and those before it, which are as long, have all of the tokens at most.
  Index steps_from(Index line, bool backward) const {
    if (!has_lines(backward)) return call.steps;
    const bool packed = call.layout == dispatch::Batch::packed;
    const Index longest = packed ? plan.problem.longest : call.steps;
    const bool shares = dispatch::shares_lines(plan, backward);
    const Index line_steps = shares ? longest + longest / 4 : longest;
    const Index most = call.steps * (packed ? 1 : call.batch) / (line + 1);
    return longest > 0 ? std::min(most, line_steps) : most;
  }

  // Walks lines and steps of the call's part in launches of so many each, every one from where the
  // last ended.
  template <class Launch>
  void walk(const Args& args, Index lines, Index steps, bool backward, Launch&& launch) {
    for (Index line = 0; line < args.batch; line += lines) {
      const bool is_ragged = args.lines;
      const Index most = steps_from(line, backward);
      const Index begin = backward ? call.steps - call.end() : call.part_begin;
      const Index end = is_ragged ? most : backward ? call.steps - call.part_begin : call.end();
      for (Index step = begin; step < end; step += steps) {
        Args part = args;
        part.batch = std::min(args.batch - line, lines);
        part.steps = std::min(end - step, steps);
        const bool first = step == 0, last = step + part.steps == most;
        part.first_step = step;
        if (is_ragged) part.lines += line;
        for (int i = 0; i <= call.more_states(); ++i) {
          V* const values = carry(i).values + line * carry(i).line;
          part.from[i] = args.from[i].at_line(line);
          part.to[i] = args.to[i].at_line(line);
          if (!first || is_ragged) part.from[i] = {values, nullptr, carry(i).line};
          if (!last || is_ragged) part.to[i] = {values, nullptr, carry(i).line};
        }
        const auto move = [&](auto& s) {
          if (s.data && !is_ragged) s.data += line * s.line + step * s.step;
        };
        move(part.sums), move(part.kept), move(part.y), move(part.cells), move(part.x);
        move(part.before), move(part.dy), move(part.dvectors), move(part.reset);
        if (!is_ragged) part.masks = part.masks.past(line, step);
        // The first step in time is the walk's first one, or backward its last.
        if (is_ragged) {
          part.initial = args.initial;
        } else if (backward ? last : first) {
          part.initial = args.initial.at_line(line);
        } else {
          part.initial = {part.before.at(backward ? part.steps - 1 : 0), part.before.line, 0};
        }
        launch(part);
      }
    }
  }
  template <class Kernel>
  void walk_persistent(const Args& args, const dispatch::PersistentShape& shape, bool backward,
                       void* exchange, Kernel&& kernel) {
    const auto bytes = dispatch::exchange_bytes(plan.problem, shape, backward);
    const Index slots = std::min(plan.problem.steps, shape.steps);  // that there is memory for
    const Index steps = shape.in_block ? std::max<Index>(args.steps, 1) : slots;
    walk(args, shape.lines, steps, backward, [&](const Args& part) {
      dispatch::PersistentShape own = shape;
      own.groups = static_cast<int>(std::min<Index>(shape.groups, part.batch));
      for (Index head = 0; head < plan.problem.heads; head += shape.heads) {
        Args heads = part;
        heads.first_head = head;
        own.heads = static_cast<int>(std::min<Index>(shape.heads, plan.problem.heads - head));
        heads.head_lines = own.heads * part.batch;
        if (bytes > 0) clear_exchange(heads, shape, exchange, bytes);
        SCANRNN_CUDA(kernel(heads, own, exchange, stream));
      }
    });
  }
  // No word of a launch has come yet: all that any launch of the shape may have.
  void clear_exchange(const Args& part, const dispatch::PersistentShape& shape, void* exchange,
                      Index bytes) {
    if (!part.lines) {
      SCANRNN_CUDA(cudaMemsetAsync(exchange, 0xff, static_cast<std::size_t>(bytes), stream));
      return;
    }
    const Index slots = std::min(plan.problem.steps, shape.steps) + 1;
    ragged::clear_slots<<<static_cast<unsigned>(2 * plan.device.units), pointwise::kThreads, 0,
                          stream>>>(part.lines, part.first_step, static_cast<uint4*>(exchange),
                                    bytes / slots / static_cast<Index>(sizeof(uint4)), slots);
    SCANRNN_CUDA(cudaGetLastError());
  }
};

}  // namespace scanrnn
