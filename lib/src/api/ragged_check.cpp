// SPDX-License-Identifier: Apache-2.0
#include "api/ragged_check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "api/check.h"
#include "recurrence/ragged.h"
#include "stack/runtime.h"

namespace scanrnn {
namespace {

using dispatch::Batch;

// Integers of one axis, at any stride.
TensorView check_integers(const char* name, const TensorView& view, std::int64_t count,
                          const char* axes, Device device) {
  if (view.rank > 0 && !is_integer(view.dtype)) {
    throw type_error(std::string(name) + ": expected int32 or int64, got " +
                     scanrnn::name(view.dtype));
  }
  return check(view, {name, {count}, axes, view.dtype, device, true, "", Layout::input});
}

// Throws unless each value is within bounds; `least` may change from one to the next.
template <class Least>
void check_values(const char* name, const TensorView& view, const Integers& values, Least&& least,
                  std::int64_t most) {
  for (std::int64_t i = 0; i < view.sizes[0]; ++i) {
    const std::int64_t value = values[i], low = least(i);
    require(value >= low && value <= most, [&] {
      return std::string(name) + ": expected integers in [" + std::to_string(low) + ", " +
             std::to_string(most) + "], got " + std::to_string(value) + " at " + std::to_string(i);
    });
  }
}

// Whether values are looked at.
bool sees_values(const Context& context) {
  if (context.options().device.kind == Device::Kind::cpu) return true;
  const char* asked = std::getenv("SCANRNN_CHECK");
  return asked && std::strcmp(asked, "1") == 0;
}

// Integers that the host can read: those of a device are copied.
class HostIntegers {
 public:
  HostIntegers(const TensorView& view, const Context& context) : view_(view) {
    const Device device = context.options().device;
    if (device.kind == Device::Kind::cpu || !view) return;
    const std::size_t size = size_of(view.dtype), count = static_cast<std::size_t>(view.sizes[0]);
    memory_.resize(count * size);
    for (std::size_t i = 0; i < count; ++i) {
      const auto offset = static_cast<std::int64_t>(i) * view.strides[0];
      find_runtime(device.kind)
          ->download(place_of(context), memory_.data() + i * size,
                     static_cast<const char*>(view.data) + offset * static_cast<std::int64_t>(size),
                     size);
    }
    view_.data = memory_.data();
    view_.strides[0] = 1;
  }
  Integers values() const { return Integers(view_); }

 private:
  TensorView view_;
  std::vector<char> memory_;
};

void check_values(const Ragged& ragged, const dispatch::Problem& p, const Context& context) {
  if (ragged.lengths) {
    const HostIntegers lengths(ragged.lengths, context);
    check_values(
        "lengths", ragged.lengths, lengths.values(), [](std::int64_t) { return std::int64_t{0}; },
        p.steps);
  }
  if (!ragged.cu_seqlens) return;
  const HostIntegers on_host(ragged.cu_seqlens, context);
  const Integers ends = on_host.values();
  check_values(
      "cu_seqlens", ragged.cu_seqlens, ends,
      [&](std::int64_t i) { return i == 0 ? 0 : ends[i - 1]; }, p.steps);
  require(ends[0] == 0 && ends[p.batch] == p.steps, [&] {
    return "cu_seqlens: expected 0 at first and the number of tokens, " + std::to_string(p.steps) +
           ", at last, got " + std::to_string(ends[0]) + " and " + std::to_string(ends[p.batch]);
  });
  for (std::int64_t i = 0; p.longest > 0 && i < p.batch; ++i) {
    const std::int64_t steps = ends[i + 1] - ends[i];
    require(steps <= p.longest, [&] {
      return "longest: expected at least " + std::to_string(steps) + ", the steps of sequence " +
             std::to_string(i) + ", got " + std::to_string(p.longest);
    });
  }
}

// What 32 bits on a device must count.
void check_countable(const char* name, const dispatch::Problem& p) {
  const std::int64_t most = std::int64_t{1} << (32 - mark::kSequenceBit);
  require(p.batch < most && p.steps <= std::numeric_limits<std::int32_t>::max(), [&] {
    return std::string(name) + ": expected less than " + std::to_string(most) +
           " sequences and at most 2^31 - 1 steps, or packed tokens, on CUDA, got " +
           std::to_string(p.batch) + " and " + std::to_string(p.steps);
  });
}

}  // namespace

Ragged check_ragged(const Ragged& ragged, const dispatch::Problem& p, bool batch_first,
                    const Context& context) {
  const Device device = context.options().device;
  const bool packed = p.layout == Batch::packed;
  require(!ragged.lengths || !ragged.cu_seqlens,
          "lengths: expected none with cu_seqlens, which tells them");
  const std::string given = ragged.lengths ? "lengths" : ragged.cu_seqlens ? "cu_seqlens" : "reset";
  require(!ragged || p.layout != Batch::rectangular, [&] {
    return given + ": expected a plan for a ragged batch, got one for a rectangular one";
  });
  require(packed == static_cast<bool>(ragged.cu_seqlens), [&] {
    return std::string("cu_seqlens: expected ") +
           (packed ? "them with a plan for a packed batch, got none"
                   : "a plan for a packed batch with them, got another");
  });
  if (!ragged) return {};
  if (device.kind == Device::Kind::cuda) check_countable(given.c_str(), p);
  Ragged out;
  out.lengths = check_integers("lengths", ragged.lengths, p.batch, "(batch,)", device);
  out.cu_seqlens =
      check_integers("cu_seqlens", ragged.cu_seqlens, p.batch + 1, "(sequences + 1,)", device);
  Expected reset{"reset", {p.steps, p.batch}, "(steps, batch)", Dtype::boolean, device, true};
  if (packed) reset.sizes = {p.steps}, reset.axes = "(tokens,)";
  if (!packed && batch_first) reset.sizes = {p.batch, p.steps}, reset.axes = "(batch, steps)";
  reset.layout = Layout::input;
  out.reset = check(ragged.reset, reset);
  if (out.reset) out.reset = time_first(out.reset, batch_first, p.layout);
  if (sees_values(context)) check_values(out, p, context);
  return out;
}

TensorView check_state_indices(const TensorView& indices, std::int64_t batch, std::int64_t states,
                               const Context& context) {
  const TensorView view =
      check_integers("state_indices", indices, batch, "(batch,)", context.options().device);
  if (!sees_values(context)) return view;
  const HostIntegers on_host(view, context);
  const Integers values = on_host.values();
  check_values(
      "state_indices", view, values, [](std::int64_t) { return std::int64_t{-1}; }, states - 1);
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // a state, and by which row
  for (std::int64_t i = 0; i < batch; ++i) {
    if (values[i] >= 0) taken.emplace_back(values[i], i);
  }
  std::sort(taken.begin(), taken.end());
  for (std::size_t i = 1; i < taken.size(); ++i) {
    require(taken[i].first != taken[i - 1].first, [&] {
      return "state_indices: expected each state once, got " + std::to_string(taken[i].first) +
             " again at " + std::to_string(taken[i].second);
    });
  }
  return view;
}

}  // namespace scanrnn
