// SPDX-License-Identifier: Apache-2.0
// What the library says when it refuses.
#pragma once

#include <string>

#include "scanrnn/error.h"

namespace scanrnn::test {

// The words of an E; what else is thrown goes on.
template <class E = error, class F>
std::string message(F&& work) {
  try {
    work();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace scanrnn::test
