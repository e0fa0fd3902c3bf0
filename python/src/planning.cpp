// SPDX-License-Identifier: Apache-2.0
// What measures and tunes: profiles as Python's values, the planner on any device, and workloads.
#include "planning.h"

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "layer_workload.h"
#include "scan_workload.h"

namespace scanrnn {
namespace {

using dispatch::Profile;
using dispatch::Rule;
using Bounds = std::array<double, dispatch::kFeatures>;
using RuleValues = std::tuple<std::string, std::string, bool, double, Bounds, Bounds>;

Profile make_profile(const std::string& name, const std::string& origin,
                     const std::vector<RuleValues>& rules) {
  if (rules.empty() || rules.size() > dispatch::kMaxRules) {
    throw value_error("rules: expected 1 to " + std::to_string(dispatch::kMaxRules) + ", got " +
                      std::to_string(rules.size()));
  }
  Profile out{};
  std::strncpy(out.name, name.c_str(), sizeof out.name - 1);
  std::strncpy(out.origin, origin.c_str(), sizeof out.origin - 1);
  for (const auto& [strategy, runner_up, across_blocks, margin, above, at_most] : rules) {
    out.rules[static_cast<std::size_t>(out.count++)] = {
        parse_strategy(strategy), parse_strategy(runner_up), across_blocks, margin, above, at_most};
  }
  return out;
}

std::vector<RuleValues> rules_of(const Profile& profile) {
  std::vector<RuleValues> out;
  for (int i = 0; i < profile.count; ++i) {
    const Rule& r = profile.rules[static_cast<std::size_t>(i)];
    out.emplace_back(name(r.strategy), name(r.runner_up), r.across_blocks, r.margin, r.above,
                     r.at_most);
  }
  return out;
}

template <class Values>
std::vector<std::string> names_of(const Values& values) {
  std::vector<std::string> out;
  for (const auto value : values) out.emplace_back(name(value));
  return out;
}

std::vector<std::string> features() {
  std::vector<std::string> out;
  for (int i = 0; i < dispatch::kFeatures; ++i) {
    out.emplace_back(name(static_cast<dispatch::Feature>(i)));
  }
  return out;
}

// What the planner would do on a device that need not be here.
py::tuple pick(const Profile& profile, bool cuda, std::int64_t units, std::int64_t shared_bytes,
               const dispatch::Problem& problem) {
  const dispatch::DeviceLimits device{cuda ? dispatch::Processor::cuda : dispatch::Processor::cpu,
                                      units, shared_bytes};
  const auto plan = dispatch::plan(problem, device, profile);
  return py::make_tuple(name(plan.strategy), plan.across_blocks, explain(plan));
}
dispatch::Problem layer_problem(const Layer& layer, std::int64_t steps, std::int64_t batch,
                                bool training) {
  return layer.problem(steps, batch, training ? Mode::training : Mode::inference);
}
dispatch::Problem scan_problem(const std::string& dtype, std::int64_t steps, std::int64_t rows,
                               bool log_form) {
  return linear_scan_problem(steps, rows, parse_dtype(dtype), log_form);
}
std::unique_ptr<Workload> layer_workload(const Layer& layer, Device device, std::int64_t steps,
                                         std::int64_t batch, bool training) {
  return std::make_unique<LayerWorkload>(layer, device, steps, batch, training);
}
std::unique_ptr<Workload> scan_workload(const std::string& dtype, Device device, std::int64_t steps,
                                        std::int64_t rows, bool log_form) {
  return std::make_unique<ScanWorkload>(parse_dtype(dtype), device, steps, rows, log_form);
}

}  // namespace

void bind_planning(py::module_& m) {
  py::class_<Profile>(m, "Profile")
      .def(py::init(&make_profile))
      .def_property_readonly("name", [](const Profile& p) { return p.name; })
      .def_property_readonly("origin", [](const Profile& p) { return p.origin; })
      .def_property_readonly("rules", &rules_of);
  m.def(
      "built_in_profile", [](const std::string& name) { return dispatch::find_profile(name); },
      py::return_value_policy::reference);
  m.def("features", &features);
  m.def("strategies", [] { return names_of(dispatch::kStrategies); });
  py::class_<dispatch::Problem>(m, "Problem");
  m.def("layer_problem", &layer_problem);
  m.def("scan_problem", &scan_problem);
  m.def("pick", &pick);

  py::class_<Workload::Recorded>(m, "Recorded")
      .def_property_readonly("strategy",
                             [](const Workload::Recorded& r) { return name(r.plan.strategy); })
      .def_property_readonly("across_blocks",
                             [](const Workload::Recorded& r) { return r.plan.across_blocks; })
      .def_property_readonly("nbytes", &Workload::Recorded::bytes)
      .def("again", &Workload::Recorded::again, py::keep_alive<0, 1>(),
           py::call_guard<py::gil_scoped_release>())
      .def("milliseconds", &Workload::Recorded::milliseconds,
           py::call_guard<py::gil_scoped_release>());
  py::class_<Workload>(m, "Workload")
      .def(py::init(&layer_workload), py::call_guard<py::gil_scoped_release>())
      .def(py::init(&scan_workload), py::call_guard<py::gil_scoped_release>())
      .def(
          "record",
          [](Workload& w, const std::optional<std::string>& strategy,
             std::optional<bool> across_blocks) {
            const Strategy parsed = parse_strategy(strategy);
            const py::gil_scoped_release unlocked;
            return w.record(parsed, across_blocks);
          },
          py::keep_alive<0, 1>())
      .def("errors", &Workload::errors, py::call_guard<py::gil_scoped_release>());
}

}  // namespace scanrnn
