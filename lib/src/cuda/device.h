// SPDX-License-Identifier: Apache-2.0
// CUDA devices as the rest of the library sees them; device_query.cpp is where they are asked.
#pragma once

#include "stack/backend.h"

namespace scanrnn {

// Throws cuda_error when there is no such device, with how many there are.
DeviceInfo find_cuda_device(int index);

std::unique_ptr<Backend> make_cuda_backend(const ContextOptions& options);
Backend& cuda_counting_backend();

}  // namespace scanrnn
