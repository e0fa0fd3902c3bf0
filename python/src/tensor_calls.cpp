// SPDX-License-Identifier: Apache-2.0
// The library's calls, one of each for the arrays of all libraries. Memory is the caller's to keep
// until they return: everything is enqueued then. The lock of the interpreter is released around
// all work.
#include <pybind11/stl.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "exchange.h"
#include "names.h"

namespace scanrnn {
namespace {

// Whether a layer can read it as it lies: the last axis is contiguous, and rows do not overlap.
bool walkable(const TensorView& view) {
  const int last = view.rank - 1;
  if (last < 0) return true;
  const auto size = [&](int axis) { return view.sizes[static_cast<std::size_t>(axis)]; };
  const auto stride = [&](int axis) { return view.strides[static_cast<std::size_t>(axis)]; };
  bool rows = size(last) == 1 || stride(last) == 1, empty = size(last) == 0;
  for (int axis = 0; axis < last; ++axis) {
    rows = rows && (size(axis) == 1 || stride(axis) >= size(last));
    empty = empty || size(axis) == 0;
  }
  return rows || empty;
}

// What a call reads. An array that it cannot walk is copied, where its library has a method for
// that, as torch has; the copies live until everything is enqueued.
class Inputs {
 public:
  TensorView view(const char* name, py::handle value) {
    const TensorView found = view_of(name, value);
    if (walkable(found) || !py::hasattr(value, "contiguous")) return found;
    copies_.push_back(value.attr("contiguous")());
    return view_of(name, copies_.back());
  }
  std::vector<TensorView> views(const char* name, py::handle values) {
    if (!PyList_Check(values.ptr()) && !PyTuple_Check(values.ptr())) return views_of(name, values);
    std::vector<TensorView> out;
    out.reserve(py::len(values));
    for (const py::handle value : values) out.push_back(view(name, value));
    return out;
  }

 private:
  std::vector<py::object> copies_;
};

// [B,.] as [1,B,.], where 1 is the step or the layer that there is.
TensorView lifted(const TensorView& view) {
  if (view.rank != 2) return view;
  TensorView out = view;
  out.rank = 3;
  out.sizes = {1, view.sizes[0], view.sizes[1]};
  out.strides = {view.sizes[0] * view.strides[0], view.strides[0], view.strides[1]};
  return out;
}

// The tensors of a state in order, each by `look(name, value)`; a shorter sequence has not the last
// ones. That of one step may be of one layer, [B,.].
template <class Look>
State state_of(const char* name, py::handle values, bool one_step, Look&& look) {
  State out;
  std::size_t index = 0;
  for (const py::handle value : values) {
    if (index == kStateTensors.size()) break;
    const TensorView view = look(name, value);
    out.*kStateTensors[index++] = one_step ? lifted(view) : view;
  }
  return out;
}

TensorView written(const char* name, py::handle value) { return view_of(name, value); }

// Which steps there are: None, or a sequence of lengths, cu_seqlens, reset and state_indices, of
// which each may be None.
struct Steps {
  Ragged ragged;
  TensorView state_indices;
};

Steps steps_of(py::handle values) {
  Steps out;
  if (values.is_none()) return out;
  const std::pair<const char*, TensorView*> parts[] = {{"lengths", &out.ragged.lengths},
                                                       {"cu_seqlens", &out.ragged.cu_seqlens},
                                                       {"reset", &out.ragged.reset},
                                                       {"state_indices", &out.state_indices}};
  static char nothing;  // integers of no sequence are not absent ones
  auto part = std::begin(parts);
  for (const py::handle value : values) {
    if (part == std::end(parts)) break;
    *part->second = view_of(part->first, value);
    if (!value.is_none() && !part->second->data) part->second->data = &nothing;
    ++part;
  }
  return out;
}

// The caller's memory to work in, or, of a caller that gives none, memory for this call alone.
class Workspace {
 public:
  explicit Workspace(py::handle given)
      : given_(span_of("workspace", given)), own_(given.is_none()) {}
  Span on(Context& where, std::size_t bytes) {
    if (!own_) return given_;
    memory_ = Buffer(where, bytes);
    return memory_.span();
  }

