// SPDX-License-Identifier: Apache-2.0
// Matrix products of dense cells on the CPU: a few rows at a time with weights packed in the order
// in which they are read. Included for each instruction set.
#pragma once

#include <algorithm>
#include <utility>

#include "cpu/dense.h"
#include "cpu/kernels/simd.h"

namespace scanrnn::HWY_NAMESPACE {

// ---- the product: `rows` of h times a panel of packed weights, [depth][kWidth] vectors

inline constexpr int kMostRows = kRegisters == 32 ? 6 : 3, kMostWidth = 4;

template <class T>
using Product = void (*)(const T* panel, const T* const* rows, Index depth, bool add, T* out);

// out[row][kWidth] vectors = (add ? out : 0) + the product. Few sums take even and odd steps apart,
// so that there are enough of them to hide the latency of an fma.
template <class T, int kRows, int kWidth>
void product(const T* panel, const T* const* rows, Index depth, bool add, T* out) {
  using V = Vec<T>;
  constexpr int kApart = kRows * kWidth < 8 ? 2 : 1;
  V sums[kApart][kRows][kWidth];
  const T* row[kRows];
  for (int m = 0; m < kRows; ++m) {
    row[m] = rows[m];
    for (int n = 0; n < kWidth; ++n) {
      sums[0][m][n] = add ? V::load(out + (m * kWidth + n) * V::kLanes) : V(0);
      if constexpr (kApart == 2) sums[1][m][n] = V(0);
    }
  }
  const auto multiply = [&](Index k, int apart) SCANRNN_INLINE_LAMBDA {
    V factor[kRows];
    for (int m = 0; m < kRows; ++m) factor[m] = V::all(row[m][k]);
    for (int n = 0; n < kWidth; ++n) {
      const V weight = V::load(panel + (k * kWidth + n) * V::kLanes);
      for (int m = 0; m < kRows; ++m) {
        sums[apart][m][n] = fma(factor[m], weight, sums[apart][m][n]);
      }
    }
  };
  Index k = 0;
  for (; k + kApart <= depth; k += kApart) {
    for (int apart = 0; apart < kApart; ++apart) multiply(k + apart, apart);
  }
  for (; k < depth; ++k) multiply(k, 0);
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kWidth; ++n) {
      V sum = sums[0][m][n];
      if constexpr (kApart == 2) sum = sum + sums[1][m][n];
      sum.store(out + (m * kWidth + n) * V::kLanes);
    }
  }
}

template <class T, int... kRows>
Product<T> product_of(int width, int rows, std::integer_sequence<int, kRows...>) {
  static constexpr Product<T> kAll[kMostWidth][kMostRows] = {{&product<T, kRows + 1, 1>...},
                                                             {&product<T, kRows + 1, 2>...},
                                                             {&product<T, kRows + 1, 3>...},
                                                             {&product<T, kRows + 1, 4>...}};
  return kAll[width - 1][rows - 1];
}
template <class T>
Product<T> product_of(int width, int rows) {
  return product_of<T>(width, rows, std::make_integer_sequence<int, kMostRows>());
}

// ---- the share of a thread: vectors of columns, and lines

struct DenseShare {
  scan::Range vectors, lines;
  scan::Team columns, groups;  // threads with the same lines, and those with the same columns
  int members() const { return columns.size * groups.size; }  // threads that have a share
};

// The team as `groups` groups, each of which shares all columns; as more where that leaves threads
// to spare.
template <class T>
DenseShare share_of(const scan::Team& team, Index width, Index lines, int groups = 1) {
  const Index vectors = (width + Vec<T>::kLanes - 1) / Vec<T>::kLanes;
  const int columns = static_cast<int>(std::min<Index>(team.size / groups, vectors));
  groups = static_cast<int>(std::min<Index>(team.size / columns, lines));
  DenseShare out{{}, {}, {team.rank % columns, columns}, {team.rank / columns, groups}};
  if (team.rank >= out.members()) return out;
  out.vectors = out.columns.share(vectors);
  out.lines = out.groups.share(lines);
  return out;
}

// Groups of threads that go backward, each with lines of its own. What a step hands over is all
// cotangents of its sums, several times the state, and comes slowly from a core that shares no
// cache; so groups wait for no other. In return each reads all of R, which takes no longer than a
// few lines' products while R is in the cache.
template <class T>
int backward_groups(const scan::Team& team, const DenseWeight<T>& w, Index lines) {
  constexpr Index kLeastLines = kRegisters == 32 ? 4 : 6, kMostBytes = Index{8} << 20;
  const Index bytes = w.gates * w.hidden * w.columns * static_cast<Index>(sizeof(T));
  int groups = 1;
  for (int i = 2; bytes <= kMostBytes && i <= team.size && i * kLeastLines <= lines; ++i) {
    if (team.size % i == 0 && lines % i == 0) groups = i;
  }
  return groups;
}

// Calls use(first line, lines) for groups of at most kMostRows lines, alike in size.
template <class F>
SCANRNN_INLINE void for_groups(scan::Range lines, F&& use) {
  const Index count = lines.end - lines.begin;
  const Index groups = (count + kMostRows - 1) / kMostRows;
  for (Index i = 0; i < groups; ++i) {
    const Index first = count * i / groups, last = count * (i + 1) / groups;
    use(lines.begin + first, static_cast<int>(last - first));
  }
}

