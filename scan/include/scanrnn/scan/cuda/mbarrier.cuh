// SPDX-License-Identifier: Apache-2.0
// An mbarrier: a barrier in shared memory between warps of a block.
#pragma once

#include "scanrnn/scan/cuda/memory.cuh"

namespace scanrnn::scan {
namespace cuda {

// It has one phase after another. A warp arrives once in each, and may wait for a phase that is
// over.
struct Mbarrier {
  std::uint64_t bits;

  __device__ __forceinline__ unsigned address() {
    return static_cast<unsigned>(__cvta_generic_to_shared(&bits));
  }
  __device__ __forceinline__ void init(int warps) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(warps * kLanes)
                 : "memory");
  }
  // By every lane: it costs no more than by one, and each lane's writes are ordered by its own.
  __device__ __forceinline__ void arrive() {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(address())
                 : "memory");
  }
  __device__ __forceinline__ bool test(unsigned phase) {
    unsigned over;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(over)
        : "r"(address()), "r"(phase % 2)
        : "memory");
    return __all_sync(~0u, over);
  }
  __device__ __forceinline__ void wait(unsigned phase) {
#if __CUDA_ARCH__ >= 900
    // The hardware lets the warp sleep, and gives up now and then.
    asm volatile(
        "{\n.reg .pred p;\nagain%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
        "@!p bra again%=;\n}" ::"r"(address()),
        "r"(phase % 2)
        : "memory");
    __syncwarp();
#else
    while (!test(phase)) {
    }
#endif
  }
};

}  // namespace cuda
}  // namespace scanrnn::scan
