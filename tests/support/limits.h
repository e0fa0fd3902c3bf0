// SPDX-License-Identifier: Apache-2.0
// What tests of operators compare with: wider numbers, and the ends of a type's own.
#pragma once

#include <limits>

namespace scanrnn::test {

using Real = long double;

template <class V>
constexpr V kInfinity = std::numeric_limits<V>::infinity();
template <class V>
constexpr V kNan = std::numeric_limits<V>::quiet_NaN();
template <class V>
constexpr Real kEpsilon = std::numeric_limits<V>::epsilon();

}  // namespace scanrnn::test
