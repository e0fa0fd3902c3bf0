// SPDX-License-Identifier: Apache-2.0
// What it means that a result conforms: each tensor within the table's tolerance of the reference.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/library.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace scanrnn::test {

void expect_forward(const Case& c, const Result& got, const oracle::Answer& want,
                    const std::string& what = "");

// `more`: relative, beyond what the table says. `as_cuda`: whether `got` was stored as CUDA does.
void expect_backward(const Case& c, const Result& got, const oracle::Answer& want,
                     const std::string& what = "", double more = 0, bool as_cuda = on_cuda());

inline void expect_conforms(const Case& c, const Result& got, const oracle::Answer& want,
                            const std::string& what = "", double more = 0) {
  expect_forward(c, got, want, what);
  expect_backward(c, got, want, what, more);
}

}  // namespace scanrnn::test
