// SPDX-License-Identifier: Apache-2.0
// The only place that asks what machine this is.
#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "api/check.h"
#include "cpu/kernels/table.h"
#include "cuda/device.h"
#include "platform.h"
#ifdef SCANRNN_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace scanrnn {

const CpuKernels& cpu_kernels_sse4();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

namespace {

struct InstructionSet {
  const char* name;
  bool supported;
  const CpuKernels& (*table)();
};

// Best first.
std::vector<InstructionSet> instruction_sets() {
  return {
#ifdef SCANRNN_WITH_AVX512
      {"avx512", runs_x86_64(4), cpu_kernels_avx512},
#endif
#ifdef SCANRNN_WITH_AVX2
      {"avx2", runs_x86_64(3), cpu_kernels_avx2},
#endif
#ifdef SCANRNN_WITH_SSE4
      {"sse4", runs_x86_64(2), cpu_kernels_sse4},
#endif
  };
}

// SCANRNN_ISA caps the choice, to test a lesser one on a better machine.
const CpuKernels& choose() {
  const char* cap = std::getenv("SCANRNN_ISA");
  bool reached = cap == nullptr;
  for (const InstructionSet& isa : instruction_sets()) {
    reached = reached || std::string(cap) == isa.name;
    if (reached && isa.supported) return isa.table();
  }
  throw error(cap ? std::string("SCANRNN_ISA: this processor or build cannot run ") + cap
                  : "this processor has none of the instruction sets of this build");
}

#ifdef SCANRNN_WITH_CUDA
std::string cuda_build() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10) +
         ", code for " SCANRNN_CUDA_ARCHITECTURES;
}
// Without a driver there are no devices; that is no error until one is asked for.
int cuda_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}
DeviceInfo cuda_device(int index) {
  cudaDeviceProp properties{};
  DeviceInfo out;
  out.device = Device::cuda(index);
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return out;
  out.name = properties.name;
  out.units = properties.multiProcessorCount;
  out.memory = static_cast<std::int64_t>(properties.totalGlobalMem);
  out.shared_memory = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  out.architecture = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  return out;
}
#else
std::string cuda_build() { return "no"; }
int cuda_count() { return 0; }
DeviceInfo cuda_device(int) { return {}; }
#endif

}  // namespace

DeviceInfo find_cuda_device(int index) {
  if (index < 0 || index >= cuda_count()) {
    throw cuda_error("device: " + name(Device::cuda(index)) +
                     " was asked for; CUDA devices here: " + std::to_string(cuda_count()));
  }
  return cuda_device(index);
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& table = choose();
  return table;
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> out(1);
  DeviceInfo& cpu = out.front();
  cpu.name = processor_name();
  cpu.units = std::min(omp_get_max_threads(), omp_get_num_procs());
  cpu.memory = physical_memory();
  cpu.architecture = cpu_kernels().name;
  for (int index = 0; index < cuda_count(); ++index) out.push_back(cuda_device(index));
  return out;
}

bool cuda_available() { return cuda_count() > 0; }

std::string build_info() {
  std::string sets;
  for (const InstructionSet& isa : instruction_sets())
    sets = isa.name + (sets.empty() ? "" : " " + sets);
  return std::string("version: ") + SCANRNN_VERSION + "\ncompiler: " + compiler_name() +
         "\nblas: " SCANRNN_BLAS_NAME "\ninstruction sets: " + sets + "\ncuda: " + cuda_build() +
         "\n";
}

}  // namespace scanrnn
