// SPDX-License-Identifier: Apache-2.0
// Busy: its kernel, and the handshake with it.
#include "support/busy.h"

#include <thread>

namespace scanrnn::test {
namespace {

__device__ unsigned long long nanoseconds_now() {
  unsigned long long out;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(out));
  return out;
}

// Ends when `end` is not zero or after `most` nanoseconds, whatever happens on the host.
__global__ void keep_busy(int* begun, const volatile int* end, unsigned long long most) {
  atomicAdd_system(begun, 1);
  const unsigned long long start = nanoseconds_now();
  while (*end == 0 && nanoseconds_now() - start < most) __nanosleep(500);
}

}  // namespace

Busy::Busy(int multiprocessors, std::chrono::milliseconds most) {
  int device = 0, shared = 0;
  REQUIRE_CUDA(cudaGetDevice(&device));
  REQUIRE_CUDA(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  // All shared memory, so that one multiprocessor has one block, and none of a kernel that needs
  // some itself.
  REQUIRE_CUDA(
      cudaFuncSetAttribute(keep_busy, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  void* memory = nullptr;
  REQUIRE_CUDA(cudaHostAlloc(&memory, kWords * sizeof(int), cudaHostAllocMapped));
  words_ = static_cast<volatile int*>(memory);
  words_[kBegun] = words_[kEnd] = 0;
  auto* words = static_cast<int*>(memory);
  const auto limit = std::chrono::nanoseconds(most).count();
  keep_busy<<<static_cast<unsigned>(multiprocessors), 1, static_cast<std::size_t>(shared),
              stream_.get()>>>(words + kBegun, words + kEnd,
                               static_cast<unsigned long long>(limit));
  REQUIRE_CUDA(cudaGetLastError());
  while (words_[kBegun] < multiprocessors && stream_.busy()) std::this_thread::yield();
}

Busy::~Busy() {
  release();
  cudaStreamSynchronize(stream_.get());
  cudaFreeHost(const_cast<int*>(words_));
}

void Busy::release() { words_[kEnd] = 1; }

}  // namespace scanrnn::test
