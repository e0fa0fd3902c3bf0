// SPDX-License-Identifier: Apache-2.0
// Products of a warp group in the emulator, which emulator.h includes: each warp makes its own
// rows. Columns come by descriptor, rows in registers as those of mma, or by descriptor, too. They
// are made at once, not while others run.
#pragma once

namespace emulated::ptx {

struct Descriptor {
  std::uint64_t bits;

  // Element k of the 16 that a product sums, in a row.
  std::uint16_t element(int row, int k) const {
    const auto field = [&](int at) { return static_cast<std::uint32_t>(bits >> at & 0x3fff) * 16; };
    const std::uint32_t own = shared_address(shared_memory());  // which has no bits of it
    return at<std::uint16_t>(own + field(0) + static_cast<std::uint32_t>(k / 8) * field(16) +
                             static_cast<std::uint32_t>(row / 8) * field(32) +
                             static_cast<std::uint32_t>(row % 8 * 16 + k % 8 * 2));
  }
};
template <std::size_t kSums, class A>
void wgmma(const char* types, float (&d)[kSums], A&& a, std::uint64_t b) {
  const bool bfloat = std::strstr(types, "bf16");
  const auto value = [&](std::uint16_t bits) {
    return bfloat ? from_bfloat(bits) : from_half(bits);
  };
  for (int i = 0; i < static_cast<int>(kSums); ++i) {
    const int row = lane() / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
    double sum = d[i];
    for (int k = 0; k < 16; ++k) {
      sum += static_cast<double>(value(a(row, k))) *
             static_cast<double>(value(Descriptor{b}.element(column, k)));
    }
    d[i] = static_cast<float>(sum);
  }
}
template <std::size_t kSums>
void wgmma(const char* types, float (&d)[kSums], const std::uint32_t (&a)[4], std::uint64_t b) {
  leave(a, sizeof a);
  sync_warp();
  const auto element = [](int row, int k) {
    const auto* words = static_cast<const std::uint32_t*>(left_by(row % 8 * 4 + k % 8 / 2));
    return static_cast<std::uint16_t>(words[k / 8 * 2 + row / 8] >> k % 2 * 16);
  };
  wgmma(types, d, element, b);
}
template <std::size_t kSums>
void wgmma(const char* types, float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
  const int first = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  wgmma(types, d, [&](int row, int k) { return Descriptor{a}.element(first + row, k); }, b);
}
template <class A>
void wgmma_mma_async_sync_aligned_m64n16k16_f32(const char* types, const char*, float (&d)[8],
                                                const A& a, std::uint64_t b) {
  wgmma(types, d, a, b);
}
template <class A>
void wgmma_mma_async_sync_aligned_m64n32k16_f32(const char* types, const char*, float (&d)[16],
                                                const A& a, std::uint64_t b) {
  wgmma(types, d, a, b);
}
template <class A>
void wgmma_mma_async_sync_aligned_m64n64k16_f32(const char* types, const char*, const char*,
                                                float (&d)[32], const A& a, std::uint64_t b) {
  wgmma(types, d, a, b);
}
template <std::size_t kSums>
void wgmma_fence_sync_aligned(float (&)[kSums]) {}
inline void wgmma_commit_group_sync_aligned() {}
template <std::size_t kSums>
void wgmma_wait_group_sync_aligned(float (&)[kSums], int = 0) {}
inline void wgmma_wait_group_sync_aligned() {}
inline void fence_proxy_async_shared() {}

}  // namespace emulated::ptx
