// SPDX-License-Identifier: Apache-2.0
// The products of a step: a warp's pieces of R times the words that were received for them, and the
// sums of a unit from what its warps have left.
#pragma once

#include "cuda/kernels/persistent/share.cuh"
#include "cuda/kernels/persistent/words.cuh"

namespace scanrnn::persistent {

// The pieces of R of a chunk, whose first word of the sum is `first_word`.
template <class Cut>
__device__ __forceinline__ void load_chunk(const CudaRecurrent<typename Cut::Type>& a,
                                           const Share& share, int first_word, int chunk,
                                           typename Cut::Weights& weights) {
  const bool own = !Cut::kChain || first_word >= share.others;
  const auto rows = WeightRows<typename Cut::Type>::of(a, own);
  if constexpr (Cut::kChain) first_word -= own ? share.others : 0;
#pragma unroll
  for (int tile = 0; tile < Cut::kTiles; ++tile) {
    std::uint32_t words[2][4];
    load_fragments(words, [&](int half, int i) {
      const int block = 2 * tile + half;  // of 8 rows
      const int local = (share.warp_units * Cut::kUnitBlocks + block / Cut::kBlocks) * 8;
      const int unit = share.first_unit + local + share.row;
      const int word = first_word + share.quad * 4 + i;
      const int sum = Cut::kBackward ? word / share.block_words : block % Cut::kBlocks;
      const int gate = !Cut::kChain        ? sum
                       : sum >= Cut::kRows ? -1
                                           : cell::row_block<typename Cut::Cell>(sum, own);
      const int first = Cut::kBackward ? word % share.block_words : word;
      const bool exists = block < Cut::kUnitBlocks * Cut::kBlocks && local < share.units &&
                          unit < share.head.units && gate >= 0 && gate < Cut::Cell::kGates;
      return load_word<Cut::kBackward>(a, rows, share.head, gate, unit, first * Cut::kPerWord,
                                       exists);
    });
    weights.put(chunk, tile, words);
  }
}
template <class Cut>
__device__ __forceinline__ void load_weights(const CudaRecurrent<typename Cut::Type>& a,
                                             const Share& share, typename Cut::Weights& weights) {
#pragma unroll
  for (int chunk = 0; chunk < Cut::kChunks; ++chunk) {
    const int first_word = (share.warp_sum * Cut::kChunks + chunk) * 16;
#pragma unroll
    for (int tile = 0; tile < Cut::kTiles; ++tile) weights.put(chunk, tile, {});
    // Without a branch around each chunk the compiler would work out the addresses of all of them
    // before it loads the first, in more registers than there are.
    if (first_word < share.words) load_chunk<Cut>(a, share, first_word, chunk, weights);
  }
  if constexpr (Cut::kPerWord == 1 && !Cut::kSplit) {
    // Float32 is rounded once, not at every use; and not before all loads are on their way.
#pragma unroll
    for (int i = 0; i < Cut::kChunks * Cut::kTiles; ++i) {
      std::uint32_t words[2][4];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (e % 4 == 0) weights.get(i / Cut::kTiles, i % Cut::kTiles, e / 4, words[e / 4]);
        words[e / 4][e % 4] = fragment::Operand<true, false>(words[e / 4][e % 4]).upper;
      }
      weights.put(i / Cut::kTiles, i % Cut::kTiles, words);
    }
  }
}

