// SPDX-License-Identifier: Apache-2.0
// Products of the rows of a few units with a few lines by tensor cores: what a block of a step's
// kernel makes. Weights are read once.
#pragma once

#include "cuda/kernels/fragment.cuh"
#include "recurrence/linear.h"

namespace scanrnn::step {

inline constexpr int kWarps = 8;  // of a block by tensor cores
inline constexpr int kUnits = 8;  // and its units: rows of a fragment

// 16 bytes from p on, of which elements from `left` on are zeros.
template <bool kVectors, class T>
__device__ __forceinline__ uint4 load_piece(const T* p, Index left) {
  constexpr int kPerWord = fragment::Bits<T>::kPerWord;
  uint4 out = make_uint4(0, 0, 0, 0);
  if constexpr (kVectors) {
    if (left > 0) out = *reinterpret_cast<const uint4*>(p);
  } else {
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * kPerWord; ++i) {
      if (i < left) words[i / kPerWord] |= fragment::Bits<T>::load(p + i) << (i % kPerWord * 16);
    }
    out = make_uint4(words[0], words[1], words[2], words[3]);
  }
  return out;
}

// Row blocks of a weight, from the row of one unit on; `first` is null where there is no such unit.
template <class T>
struct UnitRows {
  const T* first;
  Index apart;  // from one row block to the next
  Index width;
};

// What a lane has of the products of a unit's rows with lines, 8 of them a group. A warp has every
// kWarps-th chunk of the sum, which may be taken in any order, so that 16 bytes of a lane are its
// part of two fragments.
template <class T, bool kVectors, int kGates, int kGroups>
struct FragmentSums {
  using Word = fragment::Operand<fragment::Bits<T>::kPerWord == 1, false>;  // TF32, or 16 bits
  static constexpr int kTiles = (kGates + 1) / 2;
  static constexpr int kPiece = 16 / sizeof(T), kChunk = 4 * kPiece;
  static constexpr int kAsked = 4;  // chunks of a warp
  static constexpr Index kTurn = kWarps * kChunk;
  static constexpr int kAtOnce = kGroups > 2 ? 1 : kGroups > 1 ? 3 : 4;  // chunks; registers
  using Weights = uint4[2 * kTiles];
  float value[kGroups][kTiles][4] = {};

  static __device__ __forceinline__ Index chunk(int i) {
    return threadIdx.x / 32 * kChunk + i * kTurn;
  }
  static __device__ __forceinline__ void load(const UnitRows<T>& rows, Index chunk, Weights& w) {
    const Index at = chunk + threadIdx.x % 4 * kPiece;
#pragma unroll
    for (int gate = 0; gate < 2 * kTiles; ++gate) {
      w[gate] = make_uint4(0, 0, 0, 0);
      if (gate >= kGates) continue;
      w[gate] = load_piece<kVectors>(rows.first + gate * rows.apart + at,
                                     rows.first ? rows.width - at : 0);
    }
  }
  // The line of this lane's column in each group, or null where there is none.
  struct Lines {
    const T* of[kGroups];
  };
  template <class LineOf>
  static __device__ __forceinline__ Lines lines(int count, LineOf&& line_of) {
    Lines out;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int line = group * 8 + threadIdx.x % 32 / 4;
      out.of[group] = line < count ? line_of(line) : nullptr;
    }
    return out;
  }
  __device__ __forceinline__ void add(const Weights& w, const Lines& lines, Index chunk,
                                      Index width) {
    const Index at = chunk + threadIdx.x % 4 * kPiece;
    uint4 v[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const T* line = lines.of[group];
      v[group] = load_piece<kVectors>(line + at, line ? width - at : 0);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 &u = w[2 * tile], &l = w[2 * tile + 1];
      const std::uint32_t a[2][4] = {
          {Word(u.x).upper, Word(l.x).upper, Word(u.y).upper, Word(l.y).upper},
          {Word(u.z).upper, Word(l.z).upper, Word(u.w).upper, Word(l.w).upper}};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4& x = v[group];
        fragment::multiply<T, false>(value[group][tile], a[0], Word(x.x), Word(x.y));
        fragment::multiply<T, false>(value[group][tile], a[1], Word(x.z), Word(x.w));
      }
    }
  }
  // Products of columns from `from` on, a multiple of kTurn, to `end`.
  __device__ __forceinline__ void multiply(const UnitRows<T>& rows, const Lines& lines, Index from,
                                           Index end) {
#pragma unroll kAtOnce
    for (Index at = from + chunk(0); at < end; at += kTurn) {
      Weights w;
      load(rows, at, w);
      add(w, lines, at, rows.width);
    }
  }

  // Weights of these, asked for before the lines are there.
  struct Asked {
    Weights w[kAsked];
  };
  static __device__ __forceinline__ void ask(const UnitRows<T>& rows, Asked& asked) {
#pragma unroll
    for (int i = 0; i < kAsked; ++i) {
      if (chunk(i) < rows.width) load(rows, chunk(i), asked.w[i]);
    }
  }
  __device__ __forceinline__ void multiply(const Asked& asked, const UnitRows<T>& rows,
                                           const Lines& lines) {
#pragma unroll
    for (int i = 0; i < kAsked; ++i) {
      if (chunk(i) < rows.width) add(asked.w[i], lines, chunk(i), rows.width);
    }
    multiply(rows, lines, kAsked * kTurn, rows.width);
  }
};

}  // namespace scanrnn::step