// Calls use(first vector, vectors) for panels of at most kMostWidth vectors.
template <class F>
SCANRNN_INLINE void for_panels(scan::Range vectors, F&& use) {
  for (Index first = vectors.begin; first < vectors.end; first += kMostWidth) {
    use(first, static_cast<int>(std::min<Index>(kMostWidth, vectors.end - first)));
  }
}

// ---- packing

// For each vector of units a panel [depth][gates]: all gates of these units at once.
template <class T>
void pack_gates(const scan::Team& team, const DenseWeight<T>& w, T* packed) {
  constexpr Index kLanes = Vec<T>::kLanes, kRun = 64 / sizeof(T);  // a cache line of each row
  const scan::Range mine = team.share((w.hidden + kLanes - 1) / kLanes);
  for (Index vector = mine.begin; vector < mine.end; ++vector) {
    T* panel = packed + vector * w.columns * w.gates * kLanes;
    for (Index first = 0; first < w.columns; first += kRun) {
      const Index last = std::min(first + kRun, w.columns);
      for (int gate = 0; gate < w.gates; ++gate) {
        for (Index lane = 0; lane < kLanes; ++lane) {
          const Index unit = vector * kLanes + lane;
          const T* from = w.data + (gate * w.hidden + unit) * w.stride;
          if (unit < w.hidden) prefetch(from + last);
          for (Index k = first; k < last; ++k) {
            panel[(k * w.gates + gate) * kLanes + lane] = unit < w.hidden ? from[k] : T(0);
          }
        }
      }
    }
  }
}

// For each panel of a share's columns [gates * H][panel]: sums over the gates' cotangents.
template <class T>
void pack_columns(const scan::Team& team, Index lines, const DenseWeight<T>& w, T* packed) {
  const int groups = backward_groups(team, w, lines);
  const DenseShare mine = share_of<T>(team, w.columns, groups, groups);
  const Index rows = w.gates * w.hidden;
  const scan::Range part = mine.groups.share(rows);
  for_panels(mine.vectors, [&](Index first, int width) {
    T* panel = packed + first * rows * Vec<T>::kLanes;
    for (Index row = part.begin; row < part.end; ++row) {
      for (int n = 0; n < width; ++n) {
        const Vec<T> units = Lanes<T>::read(w.data + row * w.stride, first + n, w.columns);
        units.store(panel + (row * width + n) * Vec<T>::kLanes);
      }
    }
  });
}

// ---- products with many tokens, which are numbered line by line within a step

// Calls write(token, width vectors) for each token's row of `from` times a panel.
template <class T, class Write>
SCANRNN_INLINE void multiply(scan::Range tokens, const DenseTokens<T>& a, const T* panel, int width,
                             Index depth, Write&& write) {
  T products[kMostRows * kMostWidth * Vec<T>::kLanes];
  Index line = tokens.begin % a.lines, t = tokens.begin / a.lines;
  for_groups(tokens, [&](Index, int count) {
    const T* rows[kMostRows];
    T* to[kMostRows];
    for (int m = 0; m < count; ++m) {
      rows[m] = a.from.data + line * a.from.line + t * a.from.step;
      to[m] = a.to.data + line * a.to.line + t * a.to.step;
      if (++line == a.lines) line = 0, ++t;
    }
    product_of<T>(width, count)(panel, rows, depth, false, products);
    for (int m = 0; m < count; ++m) write(to[m], products + m * width * Vec<T>::kLanes);
  });
}

template <class T>
void project(const scan::Team& team, const DenseWeight<T>& w, const T* packed,
             const DenseTokens<T>& a) {
  using V = Vec<T>;
  const DenseShare mine = share_of<T>(team, w.hidden, a.lines * a.steps);
  for (Index vector = mine.vectors.begin; vector < mine.vectors.end; ++vector) {
    multiply(mine.lines, a, packed + vector * w.columns * w.gates * V::kLanes, w.gates, w.columns,
             [&](T* to, const T* products) {
               for (int gate = 0; gate < w.gates; ++gate) {
                 Lanes<T>::write(to + gate * w.hidden, vector, w.hidden,
                                 V::load(products + gate * V::kLanes));
               }
             });
  }
}

template <class T>
void project_back(const scan::Team& team, const DenseWeight<T>& w, const T* packed,
                  const DenseTokens<T>& a, bool accumulate) {
  using V = Vec<T>;
  const DenseShare mine = share_of<T>(team, w.columns, a.lines * a.steps);
  const Index rows = w.gates * w.hidden;
  for_panels(mine.vectors, [&](Index vector, int width) {
    multiply(mine.lines, a, packed + vector * rows * V::kLanes, width, rows,
             [&](T* to, const T* products) {
               for (int n = 0; n < width; ++n) {
                 V value = V::load(products + n * V::kLanes);
                 if (accumulate) value = value + Lanes<T>::read(to, vector + n, w.columns);
                 Lanes<T>::write(to, vector + n, w.columns, value);
               }
             });
  });
}

}  // namespace scanrnn::HWY_NAMESPACE
