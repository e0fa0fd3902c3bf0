// SPDX-License-Identifier: Apache-2.0
// The extension scanrnn._core: arrays become views and C++ errors become Python's. No arithmetic
// and no rule about shapes lives here; the lock of the interpreter is released around all work.
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "convert.h"
#include "exchange.h"
#include "planning.h"
#include "precision.h"

namespace scanrnn {
namespace {

using dispatch::Profile;
using namespace pybind11::literals;

// ---- where work runs

Device make_device(const std::string& text) {
  const Device device = parse_device(text);
  context(device);  // throws where there is none
  return device;
}

std::string describe(const PlannedCall& call) {
  return explain(call.plan) + "; workspace " + std::to_string(call.sizes.workspace) +
         " bytes, reserve " + std::to_string(call.sizes.reserve) + " bytes";
}

// ---- layers

Layer described_layer(const std::string& cell, std::int64_t input_size, std::int64_t hidden_size,
                      int num_layers, bool bias, bool batch_first, double dropout,
                      bool bidirectional, const std::string& variant, const std::string& domain,
                      const std::string& dtype) {
  LayerOptions options;
  options.input_size = input_size;
  options.hidden_size = hidden_size;
  options.num_layers = num_layers;
  options.bias = bias;
  options.batch_first = batch_first;
  options.dropout = dropout;
  options.bidirectional = bidirectional;
  return make_layer(options, cell, variant, domain, dtype);
}

// A layer's parameters where they are used; the arrays are kept alive and must not change.
class Parameters {
 public:
  Parameters(Device device, std::vector<py::array> arrays) : arrays_(std::move(arrays)) {
    Tensors tensors(context(device));
    for (const py::array& array : arrays_) views_.push_back(tensors.in(array));
    copies_ = tensors.take();
  }
  const std::vector<TensorView>& views() const { return views_; }