 private:
  Span given_;
  bool own_;
  Buffer memory_;
};

void run_forward(const Layer& layer, const PlannedCall& call, std::uintptr_t stream,
                 py::handle params, py::handle x, py::handle h_0, py::handle y, py::handle h_n,
                 py::handle workspace, py::handle reserve, std::uint64_t seed, bool one_step,
                 py::handle ragged) {
  Workspace memory(workspace);
  Inputs inputs;
  const auto read = [&](const char* name, py::handle value) { return inputs.view(name, value); };
  ForwardArgs args;
  args.params = inputs.views("params", params);
  args.x = read(one_step ? "x_t" : "x", x);
  args.h0 = state_of(one_step ? "h" : "h_0", h_0, one_step, read);
  args.y = view_of("y", y);
  args.hn = state_of("h_n", h_n, one_step, written);
  args.reserve = span_of("reserve", reserve);
  args.seed = seed;
  const Steps steps = steps_of(ragged);
  args.ragged = steps.ragged;
  args.state_indices = steps.state_indices;
  const py::gil_scoped_release unlocked;
  configure(call.device, reinterpret_cast<void*>(stream));
  Context& where = context(call.device);
  args.workspace = memory.on(where, call.sizes.workspace);
  if (one_step) {
    step(layer, where, call, args);
  } else {
    forward(layer, where, call, args);
  }
}

void run_backward(const Layer& layer, const PlannedCall& call, std::uintptr_t stream,
                  py::handle params, py::handle x, py::handle h_0, py::handle y, py::handle dy,
                  py::handle dh_n, py::handle dx, py::handle dh_0, py::handle dparams,
                  py::handle workspace, py::handle reserve, std::uint64_t seed, bool one_step,
                  py::handle ragged) {
  Workspace memory(workspace);
  Inputs inputs;
  const auto read = [&](const char* name, py::handle value) { return inputs.view(name, value); };
  const auto tokens = [&](const TensorView& view) { return one_step ? lifted(view) : view; };
  BackwardArgs args;
  args.params = inputs.views("params", params);
  args.x = tokens(read("x", x));
  args.h0 = state_of("h_0", h_0, one_step, read);
  args.y = tokens(read("y", y));
  args.dy = tokens(read("dy", dy));
  args.dhn = state_of("dh_n", dh_n, one_step, read);
  args.dx = tokens(view_of("dx", dx));
  args.dh0 = state_of("dh_0", dh_0, one_step, written);
  args.dparams = views_of("dparams", dparams);
  args.reserve = span_of("reserve", reserve);
  args.seed = seed;
  args.ragged = steps_of(ragged).ragged;
  const py::gil_scoped_release unlocked;
  configure(call.device, reinterpret_cast<void*>(stream));
  Context& where = context(call.device);
  args.workspace = memory.on(where, call.sizes.workspace);
  backward(layer, where, call, args);
}

PlannedCall scan_plan(Device device, std::int64_t steps, std::int64_t lines, std::int64_t rows,
                      const std::string& dtype, const std::string& form, bool training,
                      bool time_contiguous, const std::optional<std::string>& strategy) {
  ScanShape shape;
  shape.steps = steps;
  shape.lines = lines;
  shape.rows = rows;
  shape.dtype = parse_array_dtype(dtype);
  shape.form = parse_form(form);
  shape.training = training;
  shape.time_contiguous = time_contiguous;
  return plan_scan(device, shape, strategy);
}

// What forward and backward of a scan both read.
template <class Args>
Args scan_args(const std::string& form, bool reverse, py::handle a, py::handle b, py::handle sign_b,
               py::handle reset, py::handle h_0, py::handle sign_h_0, py::handle h,
               py::handle sign_h) {
  Args args;
  args.form = parse_form(form);
  args.reverse = reverse;
  args.a = view_of("a", a);
  args.b = view_of("b", b);
  args.sign_b = view_of("sign_b", sign_b);
  args.reset = view_of("reset", reset);
  args.h0 = view_of("h_0", h_0);
  args.sign_h0 = view_of("h_0[1]", sign_h_0);
  args.h = view_of("h", h);
  args.sign_h = view_of("sign_h", sign_h);
  return args;
}

void run_scan(const PlannedCall& call, std::uintptr_t stream, const std::string& form, bool reverse,
              py::handle a, py::handle b, py::handle sign_b, py::handle reset, py::handle h_0,
              py::handle sign_h_0, py::handle h, py::handle sign_h, py::handle workspace) {
  Workspace memory(workspace);
  auto args = scan_args<ScanArgs>(form, reverse, a, b, sign_b, reset, h_0, sign_h_0, h, sign_h);
  const py::gil_scoped_release unlocked;
  configure(call.device, reinterpret_cast<void*>(stream));
  Context& where = context(call.device);
  args.workspace = memory.on(where, call.sizes.workspace);
  linear_scan(where, call.plan, args);
}

void run_scan_backward(const PlannedCall& call, std::uintptr_t stream, const std::string& form,
                       bool reverse, py::handle a, py::handle b, py::handle sign_b,
                       py::handle reset, py::handle h_0, py::handle sign_h_0, py::handle h,
                       py::handle sign_h, py::handle dh, py::handle da, py::handle db,
                       py::handle dh_0, py::handle workspace) {
  Workspace memory(workspace);
  auto args =
      scan_args<ScanBackwardArgs>(form, reverse, a, b, sign_b, reset, h_0, sign_h_0, h, sign_h);
  args.dh = view_of("dh", dh);
  args.da = view_of("da", da);
  args.db = view_of("db", db);
  args.dh0 = view_of("dh_0", dh_0);
  const py::gil_scoped_release unlocked;
  configure(call.device, reinterpret_cast<void*>(stream));
  Context& where = context(call.device);
  args.workspace = memory.on(where, call.sizes.workspace);
  linear_scan_backward(where, call.plan, args);
}

}  // namespace

void bind_tensor_calls(py::module_& m) {
  m.def("forward", &run_forward);
  m.def("backward", &run_backward);
  m.def("scan_plan", &scan_plan);
  m.def("scan", &run_scan);
  m.def("scan_backward", &run_scan_backward);
}

}  // namespace scanrnn
