// SPDX-License-Identifier: Apache-2.0
// The block kernel hands states over by named barriers, which racecheck does not follow. Here it
// runs by barriers in shared memory, which racecheck does, and has the same bits.
#include <cstring>

#include "cuda/kernels/launch.cuh"
#include "recurrence/scan.h"
#include "support/cuda.h"

namespace scanrnn::test {
namespace {

using scan::Index;

constexpr Index kLines = 2, kRows = 70, kSteps = 300;
constexpr auto kCount = static_cast<std::size_t>(kLines * kRows * kSteps);

class CudaTurnsTest : public CudaTest {
 protected:
  // h_t = h_{t-1} / 2 + (1 or -1), from zero.
  template <class T, template <int> class Turns>
  static std::vector<T> run() {
    using Memory = scan::Units<T>;
    using Op = scan::AffineOp<typename Memory::V>;
    Context& context = shared_context(1);
    std::vector<T> decays(kCount), inputs(kCount), out(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      decays[i] = static_cast<T>(0.5f);
      inputs[i] = static_cast<T>(i % 3 ? 1.0f : -1.0f);
    }
    const std::size_t bytes = kCount * sizeof(T);
    Buffer a(context, bytes), b(context, bytes), h(context, bytes);
    a.upload(decays.data(), bytes);
    b.upload(inputs.data(), bytes);
    const auto walk = [](const Buffer& buffer) {  // [T,B,H]
      return Grid<T>{static_cast<T*>(buffer.data()), kRows, kLines * kRows};
    };
    const BareSource<Memory, false> source{
        as_const(walk(a)), as_const(walk(b)), {}, {}, kRows, kSteps};
    CudaSchedule s;
    s.extent = {kLines, kRows, kSteps};
    REQUIRE_CUDA((scan::launch_block<Op, kCudaBlockWarps, Turns>(
        s.extent, source, BareSink<Memory>{walk(h), kRows}, ends_of<Memory>(s), scan::Launch{})));
    h.download(out.data(), bytes);
    return out;
  }

  template <class T>
  static void check() {
    const std::vector<T> shipped = run<T, scan::cuda::BarrierTurns>();
    const std::vector<T> followed = run<T, scan::cuda::SignalTurns>();
    EXPECT_EQ(std::memcmp(shipped.data(), followed.data(), kCount * sizeof(T)), 0);
    double state = 0;
    for (Index t = 0; t < kSteps; ++t) {  // of the first row
      const auto at = static_cast<std::size_t>(t * kLines * kRows);
      state = state / 2 + (at % 3 ? 1 : -1);
      ASSERT_NEAR(static_cast<double>(static_cast<float>(followed[at])), state, 0.02) << t;
    }
  }
};

TEST_F(CudaTurnsTest, Float32) { check<float>(); }
TEST_F(CudaTurnsTest, BFloat16) { check<__nv_bfloat16>(); }

}  // namespace
}  // namespace scanrnn::test
