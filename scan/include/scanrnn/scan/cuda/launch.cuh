// SPDX-License-Identifier: Apache-2.0
// How the kernels are launched: each takes its places while the one before it on the stream ends.
#pragma once

#include <cuda_runtime.h>

#include <limits>

#include "scanrnn/scan/op.h"

namespace scanrnn::scan {

// What a block may take of shared memory on any device from compute capability 8.0 on.
inline constexpr std::size_t kLeastShared = 99 * 1024;

// What a launch needs besides its arguments; nothing here asks the device. `units` is the number of
// multiprocessors, `shared` the bytes of shared memory that a block may take.
struct Launch {
  cudaStream_t stream = nullptr;
  int units = 1;
  std::size_t shared = kLeastShared;
};

namespace cuda {

// Waits until everything before this kernel on its stream is over and its writes can be seen. Every
// thread of a kernel that launch_early() launches calls it before it touches global memory, but for
// what clear_exchange() allows.
__device__ __forceinline__ void await_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel on the stream, if launched early, start before this one is at its end: once
// every block has called it.
__device__ __forceinline__ void release_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Bytes of shared memory beside what a kernel declares: what a block takes, and what one may take
// on the device. A kernel is allowed all of that, once: a limit that followed `taken` could be
// lowered by another thread before this one has launched.
struct SharedBytes {
  std::size_t taken = 0, most = 0;
};

// Launches a kernel whose blocks may take their places while the kernel before it on the stream
// ends, and wait there: the gap between the two is shorter. Only code compiled for 9.0 or later
// waits by itself; other code is launched as ever.
template <class... Parameters, class... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads,
                         const SharedBytes& shared, cudaStream_t stream,
                         const Arguments&... arguments) {
  cudaFuncAttributes compiled;
  auto status = cudaFuncGetAttributes(&compiled, kernel);
  if (status != cudaSuccess) return status;
  if (shared.taken > static_cast<std::size_t>(compiled.maxDynamicSharedSizeBytes)) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared.most - compiled.sharedSizeBytes));
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared.taken;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = compiled.ptxVersion >= 90 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The same of so many blocks beside one another, for a Launch whose `shared` every launch on its
// device has.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), Index blocks, int threads, std::size_t shared,
                   const Launch& on, const Arguments&... arguments) {
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  return launch_early(kernel, dim3(static_cast<unsigned>(blocks)), threads, {shared, on.shared},
                      on.stream, arguments...);
}

}  // namespace cuda
}  // namespace scanrnn::scan
