// SPDX-License-Identifier: Apache-2.0
// What the library says when it refuses.
#pragma once

#include <string>

#include "scanrnn/error.h"

namespace scanrnn::test {

template <class F>
std::string message(F&& work) {
  try {
    work();
  } catch (const error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace scanrnn::test
