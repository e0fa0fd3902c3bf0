// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "emulator.h"

namespace emulated {

// SCANRNN_EMULATED_SEED, or 1: of every order that is the emulator's own choice.
unsigned seed();

// Runs a grid to its end.
void run_grid(const How& how, const std::function<void()>& thread);

}  // namespace emulated
