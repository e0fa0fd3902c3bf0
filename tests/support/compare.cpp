// SPDX-License-Identifier: Apache-2.0
// Comparisons of values.
#include "support/compare.h"

#include <cmath>
#include <limits>

namespace scanrnn::test {

namespace {

testing::AssertionResult mismatch(const std::string& what, std::size_t index, double got,
                                  double want, double error, double allowed) {
  return testing::AssertionFailure()
         << what << ": worst at [" << index << "]: got " << testing::PrintToString(got) << ", want "
         << testing::PrintToString(want) << ", error " << error << " > " << allowed;
}

testing::AssertionResult usable(const std::string& what, const std::vector<double>& got,
                                const std::vector<double>& want) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure()
           << what << ": " << got.size() << " values, want " << want.size();
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(want[i]) && !(want[i] < 0 && got[i] == want[i])) {  // m's logarithm of 0
      return testing::AssertionFailure() << what << ": the reference is " << want[i] << " at " << i;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace

testing::AssertionResult close(const std::string& what, const std::vector<double>& got,
                               const std::vector<double>& want, const Tolerance& tolerance,
                               double largest) {
  if (auto result = usable(what, got, want); !result) return result;
  for (double value : want) {
    if (std::isfinite(value)) largest = std::fmax(largest, std::fabs(value));
  }
  double worst = 0, worst_error = 0, worst_allowed = 0;
  std::size_t at = want.size();
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;  // infinite ones, too
    const double error = std::fabs(got[i] - want[i]);
    const double allowed =
        tolerance.scale * largest + tolerance.element * std::fabs(want[i]) + tolerance.floor;
    if (error <= allowed) continue;
    const double badness = error / std::fmax(allowed, std::numeric_limits<double>::min());
    if (at == want.size() || !(badness <= worst)) {
      worst = badness, worst_error = error, worst_allowed = allowed, at = i;
      if (std::isnan(badness)) break;
    }
  }
  if (at == want.size()) return testing::AssertionSuccess();
  return mismatch(what, at, got[at], want[at], worst_error, worst_allowed);
}

testing::AssertionResult close_rms(const std::string& what, const std::vector<double>& got,
                                   const std::vector<double>& want, double relative, double floor,
                                   const std::vector<double>& terms) {
  if (auto result = usable(what, got, want); !result) return result;
  long double errors = 0, reference = 0;
  double worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const long double error = std::fabs(static_cast<long double>(got[i]) - want[i]);
    errors += error * error;
    reference += static_cast<long double>(want[i]) * want[i];
    if (!(error <= worst)) worst = static_cast<double>(error), at = i;
  }
  for (double term : terms) reference += static_cast<long double>(term) * term;
  const double count = static_cast<double>(want.size());
  const auto error = static_cast<double>(std::sqrt(errors));
  const auto allowed =
      static_cast<double>(relative * std::sqrt(reference)) + floor * std::sqrt(count);
  if (error <= allowed) return testing::AssertionSuccess();
  return mismatch(what + " (rms)", at, got[at], want[at], error, allowed);
}

}  // namespace scanrnn::test
