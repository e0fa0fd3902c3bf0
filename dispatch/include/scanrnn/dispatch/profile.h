// SPDX-License-Identifier: Apache-2.0
// Measured thresholds of one device. Plain data: files of them are read elsewhere.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn::dispatch {

// "rows per unit" is B*H over the device's units: multiprocessors, or the threads of a CPU.
struct Thresholds {
  std::int64_t direct_max_tokens;           // B*T up to which one launch does everything
  std::int64_t parallel_min_steps;          // T from which splitting time can pay
  std::int64_t parallel_max_rows_per_unit;  // and rows per unit up to which it does
  std::int64_t blocks_max_rows_per_unit;    // CUDA: and up to which it is split over blocks
};

struct Profile {
  char name[64];    // "cpu-generic", "sm_90"
  char origin[96];  // "built in", or the file that it was read from
  Thresholds inference, training;
};

// The profiles that an unknown device falls back to, and those measured on a device, by the name of
// its architecture ("sm_90"), null when there is none. Defined by the build from profiles/*.json.
const Profile& generic_cpu_profile();
const Profile& generic_cuda_profile();
const Profile* find_profile(const std::string& name);

}  // namespace scanrnn::dispatch
#pragma GCC visibility pop
