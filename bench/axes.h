// SPDX-License-Identifier: Apache-2.0
// The sizes at which the engine is measured by itself, on the CPU and on CUDA alike.
#pragma once

#include <cstdint>

namespace scanrnn::bench {

struct Shape {
  std::int64_t batch, steps, hidden;
  std::int64_t other_input = 0;  // the size of x where it is not H

  std::int64_t input() const { return other_input > 0 ? other_input : hidden; }
  std::int64_t rows() const { return batch * hidden; }
  std::int64_t elements() const { return rows() * steps; }
};

inline constexpr Shape kShapes[] = {
    {8, 4096, 1536}, {16, 1024, 768}, {64, 1024, 1024}, {1, 65536, 1024}, {1, 1 << 20, 64},
};

// So few rows for so many steps that whoever walks them one by one is not worth its time.
inline bool hopeless_to_walk(const Shape& s) { return s.steps >= 65536 && s.rows() <= 1024; }

}  // namespace scanrnn::bench
