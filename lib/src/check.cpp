// SPDX-License-Identifier: Apache-2.0
// Argument checks and their words.
#include "check.h"

#include "backend.h"

namespace scanrnn {

void require(bool condition, const std::string& message) {
  if (!condition) throw value_error(message);
}

void check_countable(const std::string& what, std::initializer_list<std::int64_t> factors) {
  double product = 1;
  for (std::int64_t factor : factors) product *= static_cast<double>(factor);
  require(product < 0x1p62, what + " take more bytes than can be counted");
}

void check_strategy(const dispatch::Problem& problem, const dispatch::DeviceLimits& device) {
  const std::string why = dispatch::misfit(problem, device);
  if (why.empty()) return;
  throw value_error("strategy: '" + std::string(dispatch::name(problem.forced)) +
                    "' cannot run: " + why);
}

TensorView check(const TensorView& view, const Expected& want) {
  static char nowhere;  // nobody reads or writes it
  const std::string name_of = std::string(want.name) + ": ";
  TensorView shape;
  shape.data = &nowhere;
  shape.dtype = want.dtype;
  shape.device = want.device;
  std::int64_t count = 1, elements = view.rank > 0 ? 1 : 0;
  for (std::int64_t size : want.sizes) {
    shape.sizes[static_cast<std::size_t>(shape.rank++)] = size;
    count *= size;
  }
  for (int axis = 0; axis < view.rank; ++axis)
    elements *= view.sizes[static_cast<std::size_t>(axis)];
  if (!view && (view.rank == 0 || elements > 0)) {
    require(want.optional || count == 0,
            name_of + "expected a tensor of shape " + shape.shape() + ", got none");
    return want.optional ? TensorView{} : shape;
  }
  require(
      view.rank == shape.rank && view.sizes == shape.sizes,
      name_of + "expected shape " + shape.shape() + " = " + want.axes + ", got " + view.shape());
  if (view.dtype != want.dtype) {
    throw type_error(name_of + "expected dtype " + name(want.dtype) + ", got " + name(view.dtype));
  }
  if (view.device != want.device) {
    throw type_error(name_of + "expected device " + name(want.device) + ", got " +
                     name(view.device));
  }
  if (count == 0) return shape;
  require(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0,
          name_of + "expected an address in whole elements of " +
              std::to_string(size_of(view.dtype)) + " bytes");
  const auto last = static_cast<std::size_t>(view.rank - 1);
  require(view.sizes[last] == 1 || view.strides[last] == 1,
          name_of + "expected a contiguous last axis, got stride " +
              std::to_string(view.strides[last]));
  for (std::size_t axis = 0; axis < last; ++axis) {
    require(view.sizes[axis] == 1 || view.strides[axis] >= view.sizes[last],
            name_of + "expected rows that do not overlap, so strides of at least " +
                std::to_string(view.sizes[last]) + ", got stride " +
                std::to_string(view.strides[axis]) + " on axis " + std::to_string(axis));
  }
  return view;
}

void check(const Span& span, const char* name, std::size_t bytes, const dispatch::Plan& plan) {
  const std::string name_of = std::string(name) + ": ";
  if (span.bytes < bytes || (!span.data && bytes > 0)) {
    throw value_error(name_of + "expected " + std::to_string(bytes) + " bytes, got " +
                      std::to_string(span.data ? span.bytes : 0) + " (" + dispatch::explain(plan) +
                      ")");
  }
  // A cache line of the processor, which is what the frameworks' allocators give at least.
  const std::size_t alignment = plan.device.processor == dispatch::Processor::cpu ? 64 : 128;
  require(reinterpret_cast<std::uintptr_t>(span.data) % alignment == 0,
          name_of + "expected " + std::to_string(alignment) + "-byte alignment");
}

}  // namespace scanrnn
