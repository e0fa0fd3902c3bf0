// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of dense cells: R h for a few batch entries and one vector of units at a time,
// and the cell's step on what comes out. Included by cpu_kernels.cpp for each instruction set.
#pragma once

#include <algorithm>

#include "cpu_dense.h"
#include "scanrnn/cells/step_cell.h"
#include "simd.h"

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
  const auto multiply = [&](Index k, int apart) __attribute__((always_inline)) {
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

// A team of `groups` teams that share the columns; of more where threads are to spare.
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

// Groups that go backward, each with lines of its own. They wait for no other group: a step hands
// on all cotangents of its sums, which another core takes longer to read than to multiply. In
// return each reads all of R, which a few lines hide as long as it is in the cache.
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
          if (unit < w.hidden) __builtin_prefetch(from + last);
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

// ---- the passes

template <class Cell, class T>
void dense_forward(const DenseSchedule<T>& s, const DenseForwardArgs<T>& a) {
  using V = Vec<T>;
  using Memory = Lanes<T>;
  constexpr int kGates = Cell::kGates, kSums = Cell::kPreactivations;
  const DenseShare mine = share_of<T>(s.team, s.hidden, s.lines);
  const Index carry = padded(s.hidden);
  constexpr Index kPanel = kGates * V::kLanes;
  T inputs[kMostRows * kPanel], products[kMostRows * kPanel];
  const auto step = [&](Index line, Index vector, Index t, const T* before, const T* input,
                        const T* recurrent) {
    V sum[kSums];
    T* sums = a.sums.data ? a.sums.at_line(line).at(t) : nullptr;
    for (int i = 0; i < kSums; ++i) {
      sum[i] = Memory::read(a.bias + i * s.hidden, vector, s.hidden);
      if (i >= kGates) continue;
      sum[i] = sum[i] + (a.input_weight ? V::load(input + i * V::kLanes)
                                        : Memory::read(sums + i * s.hidden, vector, s.hidden));
    }
    for (int gate = 0; gate < kGates; ++gate) {
      V& own = sum[cell::recurrent_sum<Cell>(gate)];
      own = own + (a.weight ? V::load(recurrent + gate * V::kLanes)
                            : Memory::read(recurrent + gate * s.hidden, vector, s.hidden));
    }
    cell::StepState<V> state{before ? Memory::read(before, vector, s.hidden) : V(0), V(0)};
    T* c = Cell::kPair ? s.c + line * carry + vector * V::kLanes : nullptr;
    if constexpr (Cell::kPair) state.c = V::load(c);
    state = Cell::step(Cell::template gather<V>([&](int i) { return sum[i]; }), state);
    Memory::write(a.y.at_line(line).at(t), vector, s.hidden, state.h);
    if constexpr (Cell::kPair) {
      state.c.store(c);
      if (a.cells.data) Memory::write(a.cells.at_line(line).at(t), vector, s.hidden, state.c);
    }
    if (!a.keep) return;
    for (int i = 0; i < kSums; ++i) Memory::write(sums + i * s.hidden, vector, s.hidden, sum[i]);
  };
  if (s.team.rank >= mine.members()) return;
  for (Index t = 0; t < s.steps; ++t) {
    const Strided<const T> before =
        t > 0 ? Strided<const T>{a.y.at(t - 1), a.y.line, 0} : a.initial;
    for (Index vector = mine.vectors.begin; vector < mine.vectors.end; ++vector) {
      for_groups(mine.lines, [&](Index first, int count) {
        const T* rows[kMostRows];
        const Product<T> run = product_of<T>(kGates, count);
        if (a.input_weight) {
          for (int m = 0; m < count; ++m) rows[m] = a.x.at_line(first + m).at(t);
          run(a.input_weight + vector * a.input * kPanel, rows, a.input, false, inputs);
        }
        for (int m = 0; m < count; ++m) rows[m] = before.at_line(first + m).data;
        if (a.weight && before.data) {
          run(a.weight + vector * s.hidden * kPanel, rows, s.hidden, false, products);
        } else if (a.weight) {
          std::fill_n(products, count * kPanel, T(0));
        }
        for (int m = 0; m < count; ++m) {
          step(first + m, vector, t, rows[m], inputs + m * kPanel,
               a.weight ? products + m * kPanel : a.products + (first + m) * kGates * s.hidden);
        }
      });
    }
    if (mine.columns.size > 1) s.barrier->wait(mine.members());
  }
}

template <class Cell, class T>
void dense_backward(const DenseSchedule<T>& s, const DenseBackwardArgs<T>& a) {
  using V = Vec<T>;
  using Memory = Lanes<T>;
  constexpr int kGates = Cell::kGates, kSums = Cell::kPreactivations;
  const int groups = backward_groups<T>(s.team, {nullptr, 0, s.hidden, s.hidden, kGates}, s.lines);
  const DenseShare mine = share_of<T>(s.team, s.hidden, s.lines, groups);
  const Index carry = padded(s.hidden);
  // Rows of R that add to the sums in order, and those that add to sums of their own behind them.
  const Index own = (kSums - kGates) * s.hidden, in_order = kGates * s.hidden - own;
  T products[kMostRows * kMostWidth * V::kLanes];
  const auto step = [&](Index line, Index vector, Index t, const T* product) {
    T* h = s.h + line * carry + vector * V::kLanes;
    T* c = Cell::kPair ? s.c + line * carry + vector * V::kLanes : nullptr;
    cell::StepState<V> d{V::load(h) + V::load(product), V(0)};
    if (t == s.steps) return d.h.store(h);
    if constexpr (Cell::kPair) d.c = V::load(c);
    if (a.dy.data) d.h = d.h + Memory::read(a.dy.at_line(line).at(t), vector, s.hidden);
    const auto before = [&](const Strided<const T>& states, const Strided<const T>& initial) {
      const T* at = t + 1 < s.steps ? states.at_line(line).at(t + 1) : initial.at_line(line).data;
      return at ? Memory::read(at, vector, s.hidden) : V(0);
    };
    const T* sums = a.sums.at_line(line).at(t);
    const auto gates = Cell::template gather<V>(
        [&](int i) { return Memory::read(sums + i * s.hidden, vector, s.hidden); });
    const cell::StepState<V> state{before(a.y, a.initial),
                                   Cell::kPair ? before(a.cells, a.initial_cell) : V(0)};
    const auto back = Cell::step_vjp(gates, state, d);
    T* dsums = a.dsums.at_line(line).at(t);
    Cell::template scatter<V>(back.gates, [&](int i, V value) {
      Memory::write(dsums + i * s.hidden, vector, s.hidden, value);
    });
    back.before.h.store(h);
    if constexpr (Cell::kPair) back.before.c.store(c);
  };
  if (s.team.rank >= mine.members()) return;
  for (Index t = 0; t <= s.steps; ++t) {
    for_panels(mine.vectors, [&](Index vector, int width) {
      const T* panel = a.weight + vector * kGates * s.hidden * V::kLanes;
      for_groups(mine.lines, [&](Index first, int count) {
        if (t == 0) {
          std::fill_n(products, count * width * V::kLanes, T(0));
        } else {
          const T* rows[kMostRows];
          const Product<T> run = product_of<T>(width, count);
          for (int m = 0; m < count; ++m) rows[m] = a.dsums.at_line(first + m).at(t - 1);
          run(panel, rows, in_order, false, products);
          for (int m = 0; m < count; ++m) rows[m] += kGates * s.hidden;
          if (own > 0) run(panel + in_order * width * V::kLanes, rows, own, true, products);
        }
        for (int m = 0; m < count; ++m) {
          for (int n = 0; n < width; ++n) {
            step(first + m, vector + n, t, products + (m * width + n) * V::kLanes);
          }
        }
      });
    });
    if (mine.columns.size > 1 && t < s.steps) s.barrier->wait(mine.members());
  }
}

}  // namespace scanrnn::HWY_NAMESPACE