// sum += pieces of R from chunk `done` on, times the words that were received for them.
template <class Cut, int kFetched>
__device__ __forceinline__ void product(const typename Cut::Weights& weights, int done,
                                        const uint4 (&v)[kFetched], typename Cut::Sums& sum) {
#pragma unroll
  for (int i = 0; i < kFetched; ++i) {
    using B = fragment::Operand<Cut::kPerWord == 1, Cut::kSplit>;
    const B b[4] = {B(v[i].x), B(v[i].y), B(v[i].z), B(v[i].w)};
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int tile = 0; tile < Cut::kTiles; ++tile) {
        std::uint32_t words[4];
        weights.get(done + i, tile, step, words);
        fragment::multiply<typename Cut::Type, Cut::kSplit>(
            sum[(2 * i + step) % Cut::kChains][tile], words, b[2 * step], b[2 * step + 1]);
      }
  }
}
// Whether a tile has rows in this half.
template <class Cut>
constexpr bool has_block(int tile, int half) {
  return 2 * tile + half < Cut::kUnitBlocks * Cut::kBlocks;
}
// The same for a few lines in float32, by multiply-adds, which take less time there than three
// products of tensor cores of which most columns are empty. Every fourth row of lanes, or every
// second one, has the words of the same line; the k-th sum is that of line k, but for the bits of
// the row, and a lane's sums of a tile have room for two lines in each chain.
template <class Cut, int kLines, int kFetched>
__device__ __forceinline__ void product_few(const typename Cut::Weights& weights, int done,
                                            const uint4 (&v)[kFetched], typename Cut::Sums& sum) {
  static_assert(kLines <= 2 * Cut::kChains, "a chain has two lines");
#pragma unroll
  for (int i = 0; i < kFetched; ++i) {
    const std::uint32_t own[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    // Words that lanes hand one another together: the work of one tile hides little of the way.
    constexpr int kTogether = Cut::kTiles > 1 || Cut::kBackward ? 2 : 4;
#pragma unroll
    for (int first = 0; first < 4; first += kTogether) {
      float words[kLines][kTogether];
#pragma unroll
      for (int k = 0; k < kLines; ++k)
#pragma unroll
        for (int w = 0; w < kTogether; ++w) {
          const float word = __uint_as_float(own[first + w]);
          words[k][w] = k ? __shfl_xor_sync(~0u, word, 4 * k) : word;
        }
#pragma unroll
      for (int w = 0; w < kTogether; w += 2)
#pragma unroll
        for (int tile = 0; tile < Cut::kTiles; ++tile) {
          std::uint32_t pieces[4];
          weights.get(done + i, tile, (first + w) / 2, pieces);
#pragma unroll
          for (int e = 0; e < 4; ++e) {  // of two words of the sum, and of each two rows
            if (!has_block<Cut>(tile, e % 2)) continue;
#pragma unroll
            for (int k = 0; k < kLines; ++k) {
              float& to = sum[k / 2][tile][2 * (e % 2) + k % 2];
              to = fmaf(__uint_as_float(pieces[e]), words[k][w + e / 2], to);
            }
          }
        }
    }
  }
}
// What four lanes have of a row's sums, as a fragment has its first columns: two of four lines
// each lane.
template <class Cut, int kLines>
__device__ __forceinline__ void join_lanes(const Share& share, typename Cut::Sums& sum) {
  const bool later = kLines == 4 && ((share.row / 2) ^ share.quad) % 2 == 1;
  const bool swapped = kLines > 1 && share.row % 2 == 1;
#pragma unroll
  for (int tile = 0; tile < Cut::kTiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!has_block<Cut>(tile, half)) continue;
      float two[2] = {};
#pragma unroll
      for (int i = 0; i < kLines && i < 2; ++i) {
        const float own = sum[0][tile][2 * half + i];
        const float other = sum[kLines == 4 ? 1 : 0][tile][2 * half + i];
        two[i] = later ? other : own;
        two[i] += __shfl_xor_sync(~0u, later ? own : other, 1);
        two[i] += __shfl_xor_sync(~0u, two[i], 2);
      }
      sum[0][tile][2 * half] = swapped ? two[1] : two[0];
      sum[0][tile][2 * half + 1] = swapped ? two[0] : two[1];
    }
}
template <class Cut>
__device__ __forceinline__ void join_chains(typename Cut::Sums& sum) {
#pragma unroll
  for (int i = 1; i < Cut::kChains; ++i)
#pragma unroll
    for (int tile = 0; tile < Cut::kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[0][tile][e] += sum[i][tile][e];
}

// Lines of one product: of tensor cores the columns of a fragment; of multiply-adds, for up to kFew
// lines, one, two or what a lane's sums have room for.
inline constexpr int kColumns = 8;
template <class Cut>
__device__ __forceinline__ int most_at_once(int lines) {
  if constexpr (Cut::kFew == 0) return kColumns;
  return lines > Cut::kFew ? kColumns : Cut::kMostFew;
}
// What product_few() takes for so many.
template <class Cut>
__device__ __forceinline__ int lines_at_once(int lines) {
  return lines > Cut::kFew ? kColumns : lines > 2 ? Cut::kMostFew : lines;
}
// use(std::integral_constant<int, ...>()) by how many lines of `all` are left.
template <class Cut, class Use>
__device__ __forceinline__ void with_lines(int all, int left, Use&& use) {
  if constexpr (Cut::kFew == 0) {
    use(std::integral_constant<int, kColumns>());
  } else {
    if (all > Cut::kFew) {
      use(std::integral_constant<int, kColumns>());
    } else if (left == 1) {
      use(std::integral_constant<int, 1>());
    } else if (Cut::kMostFew == 2 || left == 2) {
      use(std::integral_constant<int, 2>());
    } else {
      use(std::integral_constant<int, Cut::kMostFew>());
    }
  }
}
template <class Cut, int kLines, int kFetched>
__device__ __forceinline__ void add_product(const typename Cut::Weights& weights, int done,
                                            const uint4 (&v)[kFetched], typename Cut::Sums& sum) {
  if constexpr (kLines == kColumns) {
    product<Cut>(weights, done, v, sum);
  } else {
    product_few<Cut, kLines>(weights, done, v, sum);
  }
}
template <class Cut, int kLines>
__device__ __forceinline__ void join(const Share& share, typename Cut::Sums& sum) {
  if constexpr (kLines == kColumns) {
    join_chains<Cut>(sum);
  } else {
    join_lanes<Cut, kLines>(share, sum);
  }
}

// Leaves the sums of a lane's two lines where the parts of its first unit are.
template <class Cut>
__device__ __forceinline__ void leave(const typename Cut::Sums& sum, const Share& share,
                                      std::uint32_t to, std::uint32_t line_bytes) {
#pragma unroll
  for (int block = 0; block < Cut::kUnitBlocks; ++block) {
    if ((share.warp_units * Cut::kUnitBlocks + block) * 8 >= share.units) continue;
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      leave_sums<typename Cut::Part, Cut::kBlocks>(
          to + block * 8 * sizeof(typename Cut::Part) + column * line_bytes, sum[0],
          block * Cut::kBlocks, column);
    }
  }
}

