// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main with a watchdog: a test that hangs ends the program, which says its name.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/watchdog.h"

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  const auto end = [](const std::string& words) {
    std::fprintf(stderr, "%s\n", words.c_str());
    std::fflush(nullptr);
    std::abort();
  };
  // Which GoogleTest deletes.
  testing::UnitTest::GetInstance()->listeners().Append(
      new scanrnn::test::Watchdog(scanrnn::test::seconds_of_a_test(), end));
  return RUN_ALL_TESTS();
}
