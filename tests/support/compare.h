// SPDX-License-Identifier: Apache-2.0
// Comparisons that a NaN cannot pass, and that say where they failed.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace scanrnn::test {

// What a result may differ from its reference by. A component of all three is allowed at once.
struct Tolerance {
  double scale = 0;    // times the largest magnitude of the reference
  double element = 0;  // times the magnitude of the same element: rounding of the output
  double floor = 0;    // absolute: where the dtype has no more bits
};

// Every element within its tolerance; `largest` is a magnitude that the reference is known to come
// from, where its own values may all be smaller.
testing::AssertionResult close(const std::string& what, const std::vector<double>& got,
                               const std::vector<double>& want, const Tolerance& tolerance,
                               double largest = 0);

// The root of the mean square error, relative to that of the reference and of `terms`, if there are
// any: what each element was summed from.
testing::AssertionResult close_rms(const std::string& what, const std::vector<double>& got,
                                   const std::vector<double>& want, double relative, double floor,
                                   const std::vector<double>& terms = {});

// The same bits: not even the sign of a zero or the payload of a NaN may differ.
template <class T>
testing::AssertionResult same_bits(const std::string& what, const std::vector<T>& got,
                                   const std::vector<T>& want) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure()
           << what << ": " << got.size() << " values, want " << want.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0) {
      return testing::AssertionFailure()
             << what << ": bits differ at [" << i << "]: " << testing::PrintToString(got[i])
             << " and " << testing::PrintToString(want[i]);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace scanrnn::test
