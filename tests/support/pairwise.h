// SPDX-License-Identifier: Apache-2.0
// A small set of cases in which every value of every factor meets every value of every other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

#include "support/random.h"

namespace scanrnn::test {

// A pair of values: value a of factor i and value b of factor j, i < j.
using Pair = std::tuple<std::size_t, int, std::size_t, int>;
inline Pair pair_of(std::size_t i, int a, std::size_t j, int b) {
  return i < j ? Pair{i, a, j, b} : Pair{j, b, i, a};
}

// sizes[i] is the number of values of factor i; each row of the result picks one of each. Greedy:
// a row starts from a pair that no row has yet and takes, factor by factor, what adds most pairs.
inline std::vector<std::vector<int>> pairwise(const std::vector<int>& sizes) {
  const std::size_t factors = sizes.size();
  std::set<Pair> open;
  for (std::size_t i = 0; i < factors; ++i) {
    for (std::size_t j = i + 1; j < factors; ++j) {
      for (int a = 0; a < sizes[i]; ++a) {
        for (int b = 0; b < sizes[j]; ++b) open.insert({i, a, j, b});
      }
    }
  }
  const auto gain = [&](const std::vector<int>& row, std::size_t i, int value) {
    int out = 0;
    for (std::size_t j = 0; j < factors; ++j) {
      if (j != i && row[j] >= 0) out += static_cast<int>(open.count(pair_of(i, value, j, row[j])));
    }
    return out;
  };
  Random random(2024);
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> best;
    int best_gain = 0;
    for (int attempt = 0; attempt < 10; ++attempt) {
      std::vector<int> row(factors, -1);
      const auto [i0, a0, j0, b0] = *open.begin();
      row[i0] = a0, row[j0] = b0;
      int total = 1;
      const auto start = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(factors)));
      for (std::size_t n = 0; n < factors; ++n) {
        const std::size_t i = (start + n) % factors;
        if (row[i] >= 0) continue;
        const auto first = static_cast<int>(random.below(sizes[i]));  // ties go round
        int most = -1, chosen = first;
        for (int k = 0; k < sizes[i]; ++k) {
          const int value = (first + k) % sizes[i], adds = gain(row, i, value);
          if (adds > most) most = adds, chosen = value;
        }
        row[i] = chosen;
        total += most;
      }
      if (total > best_gain) best_gain = total, best = row;
    }
    for (std::size_t i = 0; i < factors; ++i) {
      for (std::size_t j = i + 1; j < factors; ++j) open.erase({i, best[i], j, best[j]});
    }
    rows.push_back(best);
  }
  return rows;
}

}  // namespace scanrnn::test
