// SPDX-License-Identifier: Apache-2.0
// Launches of one kernel that take different amounts of shared memory.
#include <thread>

#include "support/cuda.h"

#include "scanrnn/scan/cuda/launch.cuh"

namespace scanrnn::test {
namespace {

constexpr std::size_t kMuch = 96 * 1024, kMore = 64 * 1024, kLittle = 1024;

// Leaves its last byte of shared memory, which it set to 1.
__global__ void use_all(int bytes, int* to) {
  extern __shared__ float4 memory[];
  auto* const last = reinterpret_cast<volatile unsigned char*>(memory) + bytes - 1;
  *last = 1;
  *to = *last;
}

class CudaLaunchTest : public CudaTest {
 protected:
  static cudaError_t launch(std::size_t bytes, const Buffer& to, cudaStream_t stream) {
    scan::Launch on;
    on.stream = stream;
    on.shared = static_cast<std::size_t>(shared_context(1).limits().shared_bytes);
    return scan::cuda::launch(use_all, 1, 1, bytes, on, static_cast<int>(bytes),
                              static_cast<int*>(to.data()));
  }
  static int allowed() {
    cudaFuncAttributes of;
    REQUIRE_CUDA(cudaFuncGetAttributes(&of, use_all));
    return of.maxDynamicSharedSizeBytes;
  }
};

// What one has been allowed another does not lose, or its launch would fail where they meet.
TEST_F(CudaLaunchTest, LessSharedMemoryTakesNothingFromAnother) {
  Buffer to(shared_context(1), sizeof(int));
  for (const std::size_t bytes : {kLittle, kMore, kMuch, kMore, kLittle}) {
    ASSERT_EQ(launch(bytes, to, nullptr), cudaSuccess);
    int last = 0;
    to.download(&last, sizeof last);
    EXPECT_EQ(last, 1) << bytes;
    if (bytes > kLittle) EXPECT_GE(allowed(), static_cast<int>(kMuch)) << "after " << bytes;
  }
}

TEST_F(CudaLaunchTest, ThreadsMayTakeDifferentAmounts) {
  std::thread threads[2];
  bool fine[2] = {true, true};
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&fine, i] {
      Stream stream;
      Context context = make_context(stream);
      Buffer to(context, sizeof(int));
      for (int repeat = 0; repeat < 200; ++repeat) {
        fine[i] = fine[i] && launch(i ? kMuch : kMore, to, stream.get()) == cudaSuccess;
      }
      REQUIRE_CUDA(cudaStreamSynchronize(stream.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fine[0] && fine[1]);
}

}  // namespace
}  // namespace scanrnn::test
