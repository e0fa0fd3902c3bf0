// SPDX-License-Identifier: Apache-2.0
// Numbers that are the same on every machine: splitmix64, and nothing of <random>'s distributions.
#pragma once

#include <cstdint>
#include <vector>

namespace scanrnn::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n));
  }
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  }
  std::vector<double> uniform(std::int64_t count, double low, double high) {
    std::vector<double> out(static_cast<std::size_t>(count));
    for (double& value : out) value = uniform(low, high);
    return out;
  }

 private:
  std::uint64_t state_;
};

}  // namespace scanrnn::test