 private:
  std::vector<py::array> arrays_;
  std::vector<Buffer> copies_;
  std::vector<TensorView> views_;
};

using Run = void (Layer::*)(Context&, const dispatch::Plan&, const ForwardArgs&) const;

template <Run run>
void forward(const Layer& layer, const PlannedCall& call, const Parameters& params,
             const py::array& x, const States& h_0, py::array& y, States& h_n,
             const Buffer* reserve, std::uint64_t seed) {
  Context& where = context(call.device);
  Tensors tensors(where);
  ForwardArgs args;
  args.params = params.views();
  args.x = tensors.in(x);
  args.h0 = tensors.in(h_0);
  args.y = tensors.out(y);
  args.hn = tensors.out(h_n);
  args.seed = seed;
  if (reserve) args.reserve = reserve->span();
  const py::gil_scoped_release unlocked;
  const Buffer workspace(where, call.sizes.workspace);
  args.workspace = workspace.span();
  (layer.*run)(where, call.plan, args);
  tensors.finish();
}

void backward(const Layer& layer, const PlannedCall& call, const Parameters& params,
              const py::array& x, const States& h_0, const py::array& y, const MaybeArray& dy,
              const States& dh_n, py::array& dx, States& dh_0, std::vector<py::array>& dparams,
              const Buffer* reserve, std::uint64_t seed) {
  Context& where = context(call.device);
  Tensors tensors(where);
  BackwardArgs args;
  args.params = params.views();
  args.x = tensors.in(x);
  args.h0 = tensors.in(h_0);
  args.y = tensors.in(y);
  args.dy = tensors.in(dy);
  args.dhn = tensors.in(dh_n);
  args.dx = tensors.out(dx);
  args.dh0 = tensors.out(dh_0);
  for (py::array& array : dparams) args.dparams.push_back(tensors.out(array));
  if (reserve) args.reserve = reserve->span();
  args.seed = seed;
  const py::gil_scoped_release unlocked;
  const Buffer workspace(where, call.sizes.workspace);
  args.workspace = workspace.span();
  layer.backward(where, call.plan, args);
  tensors.finish();
}

// ---- the bare scan

void run_scan(const PlannedCall& call, const py::array& a, const py::array& b,
              const MaybeArray& sign_b, const MaybeArray& h_0, py::array& h, bool log_form,
              bool reverse) {
  Context& where = context(call.device);
  Tensors tensors(where);
  ScanArgs args;
  args.a = tensors.in(a);
  args.b = tensors.in(b);
  args.sign_b = tensors.in(sign_b);
  args.h0 = tensors.in(h_0);
  args.h = tensors.out(h);
  args.log_form = log_form;
  args.reverse = reverse;
  const py::gil_scoped_release unlocked;
  const Buffer workspace(where, call.sizes.workspace);
  args.workspace = workspace.span();
  linear_scan(where, call.plan, args);
  tensors.finish();
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const value_error& e) {
    py::set_error(PyExc_ValueError, e.what());
  } catch (const type_error& e) {
    py::set_error(PyExc_TypeError, e.what());
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  py::register_exception<error>(m, "Error", PyExc_RuntimeError);
  py::register_exception<cuda_error>(m, "CudaError", PyExc_RuntimeError).attr("__module__") =
      "scanrnn";
  py::register_exception_translator(&translate);  // asked first, being the last

  py::class_<Device>(m, "Device")
      .def(py::init(&make_device))
      .def("__str__", [](Device device) { return name(device); })
      .def_property_readonly("units", [](Device device) { return context(device).limits().units; })
      .def_property_readonly("shared_bytes",
                             [](Device device) { return context(device).limits().shared_bytes; });

  py::class_<Buffer>(m, "Buffer")
      .def(
          py::init([](Device device, std::size_t bytes) { return Buffer(context(device), bytes); }))
      .def_property_readonly("nbytes", &Buffer::bytes);

  py::class_<PlannedCall>(m, "Plan")
      .def("__str__", [](const PlannedCall& c) { return describe(c); })
      .def("__repr__", [](const PlannedCall& c) { return "<Plan: " + describe(c) + ">"; })
      .def_property_readonly("strategy", [](const PlannedCall& c) { return name(c.plan.strategy); })
      .def_property_readonly("runner_up",
                             [](const PlannedCall& c) { return name(c.plan.runner_up); })
      .def_property_readonly("reason", [](const PlannedCall& c) { return name_of(c.plan.reason); })
      .def_property_readonly("batch", [](const PlannedCall& c) { return c.plan.problem.batch; })
      .def_property_readonly("tile_steps", [](const PlannedCall& c) { return c.plan.tile_steps; })
      .def_property_readonly("chunk_steps", [](const PlannedCall& c) { return c.plan.chunk_steps; })
      .def_property_readonly("profile", [](const PlannedCall& c) { return c.plan.profile; })
      .def_property_readonly("workspace_bytes",
                             [](const PlannedCall& c) { return c.sizes.workspace; })
      .def_property_readonly("reserve_bytes", [](const PlannedCall& c) { return c.sizes.reserve; });

  py::class_<Parameters>(m, "Parameters").def(py::init<Device, std::vector<py::array>>());

  py::class_<Layer>(m, "Layer")
      .def(py::init(&described_layer), py::kw_only(), "cell"_a, "input_size"_a, "hidden_size"_a,
           "num_layers"_a = 1, "bias"_a = true, "batch_first"_a = false, "dropout"_a = 0.0,
           "bidirectional"_a = false, "variant"_a = "", "domain"_a = "log", "dtype"_a = "float32")
      .def_property_readonly("directions", &Layer::directions)
      .def("parameters",
           [](const Layer& layer) {
             py::list out;
             for (const auto& p : layer.parameters()) {
               out.append(py::make_tuple(p.name, py::tuple(py::cast(p.sizes))));
             }
             return out;
           })
      .def("plan", &plan_layer)
      .def("forward", &forward<&Layer::forward>)
      .def("step", &forward<&Layer::step>)
      .def("backward", &backward);

  m.def("after_fork", &after_fork);
  m.def("profile", [](Device device) { return context(device).profile(); });
  m.def("set_profile",
        [](Device device, const Profile& profile) { choose_profile(device.kind, profile); });

  bind_planning(m);
  m.def("scan_plan", &plan_scan);
  m.def("scan", &run_scan);
  m.def("set_float32_matmul_precision", &set_matmul_precision);
  m.def("get_float32_matmul_precision", &get_matmul_precision);
  bind_exchange(m);
  bind_export(m);
  bind_tensor_calls(m);
  bind_jax_ffi(m);
  m.def("cells", [] { return describe_all(cells()); });
  m.def("devices", [] { return describe_all(devices()); });
  m.def("build_info", &build_info);
  m.def("cuda_available", &cuda_available);
}

}  // namespace scanrnn
