// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory and blocks of a cluster in the emulator, which emulator.h includes.
#pragma once

namespace emulated::ptx {

// An mbarrier's 64 bits: threads of a phase, those that it still waits for, its number, and bytes
// that it waits for, less than none where they come early.
struct Phases {
  std::uint16_t threads, left;
  std::int32_t over : 8, bytes : 24;

  void look() {
    if (left == 0 && bytes == 0) left = threads, over = (over + 1) % 2;
  }
};
inline void mbarrier_init_shared_b64(std::uint32_t p, int threads) {
  at<Phases>(p) = {static_cast<std::uint16_t>(threads), static_cast<std::uint16_t>(threads), 0, 0};
}
inline void mbarrier_arrive_shared_b64(std::uint32_t p) {
  --at<Phases>(p).left;
  at<Phases>(p).look();
}
inline void mbarrier_arrive_expect_tx_shared(std::uint32_t p, int bytes) {
  at<Phases>(p).bytes += bytes;
  mbarrier_arrive_shared_b64(p);
}
inline void fence_mbarrier_init_release_cluster() {}
inline void mapa_shared(std::uint32_t& out, std::uint32_t address, int rank) {
  out = cluster_address(address, rank);
}
template <class... V>
void st_async_shared(std::uint32_t to, std::uint32_t barrier, V... v) {
  const float values[] = {v...};
  send_to_block(to, barrier, values, sizeof...(v));
}
inline void barrier_cluster_arrive_release_aligned() { meet_cluster(); }
inline void mbarrier_test_wait_parity_shared_b64(unsigned& over, std::uint32_t p, unsigned parity) {
  yield();
  land_sent();
  over = at<Phases>(p).over % 2 != parity;
}

}  // namespace emulated::ptx
