// SPDX-License-Identifier: Apache-2.0
// What measures and tunes: profiles as Python's values, the planner on any device, and workloads.
#include "planning.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "layer_workload.h"
#include "scan_workload.h"
#include "scanrnn/dispatch/cost.h"

namespace scanrnn {
namespace {

namespace py = pybind11;
using dispatch::Cost;
using dispatch::Profile;
using dispatch::Rule;
using Bounds = std::array<double, dispatch::kFeatures>;
using RuleValues = std::tuple<std::string, std::string, bool, double, Bounds, Bounds>;

// The fields of a ProblemClass, a strategy and how it splits time, microseconds of each term,
// trend.
using ClassValues = std::tuple<std::string, int, int, bool, bool, bool>;
using CostValues = std::tuple<ClassValues, std::string, bool, std::array<float, dispatch::kTerms>,
                              std::array<float, dispatch::kTrends>>;

ClassValues values_of(const dispatch::ProblemClass& of) {
  return {name(of.kind), of.bytes, of.alignment, of.training, of.log_form, of.tf32};
}
dispatch::ProblemClass class_of(const ClassValues& values) {
  dispatch::ProblemClass out;
  std::string kind;
  std::tie(kind, out.bytes, out.alignment, out.training, out.log_form, out.tf32) = values;
  out.kind = find_named("kind", kind, dispatch::kKinds, [](dispatch::Kind k) { return name(k); });
  return out;
}

// As much of UTF-8 as there is room for, in whole characters.
template <std::size_t kRoom>
void put(char (&to)[kRoom], const std::string& text) {
  std::size_t count = std::min(text.size(), kRoom - 1);
  if (count < text.size()) {
    while (count > 0 && (static_cast<unsigned char>(text[count]) & 0xC0) == 0x80) --count;
  }
  std::memcpy(to, text.data(), count);
  to[count] = 0;
}

Profile make_profile(const std::string& name, const std::string& origin,
                     const std::vector<RuleValues>& rules, const std::vector<CostValues>& costs) {
  if ((rules.empty() && costs.empty()) || rules.size() > dispatch::kMaxRules) {
    throw value_error("rules: expected 1 to " + std::to_string(dispatch::kMaxRules) + ", got " +
                      std::to_string(rules.size()));
  }
  Profile out{};
  put(out.name, name);
  put(out.origin, origin);
  for (const auto& [strategy, runner_up, across_blocks, margin, above, at_most] : rules) {
    out.rules[static_cast<std::size_t>(out.count++)] = {
        parse_strategy(strategy), parse_strategy(runner_up), across_blocks, margin, above, at_most};
  }
  std::vector<Cost> parsed;
  for (const auto& [of, strategy, across_blocks, us, trend] : costs) {
    parsed.push_back({class_of(of), parse_strategy(strategy), across_blocks, us, trend});
  }
  if (!parsed.empty()) out.costs = std::make_shared<const std::vector<Cost>>(std::move(parsed));
  return out;
}

std::vector<CostValues> costs_of(const Profile& profile) {
  std::vector<CostValues> out;
  if (!profile.costs) return out;
  for (const Cost& cost : *profile.costs) {
    out.emplace_back(values_of(cost.of), name(cost.strategy), cost.across_blocks, cost.us,
                     cost.trend);
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

// Those of an enumeration without holes.
template <class Enumeration>
std::vector<std::string> names_of(int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.emplace_back(name(static_cast<Enumeration>(i)));
  return out;
}

dispatch::DeviceLimits limits(bool cuda, std::int64_t units, std::int64_t shared_bytes) {
  return {cuda ? dispatch::Processor::cuda : dispatch::Processor::cpu, units, shared_bytes};
}

// What the planner would do on a device that need not be here.
py::tuple pick(const Profile& profile, bool cuda, std::int64_t units, std::int64_t shared_bytes,
               const dispatch::Problem& problem) {
  const auto plan = dispatch::plan(problem, limits(cuda, units, shared_bytes), profile);
  return py::make_tuple(name(plan.strategy), plan.across_blocks, explain(plan), plan.expected_us);
}
// What the costs of one way are fitted to: the class of a problem, its counts and its trends.
py::tuple counted(std::int64_t units, std::int64_t shared_bytes, const dispatch::Problem& problem,
                  const std::string& strategy, bool across_blocks) {
  const auto device = limits(true, units, shared_bytes);
  return py::make_tuple(values_of(dispatch::class_of(problem, device, across_blocks)),
                        dispatch::counts(problem, device, parse_strategy(strategy), across_blocks),
                        dispatch::trends(problem));
}
std::vector<std::string> shared_terms() {
  std::vector<std::string> out;
  for (int i = 0; i < dispatch::kTerms; ++i) {
    const auto term = static_cast<dispatch::Term>(i);
    if (dispatch::shared(term)) out.emplace_back(name(term));
  }
  return out;
}
// Products of float32 are exact, or by TF32.
MatmulPrecision precision(bool tf32) {
  return tf32 ? MatmulPrecision::high : MatmulPrecision::highest;
}
dispatch::Problem layer_problem(const Layer& layer, std::int64_t steps, std::int64_t batch,
                                bool training, bool tf32) {
  const Mode mode = training ? Mode::training : Mode::inference;
  return layer.problem({steps, batch}, mode, precision(tf32));
}
dispatch::Problem scan_problem(const std::string& dtype, std::int64_t steps, std::int64_t rows,
                               bool log_form) {
  return linear_scan_problem(
      {steps, 1, rows, parse_dtype(dtype), log_form ? ScanForm::log : ScanForm::linear});
}
std::unique_ptr<Workload> layer_workload(const Layer& layer, Device device, std::int64_t steps,
                                         std::int64_t batch, bool training, bool tf32) {
  return std::make_unique<LayerWorkload>(layer, device, steps, batch, training, precision(tf32));
}
std::unique_ptr<Workload> scan_workload(const std::string& dtype, Device device, std::int64_t steps,
                                        std::int64_t rows, bool log_form) {
  return std::make_unique<ScanWorkload>(parse_dtype(dtype), device, steps, rows, log_form);
}

}  // namespace

void bind_planning(py::module_& m) {
  py::class_<Profile, std::shared_ptr<Profile>>(m, "Profile")
      .def(py::init(&make_profile))
      .def_property_readonly("name", [](const Profile& p) { return p.name; })
      .def_property_readonly("origin", [](const Profile& p) { return p.origin; })
      .def_property_readonly("rules", &rules_of)
      .def_property_readonly("costs", &costs_of);
  m.def(
      "built_in_profile", [](const std::string& name) { return dispatch::find_profile(name); },
      py::return_value_policy::reference);
  m.def("features", [] { return names_of<dispatch::Feature>(dispatch::kFeatures); });
  m.def("terms", [] { return names_of<dispatch::Term>(dispatch::kTerms); });
  m.def("trends", [] { return dispatch::kTrends; });
  m.def("most_rules", [] { return dispatch::kMaxRules; });
  m.def("shared_terms", &shared_terms);
  m.def("strategies", [] { return names_of(dispatch::kStrategies); });
  py::class_<dispatch::Problem>(m, "Problem");
  m.def("layer_problem", &layer_problem, py::arg("layer"), py::arg("steps"), py::arg("batch"),
        py::arg("training"), py::arg("tf32") = false);
  m.def("scan_problem", &scan_problem);
  m.def("pick", &pick);
  m.def("counted", &counted);

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
      .def(py::init(&layer_workload), py::arg("layer"), py::arg("device"), py::arg("steps"),
           py::arg("batch"), py::arg("training"), py::arg("tf32") = false,
           py::call_guard<py::gil_scoped_release>())
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
