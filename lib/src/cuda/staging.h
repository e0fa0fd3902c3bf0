// SPDX-License-Identifier: Apache-2.0
// Copies between pageable memory of the host and a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "cuda/status.h"

namespace scanrnn {

// Pinned host memory through which pageable memory goes to and from a device: two chunks in turn,
// so that one is filled or emptied while the other travels.
class Staging {
 public:
  Staging() {
    for (Chunk& chunk : chunks_) {
      SCANRNN_CUDA(cudaHostAlloc(&chunk.memory, kChunk, cudaHostAllocDefault));
      SCANRNN_CUDA(cudaEventCreateWithFlags(&chunk.idle, cudaEventDisableTiming));
    }
  }
  ~Staging() {
    const BesideCaptures beside;
    for (Chunk& chunk : chunks_) {
      if (chunk.idle) cudaEventSynchronize(chunk.idle);
      if (chunk.idle) cudaEventDestroy(chunk.idle);
      cudaFreeHost(chunk.memory);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Returns when `host` has been read.
  void upload(void* device, const void* host, std::size_t bytes, cudaStream_t stream) {
    for (std::size_t at = 0; at < bytes; at += kChunk) {
      const std::size_t count = std::min(kChunk, bytes - at);
      const Chunk& chunk = chunk_at(at);
      SCANRNN_CUDA(cudaEventSynchronize(chunk.idle));
      std::memcpy(chunk.memory, static_cast<const char*>(host) + at, count);
      SCANRNN_CUDA(cudaMemcpyAsync(static_cast<char*>(device) + at, chunk.memory, count,
                                   cudaMemcpyHostToDevice, stream));
      SCANRNN_CUDA(cudaEventRecord(chunk.idle, stream));
    }
  }
  // Returns when `host` has been written.
  void download(void* host, const void* device, std::size_t bytes, cudaStream_t stream) {
    std::size_t asked = 0;
    for (std::size_t at = 0; at < bytes; at += kChunk) {
      for (; asked < std::min(bytes, at + 2 * kChunk); asked += kChunk) {
        const Chunk& chunk = chunk_at(asked);
        SCANRNN_CUDA(cudaEventSynchronize(chunk.idle));
        SCANRNN_CUDA(cudaMemcpyAsync(chunk.memory, static_cast<const char*>(device) + asked,
                                     std::min(kChunk, bytes - asked), cudaMemcpyDeviceToHost,
                                     stream));
        SCANRNN_CUDA(cudaEventRecord(chunk.idle, stream));
      }
      const Chunk& chunk = chunk_at(at);
      SCANRNN_CUDA(cudaEventSynchronize(chunk.idle));
      std::memcpy(static_cast<char*>(host) + at, chunk.memory, std::min(kChunk, bytes - at));
    }
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{4} << 20;
  struct Chunk {
    void* memory = nullptr;
    cudaEvent_t idle = nullptr;  // its last copy is done
  };
  Chunk& chunk_at(std::size_t offset) { return chunks_[offset / kChunk % 2]; }

  Chunk chunks_[2];
};

}  // namespace scanrnn
