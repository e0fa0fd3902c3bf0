// SPDX-License-Identifier: Apache-2.0
// Argument checks and their words.
#include "api/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "scanrnn/cells/sru.h"
#include "stack/backend.h"

namespace scanrnn {

namespace {

// The options that make other weights of a layer.
void check_made_of(const LayerOptions& o, const CellInfo& cell) {
  check_own_options(o, cell);
  require(
      !o.layer_norm || cell.option != "peephole",
      "layer_norm: expected False with peephole, whose gates read c itself beside the norms, got "
      "True");
  require(!o.layer_norm || o.reset_after,
          "layer_norm: expected False with reset_after=False, whose last product with R reads what "
          "the norm of all of them would give, got True");
  require(o.num_heads >= 1 && o.hidden_size % o.num_heads == 0, [&] {
    return "num_heads: expected a divisor of hidden_size, " + std::to_string(o.hidden_size) +
           ", got " + std::to_string(o.num_heads);
  });
  require(o.proj_size >= 0 && o.proj_size < o.hidden_size, [&] {
    return "proj_size: expected a number in [0, hidden_size), so below " +
           std::to_string(o.hidden_size) + ", got " + std::to_string(o.proj_size);
  });
  require(o.proj_size == 0 || o.num_heads == 1, [&] {
    return "num_heads: expected 1 with proj_size, whose h is no head's alone, got " +
           std::to_string(o.num_heads);
  });
  require(o.proj_size == 0 || o.zoneout == 0, [&] {
    return "zoneout: expected 0 for h with proj_size, whose h is made of all units; c may have it, "
           "by zoneout_cell or in Python zoneout=(0, p), got " +
           text(o.zoneout);
  });
  require(o.projection_size >= 0, [&] {
    return "projection_size: expected a number >= 0, got " + std::to_string(o.projection_size);
  });
  require(std::isfinite(o.highway_bias),
          [&] { return "highway_bias: expected a finite number, got " + text(o.highway_bias); });
  const double scale = cell::highway_scale(o.highway_bias);
  const bool counted = std::isfinite(o.dtype == Dtype::float64 ? scale : static_cast<float>(scale));
  require(!o.rescale || counted, [&] {
    return "highway_bias: expected a number up to 176, or 709 in float64, with rescale, whose "
           "factor is sqrt(1 + 2 e^highway_bias), got " +
           text(o.highway_bias);
  });
}

}  // namespace

const CellInfo& check_options(const LayerOptions& o) {
  const auto at_least_one = [](const char* option, std::int64_t value) {
    require(value >= 1, [&] {
      return std::string(option) + ": expected a positive number, got " + std::to_string(value);
    });
  };
  const CellInfo& cell = info(o.cell);
  at_least_one("input_size", o.input_size);
  at_least_one("hidden_size", o.hidden_size);
  at_least_one("num_layers", o.num_layers);
  constexpr int kMostLayers = 1 << 16;
  require(o.num_layers <= kMostLayers, [&] {
    return "num_layers: expected a number up to " + std::to_string(kMostLayers) + ", got " +
           std::to_string(o.num_layers);
  });
  const auto share = [](const char* option, double value) {
    require(value >= 0 && value < 1, [&] {
      return std::string(option) + ": expected a probability in [0, 1), got " + text(value);
    });
  };
  share("dropout", o.dropout);
  share("dropconnect", o.dropconnect);
  share("input_dropout", o.input_dropout);
  share("state_dropout", o.state_dropout);
  share("zoneout", o.zoneout);
  share("zoneout_cell", o.zoneout_cell);
  if (is_complex(o.dtype) || is_integer(o.dtype) || o.dtype == Dtype::boolean) {
    throw type_error(std::string("dtype: expected a real floating-point one, got ") +
                     name(o.dtype));
  }
  const int count = static_cast<int>(cell.variants.size());
  require(o.variant >= 0 && o.variant < count, [&] {
    return (count > 1 ? cell.variant_option : "variant") + ": expected an index below " +
           std::to_string(count) + ", got " + std::to_string(o.variant);
  });
  check_made_of(o, cell);
  require(!cell.square || o.input_size == o.hidden_size, [&] {
    return "hidden_size: " + cell.name + " reads x of its own unit, so expected input_size, " +
           std::to_string(o.input_size) + ", got " + std::to_string(o.hidden_size);
  });
  require(!cell.square || !o.bidirectional || o.num_layers == 1, [&] {
    return "bidirectional: " + cell.name +
           " reads x of its own unit, so a layer with two directions has none above it, got " +
           "num_layers=" + std::to_string(o.num_layers);
  });
  return cell;
}

void check_profile(const dispatch::Profile& profile) {
  require(profile.count >= 0 && profile.count <= dispatch::kMaxRules, [&] {
    return "profile: expected 0 to " + std::to_string(dispatch::kMaxRules) + " rules, got " +
           std::to_string(profile.count);
  });
  for (int i = 0; i < profile.count; ++i) {
    const dispatch::Strategy strategy = profile.rules[static_cast<std::size_t>(i)].strategy;
    const auto end = std::end(dispatch::kStrategies);
    require(std::find(std::begin(dispatch::kStrategies), end, strategy) != end, [&] {
      return "profile: expected a strategy in each rule, got " +
             std::to_string(static_cast<int>(strategy)) + " in rule " + std::to_string(i);
    });
  }
  const auto ends = [](const auto& words) {
    return std::memchr(words, 0, sizeof words) != nullptr;
  };
  require(ends(profile.name) && ends(profile.origin),
          "profile: expected name and origin that end with a 0, got none");
}

std::string text(double number) {
  char out[32];
  if (std::fabs(number) < 1e15 && number == std::floor(number)) {
    std::snprintf(out, sizeof out, "%.0f", number);
    return out;
  }
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(out, sizeof out, "%.*g", digits, number);
    if (std::strtod(out, nullptr) == number) break;
  }
  return out;
}

