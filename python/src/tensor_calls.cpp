// SPDX-License-Identifier: Apache-2.0
// The library's calls on other libraries' memory, which is the caller's to keep until they return:
// everything is enqueued then.
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "calls.h"
#include "exchange.h"

namespace scanrnn {
namespace {

namespace py = pybind11;

using MaybeTensor = std::optional<Tensor>;
using Tensors = std::vector<MaybeTensor>;  // of parameters, or of a state: h, and c of a pair

TensorView view_of(const MaybeTensor& tensor) { return tensor ? tensor->view : TensorView{}; }

State state_of(const Tensors& tensors) {
  return {tensors.size() > 0 ? view_of(tensors[0]) : TensorView{},
          tensors.size() > 1 ? view_of(tensors[1]) : TensorView{}};
}

std::vector<TensorView> views_of(const Tensors& tensors) {
  std::vector<TensorView> out;
  for (const MaybeTensor& tensor : tensors) out.push_back(view_of(tensor));
  return out;
}

// Address and number of bytes of memory to work in.
using Bytes = std::optional<std::pair<std::uintptr_t, std::size_t>>;

Span span_of(const Bytes& bytes) {
  if (!bytes) return {};
  return {reinterpret_cast<void*>(bytes->first), bytes->second};
}

void forward(const Layer& layer, const PlannedCall& call, std::uintptr_t stream,
             const Tensors& params, const Tensor& x, const Tensors& h_0, const Tensor& y,
             const Tensors& h_n, const Bytes& workspace, const Bytes& reserve, std::uint64_t seed,
             bool one_step) {
  ForwardArgs args;
  args.params = views_of(params);
  args.x = x.view;
  args.h0 = state_of(h_0);
  args.y = y.view;
  args.hn = state_of(h_n);
  args.workspace = span_of(workspace);
  args.reserve = span_of(reserve);
  args.seed = seed;
  const py::gil_scoped_release unlocked;
  Context& where = context(call.device, reinterpret_cast<void*>(stream));
  if (one_step) {
    layer.step(where, call.plan, args);
  } else {
    layer.forward(where, call.plan, args);
  }
}

void backward(const Layer& layer, const PlannedCall& call, std::uintptr_t stream,
              const Tensors& params, const Tensor& x, const Tensors& h_0, const Tensor& y,
              const MaybeTensor& dy, const Tensors& dh_n, const MaybeTensor& dx,
              const Tensors& dh_0, const Tensors& dparams, const Bytes& workspace,
              const Bytes& reserve, std::uint64_t seed) {
  BackwardArgs args;
  args.params = views_of(params);
  args.x = x.view;
  args.h0 = state_of(h_0);
  args.y = y.view;
  args.dy = view_of(dy);
  args.dhn = state_of(dh_n);
  args.dx = view_of(dx);
  args.dh0 = state_of(dh_0);
  args.dparams = views_of(dparams);
  args.workspace = span_of(workspace);
  args.reserve = span_of(reserve);
  args.seed = seed;
  const py::gil_scoped_release unlocked;
  layer.backward(context(call.device, reinterpret_cast<void*>(stream)), call.plan, args);
}

void scan(const PlannedCall& call, std::uintptr_t stream, const Tensor& a, const Tensor& b,
          const MaybeTensor& sign_b, const MaybeTensor& h_0, const Tensor& h,
          const Bytes& workspace, bool log_form, bool reverse) {
  ScanArgs args;
  args.a = a.view;
  args.b = b.view;
  args.sign_b = view_of(sign_b);
  args.h0 = view_of(h_0);
  args.h = h.view;
  args.workspace = span_of(workspace);
  args.log_form = log_form;
  args.reverse = reverse;
  const py::gil_scoped_release unlocked;
  linear_scan(context(call.device, reinterpret_cast<void*>(stream)), call.plan, args);
}

}  // namespace

void bind_tensor_calls(py::module_& m) {
  m.def("forward", &forward);
  m.def("backward", &backward);
  m.def("scan_tensors", &scan);
}

}  // namespace scanrnn
