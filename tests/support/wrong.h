// SPDX-License-Identifier: Apache-2.0
// What tests of wrong arguments share: a stack to be called wrongly, and what the errors must say.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/case.h"

namespace scanrnn::test {

// `call` throws an E whose message has each of these in it.
template <class E, class F>
void expect_error(F&& call, const std::vector<std::string>& words) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; wanted a message with: " << words[0];
  } catch (const E& e) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos)
          << "\"" << e.what() << "\" lacks \"" << word << "\"";
    }
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another type of exception: " << e.what();
  }
}

inline Case error_case(bool batch_first = false) {
  Case c;
  c.layer.input_size = 5;
  c.layer.hidden_size = 7;
  c.layer.num_layers = 2;
  c.layer.bidirectional = true;
  c.layer.batch_first = batch_first;
  c.steps = 11;
  c.batch = 3;
  return c;
}

}  // namespace scanrnn::test
