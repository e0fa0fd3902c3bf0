// SPDX-License-Identifier: Apache-2.0
// What this machine has, and what this build has for it.
#include "platform.h"
#include "stack/runtime.h"

namespace scanrnn {

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> out;
  for (const Device::Kind kind : {Device::Kind::cpu, Device::Kind::cuda}) {
    const Runtime* runtime = find_runtime(kind);
    const int count = runtime ? runtime->count() : 0;
    for (int index = 0; index < count; ++index) out.push_back(runtime->device(index));
  }
  return out;
}

bool cuda_available() {
  const Runtime* cuda = find_runtime(Device::Kind::cuda);
  return cuda && cuda->count() > 0;
}

std::string build_info() {
  const Runtime* cuda = find_runtime(Device::Kind::cuda);
  return std::string("version: ") + SCANRNN_VERSION + "\ncompiler: " + compiler_name() +
         "\nblas: " SCANRNN_BLAS_NAME +
         "\ninstruction sets: " + find_runtime(Device::Kind::cpu)->code() +
         "\ncuda: " + (cuda ? cuda->code() : "no") + "\n";
}

}  // namespace scanrnn
