// SPDX-License-Identifier: Apache-2.0
// The CPU as the rest of the library sees it.
#pragma once

#include <string>

#include "stack/runtime.h"

namespace scanrnn {

const Runtime& cpu_runtime();
// The instruction set of the kernels, "AVX2"; empty where this processor runs none of the build's.
std::string cpu_architecture();

std::unique_ptr<Backend> make_cpu_backend(const ContextOptions& options);
Backend& cpu_counting_backend();

}  // namespace scanrnn