void check_strategy(const dispatch::Problem& problem, const dispatch::DeviceLimits& device) {
  const std::string why = dispatch::misfit(problem, device);
  if (why.empty()) return;
  throw value_error("strategy: '" + std::string(dispatch::name(problem.forced)) +
                    "' cannot run: " + why);
}

namespace {

std::string address(const void* data) {
  char out[32];
  std::snprintf(out, sizeof out, "%p", data);
  return out;
}

// The last axis contiguous, and no row within reach of another's first element.
template <class Named>
void check_rows(const TensorView& view, const Named& named) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  require(view.sizes[last] == 1 || view.strides[last] == 1, [&] {
    return named("a contiguous last axis, got stride " + std::to_string(view.strides[last]));
  });
  for (std::size_t axis = 0; axis < last; ++axis) {
    require(view.sizes[axis] == 1 || view.strides[axis] >= view.sizes[last], [&] {
      return named("rows that do not overlap, so strides of at least " +
                   std::to_string(view.sizes[last]) + ", got stride " +
                   std::to_string(view.strides[axis]) + " on axis " + std::to_string(axis));
    });
  }
}

// The stride of an axis of one element says nothing, but a product takes it for the length of a
// row.
TensorView with_sound_strides(TensorView view) {
  std::int64_t within = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(i);
    if (view.sizes[axis] == 1) view.strides[axis] = within;
    within = std::max(within, view.sizes[axis] * view.strides[axis]);
  }
  return view;
}

// Strides of at least 0; of an output each larger than all that lies within it.
template <class Named>
void check_strides(const TensorView& view, bool output, const Named& named) {
  const auto rank = static_cast<std::size_t>(view.rank);
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const std::int64_t stride = view.strides[axis];
    if (view.sizes[axis] == 1) continue;
    std::int64_t within = 0;  // from the first to the last element of the axes inside this one
    for (std::size_t i = 0; i < rank; ++i) {
      const bool inside = view.strides[i] < stride || (view.strides[i] == stride && i > axis);
      if (inside) within += (view.sizes[i] - 1) * view.strides[i];
    }
    const auto on_axis = [&] {
      return ", got stride " + std::to_string(stride) + " on axis " + std::to_string(axis);
    };
    require(stride >= 0, [&] { return named("strides of at least 0" + on_axis()); });
    require(!output || stride > within, [&] {
      return named("elements that do not overlap, each stride larger than all that lies within it" +
                   on_axis());
    });
  }
}

}  // namespace

TensorView check(const TensorView& view, const Expected& want) {
  static char nowhere;  // nobody reads or writes it
  const auto named = [&](const std::string& words) {
    return std::string(want.prefix) + want.name + ": expected " + words;
  };
  TensorView shape;
  shape.data = &nowhere;
  shape.dtype = want.dtype;
  shape.device = want.device;
  std::int64_t count = 1;
  for (std::int64_t size : want.sizes) {
    shape.sizes[static_cast<std::size_t>(shape.rank++)] = size;
    count *= size;
  }
  require(view.rank >= 0 && view.rank <= kMaxRank, [&] {
    return named("a tensor of " + std::to_string(shape.rank) + " axes, got " +
                 std::to_string(view.rank));
  });
  if (is_absent(view)) {
    require(want.optional || count == 0,
            [&] { return named("a tensor of shape " + shape.shape() + ", got none"); });
    return want.optional ? TensorView{} : shape;
  }
  const auto end = shape.sizes.begin() + shape.rank;
  require(view.rank == shape.rank && std::equal(shape.sizes.begin(), end, view.sizes.begin()), [&] {
    return named("shape " + shape.shape() + " = " + want.axes + ", got " + view.shape());
  });
  if (view.dtype != want.dtype) {
    throw type_error(named("dtype " + std::string(name(want.dtype)) + ", got " + name(view.dtype)));
  }
  if (view.device != want.device) {
    throw type_error(named("device " + name(want.device) + ", got " + name(view.device)));
  }
  if (count == 0) return shape;
  require(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0, [&] {
    return named("an address in whole elements of " + std::to_string(size_of(view.dtype)) +
                 " bytes, got " + address(view.data));
  });
  const bool rows = want.layout == Layout::rows || want.layout == Layout::output_rows;
  if (rows) check_rows(view, named);
  if (want.layout != Layout::rows) check_strides(view, want.layout != Layout::input, named);
  return rows ? with_sound_strides(view) : view;
}

void check(const Span& span, const char* name, std::size_t bytes, const dispatch::Plan& plan) {
  require(span.bytes >= bytes && (span.data || bytes == 0), [&] {
    return std::string(name) + ": expected " + std::to_string(bytes) + " bytes, got " +
           std::to_string(span.data ? span.bytes : 0) + " (" + dispatch::explain(plan) + ")";
  });
  // A cache line of the processor, which is what the frameworks' allocators give at least.
  const std::size_t alignment = plan.device.processor == dispatch::Processor::cpu ? 64 : 128;
  require(reinterpret_cast<std::uintptr_t>(span.data) % alignment == 0, [&] {
    return std::string(name) + ": expected " + std::to_string(alignment) + "-byte alignment, got " +
           address(span.data);
  });
}

}  // namespace scanrnn
