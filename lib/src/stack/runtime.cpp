// SPDX-License-Identifier: Apache-2.0
// Picks the runtime of a processor: the only place that asks whether CUDA was built.
#include "stack/runtime.h"

#include "cpu/runtime.h"
#include "cuda/runtime.h"

namespace scanrnn {

const Runtime* find_runtime(Device::Kind kind) {
#ifdef SCANRNN_WITH_CUDA
  if (kind == Device::Kind::cuda) return &cuda_runtime();
#endif
  return kind == Device::Kind::cpu ? &cpu_runtime() : nullptr;
}

}  // namespace scanrnn