// The sums of a unit of a line: those that the warps along the sum have left.
template <class Part>
__device__ __forceinline__ Part add_parts(std::uint32_t at, std::uint32_t apart, int count) {
  Part p[dispatch::kPersistentWarps];
#pragma unroll
  for (int i = 0; i < dispatch::kPersistentWarps; ++i) {
    p[i] = Part();
    if (i < count) load_shared(at, p[i]);
    at += apart;
  }
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

// A thread's share of the products of each turn.
template <class Cut, int kFetched>
struct Products {
  using Part = typename Cut::Part;

  const Share& share;
  typename Cut::Weights weights;
  const std::uint32_t* words;  // that this thread reads, of its row of the group's first lines
  int first_word, chunk_words;
  std::uint32_t parts, own_parts, line_bytes, warp_bytes;
  std::uint32_t half = 0;  // which of two sets of partial sums, so that one barrier is enough

  // `read` is the first row of the exchange that is read.
  __device__ __forceinline__ Products(const CudaRecurrent<typename Cut::Type>& a,
                                      const Share& share, const PersistentShape& shape,
                                      std::uint32_t shared, const std::uint32_t* read)
      : share(share), weights(shared) {
    load_weights<Cut>(a, share, weights);
    parts = shared + Cut::Weights::kBytes;
    line_bytes = 4u * shape.line_floats;
    warp_bytes = (share.own.count + 1) / 2 * 2 * line_bytes;
    first_word = share.warp_sum * Cut::kChunks * 16 + share.quad * 4;
    chunk_words = share.lines * 16;
    words =
        read +
        (Index{share.warp_sum * Cut::kChunks} * share.lines + share.first_line + share.row) * 16 +
        share.quad * 4;
    own_parts =
        parts + share.warp_sum * warp_bytes + 2 * share.quad * line_bytes +
        (share.warp_units * Cut::kUnitBlocks * 8 + share.row) * static_cast<int>(sizeof(Part));
  }
  // Where the first of the partial sums of a unit of a line is.
  __device__ __forceinline__ std::uint32_t part(int line, int unit) const {
    return parts +
           (line < share.own.count ? line * line_bytes + unit * static_cast<int>(sizeof(Part)) : 0);
  }
  // Waits for the words for which reads(word) says so, of a line of `lines`, and hands
  // use(done, words) as many chunks as are fetched at a time.
  template <class Reads, class Use>
  __device__ __forceinline__ void each_chunk(int line, int lines, Reads&& reads, Use&& use) const {
#pragma unroll
    for (int done = 0; done < Cut::kChunks; done += kFetched) {
      uint4 v[kFetched];
      bool waits[kFetched];
#pragma unroll
      for (int i = 0; i < kFetched; ++i) {
        const int word = first_word + (done + i) * 16;
        waits[i] = line < lines && word < share.words && reads(word);
      }
      receive(words + (line - share.row) * 16 + Index{done} * chunk_words, chunk_words, waits, v);
      use(done, v);
    }
  }
  // Waits for the words for which reads(word) says so, and leaves the partial sums of as many
  // lines.
  template <class Reads>
  __device__ __forceinline__ void multiply(int lines, const Reads& reads) const {
    const int at_once = most_at_once<Cut>(lines);
    for (int first = 0; first < lines; first += at_once) {
      typename Cut::Sums sum = {};
      if constexpr (Cut::kBackward) {
        // One loop for all numbers of lines: weights take most of the registers.
        each_chunk(first + share.row % lines_at_once<Cut>(lines), lines, reads,
                   [&](int done, const uint4(&v)[kFetched]) {
                     with_lines<Cut>(lines, lines - first, [&](auto count) {
                       add_product<Cut, count()>(weights, done, v, sum);
                     });
                   });
        with_lines<Cut>(lines, lines - first, [&](auto count) { join<Cut, count()>(share, sum); });
      } else {
        // A loop for each: nothing is left to decide when the words have come.
        with_lines<Cut>(lines, lines - first, [&](auto count) {
          each_chunk(first + share.row % count(), lines, reads,
                     [&](int done, const uint4(&v)[kFetched]) {
                       add_product<Cut, count()>(weights, done, v, sum);
                     });
          join<Cut, count()>(share, sum);
        });
      }
      const bool has_columns = Cut::kFew == 0 || 2 * share.quad < at_once;
      if (has_columns && first + 2 * share.quad < lines) {
        leave<Cut>(sum, share, own_parts + half + first * line_bytes, line_bytes);
      }
    }
  }
  // The sums that start at part(), once all warps have left theirs; until next().
  __device__ __forceinline__ Part total(std::uint32_t part) const {
    return add_parts<Part>(part + half, warp_bytes, share.warps_along_sum);
  }
  __device__ __forceinline__ void next() { half = share.warps_along_sum * warp_bytes - half; }
};

}  // namespace scanrnn::persistent
