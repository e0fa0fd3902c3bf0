// SPDX-License-Identifier: Apache-2.0
// Names of options and what they stand for; an unknown one is an error that lists those there are.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "scanrnn/scanrnn.h"

namespace scanrnn {

using dispatch::Strategy;

template <class Range, class Name>
std::string quoted(const Range& values, Name&& name_of) {
  std::string out;
  for (const auto& value : values) {
    out += (out.empty() ? "'" : ", '") + std::string(name_of(value)) + "'";
  }
  return out;
}

template <class Range, class Name>
auto find_named(const char* argument, const std::string& wanted, const Range& values,
                Name&& name_of) {
  for (const auto& value : values) {
    if (wanted == name_of(value)) return value;
  }
  throw value_error(std::string(argument) + ": expected one of " + quoted(values, name_of) +
                    ", got '" + wanted + "'");
}

inline constexpr Dtype kDtypes[] = {Dtype::float64, Dtype::float32, Dtype::bfloat16,
                                    Dtype::float16};

inline Dtype parse_dtype(const std::string& text) {
  return find_named("dtype", text, kDtypes, [](Dtype d) { return name(d); });
}

// What arrays may have beyond these: a bare scan takes complex numbers, bools are resets, and
// integers count steps.
inline constexpr Dtype kArrayDtypes[] = {Dtype::float64, Dtype::float32,    Dtype::bfloat16,
                                         Dtype::float16, Dtype::complex128, Dtype::complex64,
                                         Dtype::boolean, Dtype::int64,      Dtype::int32};

inline Dtype parse_array_dtype(const std::string& text) {
  return find_named("dtype", text, kArrayDtypes, [](Dtype d) { return name(d); });
}

inline ScanForm parse_form(const std::string& text) {
  constexpr std::pair<const char*, ScanForm> kForms[] = {
      {"linear", ScanForm::linear}, {"log", ScanForm::log}, {"log_output", ScanForm::log_output}};
  return find_named("form", text, kForms, [](const auto& f) { return f.first; }).second;
}

inline dispatch::Batch parse_batch_layout(const std::string& text) {
  using dispatch::Batch;
  constexpr std::pair<const char*, Batch> kLayouts[] = {
      {"rectangular", Batch::rectangular}, {"ragged", Batch::ragged}, {"packed", Batch::packed}};
  return find_named("batch_layout", text, kLayouts, [](const auto& l) { return l.first; }).second;
}

inline Strategy parse_strategy(const std::optional<std::string>& text) {
  Strategy out = Strategy::automatic;
  if (text && !dispatch::parse(*text, out)) {
    find_named("strategy", *text, dispatch::kStrategies, [](Strategy s) { return name(s); });
  }
  return out;
}

inline Domain parse_domain(const std::string& text) {
  constexpr std::pair<const char*, Domain> kDomains[] = {{"log", Domain::log},
                                                         {"linear", Domain::linear}};
  return find_named("domain", text, kDomains, [](const auto& d) { return d.first; }).second;
}

inline Device parse_device(const std::string& text) {
  if (text == "auto") return cuda_available() ? Device::cuda() : Device::cpu();
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda();
  const std::string digits = text.rfind("cuda:", 0) == 0 ? text.substr(5) : "";
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    throw value_error("device: expected 'auto', 'cpu', 'cuda' or 'cuda:N', got '" + text + "'");
  }
  return Device::cuda(std::stoi(digits));
}

}  // namespace scanrnn
