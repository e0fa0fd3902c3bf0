// SPDX-License-Identifier: Apache-2.0
// Blocks of a cluster, which send values into one another's shared memory. A barrier there counts
// the bytes that have come, so that nobody asks twice. Code for 9.0 and later has them.
#pragma once

#include <cuda_runtime.h>

#include "scanrnn/scan/cuda/mbarrier.cuh"

namespace scanrnn::cluster {

// Where the block of this rank has what is at an address of shared memory here.
__device__ __forceinline__ std::uint32_t of_block(std::uint32_t address, int rank) {
  std::uint32_t out;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}
// Sends values to another block, whose barrier counts their bytes.
__device__ __forceinline__ void send(std::uint32_t to, std::uint32_t barrier, const float4& v) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2,%3,%4,%5}, [%1];" ::
          "r"(to),
      "r"(barrier), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
__device__ __forceinline__ void send(std::uint32_t to, std::uint32_t barrier, const float2& v) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2,%3}, [%1];" ::"r"(to),
      "r"(barrier), "f"(v.x), "f"(v.y)
      : "memory");
}

// The barrier: a phase is over once one thread has said how many bytes it has, and all have come.
struct Inbox : scan::cuda::Mbarrier {
  __device__ __forceinline__ void open() {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(1) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
};
// All threads of the cluster have come; nobody sends before that.
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

}  // namespace scanrnn::cluster
