// SPDX-License-Identifier: Apache-2.0
// The extension scanrnn._core: what there is, and C++ errors as Python's. No arithmetic and no rule
// about shapes lives here.
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calls.h"
#include "convert.h"
#include "exchange.h"
#include "planning.h"

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

// Whether the user's SCANRNN_LOG asks for the plans of calls. Python's os.environ writes to the
// environment that this reads.
bool wants_plans() {
  const char* wanted = std::getenv("SCANRNN_LOG");
  return wanted && std::string_view(wanted) == "plan";
}

Layer described_layer(const std::string& cell, std::int64_t input_size, std::int64_t hidden_size,
                      int num_layers, bool bias, bool batch_first, double dropout,
                      bool bidirectional, const std::string& variant, const std::string& domain,
                      const std::string& options_of_cell, const std::string& dtype) {
  LayerOptions options;
  options.input_size = input_size;
  options.hidden_size = hidden_size;
  options.num_layers = num_layers;
  options.bias = bias;
  options.batch_first = batch_first;
  options.dropout = dropout;
  options.bidirectional = bidirectional;
  return make_layer(options, cell, variant, domain, options_of_cell, dtype);
}

PlannedCall plan_batch(const Layer& layer, Device device, std::int64_t steps, std::int64_t batch,
                       bool training, const std::optional<std::string>& strategy,
                       const std::string& batch_layout, std::int64_t longest) {
  const BatchShape shape{steps, batch, parse_batch_layout(batch_layout), longest};
  return plan_layer(layer, device, shape, training, strategy);
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

  py::class_<Layer>(m, "Layer")
      .def(py::init(&described_layer), py::kw_only(), "cell"_a, "input_size"_a, "hidden_size"_a,
           "num_layers"_a = 1, "bias"_a = true, "batch_first"_a = false, "dropout"_a = 0.0,
           "bidirectional"_a = false, "variant"_a = "", "domain"_a = "log", "options"_a = "",
           "dtype"_a = "float32")
      .def_property_readonly("directions", &Layer::directions)
      .def("parameters",
           [](const Layer& layer) {
             py::list out;
             for (const auto& p : layer.parameters()) {
               out.append(py::make_tuple(p.name, py::tuple(py::cast(p.sizes))));
             }
             return out;
           })
      .def("plan", &plan_batch, "device"_a, "steps"_a, "batch"_a, "training"_a, "strategy"_a,
           "batch_layout"_a = "rectangular", "longest"_a = 0);

  m.def("after_fork", &after_fork);
  m.def("settings", &settings);
  m.def("wants_plans", &wants_plans);
  m.def("profile", [](Device device) {
    configure(device);
    return context(device).profile();
  });
  m.def("set_profile", [](Device device, std::shared_ptr<Profile> profile) {
    choose_profile(device.kind, std::move(profile));
  });

  bind_planning(m);
  m.def("set_float32_matmul_precision", &choose_precision);
  m.def("get_float32_matmul_precision", &chosen_precision);
  m.def("use_matmul_precision", &use_precision);
  bind_exchange(m);
  bind_placement(m);
  bind_export(m);
  bind_tensor_calls(m);
  bind_jax_ffi(m);
  m.def("cells", [] { return describe_all(cells()); });
  m.def("devices", [] { return describe_all(devices()); });
  m.def("build_info", &build_info);
  m.def("cuda_available", &cuda_available);
}

}  // namespace scanrnn
