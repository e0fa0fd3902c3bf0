// SPDX-License-Identifier: Apache-2.0
// CUDA devices as the rest of the library sees them.
#pragma once

#include "stack/runtime.h"

namespace scanrnn {

const Runtime& cuda_runtime();

// Throws cuda_error when there is no such device, with how many there are.
DeviceInfo find_cuda_device(int index);

std::unique_ptr<Backend> make_cuda_backend(const ContextOptions& options);
Backend& cuda_counting_backend();

}  // namespace scanrnn
