// SPDX-License-Identifier: Apache-2.0
// A ragged batch to try, and the tensors that say which steps it has.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "support/case.h"
#include "support/mirror.h"

namespace scanrnn::test {

// A batch whose sequences have these lengths, and where each of its tokens is reset.
struct RaggedCase {
  Case whole;
  std::vector<std::int64_t> lengths;
  std::vector<std::uint8_t> reset;  // [T,B], or [tokens]; empty: nowhere
  bool tells_lengths = true;        // or none, where all sequences are as long as the batch

  // Where step t of a sequence is among the tokens.
  std::size_t token(std::int64_t row, std::int64_t t) const {
    if (!whole.packed()) return static_cast<std::size_t>(t * whole.batch + row);
    const auto first = std::accumulate(lengths.begin(), lengths.begin() + row, std::int64_t{0});
    return static_cast<std::size_t>(first + t);
  }
  bool resets(std::int64_t row, std::int64_t t) const {
    return !reset.empty() && reset[token(row, t)] != 0;
  }
};

inline RaggedCase ragged_case(const LayerOptions& layer, std::vector<std::int64_t> lengths,
                              bool packed) {
  RaggedCase out;
  out.whole.layer = layer;
  out.whole.layer.input_size = 5;
  out.whole.layer.hidden_size = 9;
  fit(out.whole.layer);
  out.whole.batch = static_cast<std::int64_t>(lengths.size());
  out.whole.layout = packed ? dispatch::Batch::packed : dispatch::Batch::ragged;
  const std::int64_t sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const auto longest = std::max_element(lengths.begin(), lengths.end());
  out.whole.steps = packed ? sum : longest == lengths.end() ? 0 : *longest + 1;
  out.lengths = std::move(lengths);
  return out;
}
// Padded sequences that have all of so many steps, of which the call is not told.
inline RaggedCase without_lengths(const LayerOptions& layer, std::int64_t batch,
                                  std::int64_t steps) {
  RaggedCase out =
      ragged_case(layer, std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps), false);
  out.whole.steps = steps;
  out.tells_lengths = false;
  return out;
}
// Resets a share of the tokens.
inline void reset_some(RaggedCase& c, double share, Random& random) {
  c.reset.assign(static_cast<std::size_t>(c.whole.tokens()), 0);
  for (auto& flag : c.reset) flag = random.uniform(1, 0, 1)[0] < share;
}

// Lengths as a call is told them: the same, or where packed sequences begin and end.
inline std::vector<std::int64_t> as_told(bool packed, const std::vector<std::int64_t>& lengths) {
  if (!packed) return lengths;
  std::vector<std::int64_t> out{0};
  for (const std::int64_t length : lengths) out.push_back(out.back() + length);
  return out;
}

// The tensors that say which steps there are, on the device of a context; what is asked for lives
// as long as this.
class Arguments {
 public:
  Arguments(const RaggedCase& c, bool wide, Context& context) : wide_(wide) {
    values_ = as_told(c.whole.packed(), c.lengths);
    narrow_.assign(values_.begin(), values_.end());
    if (c.tells_lengths) {
      (c.whole.packed() ? ragged_.cu_seqlens : ragged_.lengths) = moved(context, integers());
    }
    if (c.reset.empty()) return;
    reset_ = c.reset;
    const TensorView flags =
        c.whole.packed()
            ? TensorView::of(reset_.data(), Dtype::boolean, {c.whole.steps})
            : TensorView::of(reset_.data(), Dtype::boolean, {c.whole.steps, c.whole.batch});
    ragged_.reset = moved(context, flags);
    if (!c.whole.packed() && c.whole.layer.batch_first) {
      std::swap(ragged_.reset.sizes[0], ragged_.reset.sizes[1]);
      std::swap(ragged_.reset.strides[0], ragged_.reset.strides[1]);
    }
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  const Ragged& ragged() const { return ragged_; }

 private:
  TensorView moved(Context& context, const TensorView& host) {
    there_.emplace_back(context, host);
    return there_.back().view();
  }
  TensorView integers() const {
    const auto count = static_cast<std::int64_t>(values_.size());
    return wide_ ? TensorView::of(values_.data(), Dtype::int64, {count})
                 : TensorView::of(narrow_.data(), Dtype::int32, {count});
  }
  bool wide_;
  std::vector<std::int64_t> values_;
  std::vector<std::int32_t> narrow_;
  std::vector<std::uint8_t> reset_;
  std::vector<Uploaded> there_;
  Ragged ragged_;
};

}  // namespace scanrnn::test
