// SPDX-License-Identifier: Apache-2.0
// The sums of a block of cuda/kernels/persistent/large.cuh that is wide: of a layer of whose R a
// device has no room, or of so many units that each block has 32.
//
// Each of its warp groups has 64 rows of R and multiplies them by all of h. Columns come in chunks:
// of each, a part of R is in registers and a part in shared memory, and the rest is brought anew in
// every step, while the chunk before is multiplied. So are the words of h. What comes next is asked
// for behind the fence, which waits for all that a thread has asked for.
#pragma once

#include "cuda/kernels/persistent/large_items.cuh"
#include "cuda/kernels/persistent/weights.cuh"

namespace scanrnn::persistent {

// Where the rows of R are that a group multiplies. Row r of a warp's 16 is of its unit r % 8 / 2,
// and the gate 2 (r % 2) + r / 8.
struct LargeRow {
  int unit, gate;

  __device__ __forceinline__ LargeRow(const LargeForwardShare& share, int row)
      : unit(share.first_unit + row / 16 * 4 + row % 8 / 2), gate(row % 2 * 2 + row % 16 / 8) {}
};
// A word of a row: the elements of that column and of the next.
template <class C, class T>
struct LargeRowWords {
  const CudaDenseArgs<T, float>& a;
  const LargeForwardShare& share;
  HeadShare head;

  __device__ __forceinline__ std::uint32_t operator()(int row, int column) const {
    const LargeRow of(share, row);
    return load_word<false>(a, WeightRows<T>::of(a, true), head, of.gate, of.unit, column,
                            of.gate < C::kGates);
  }
};

template <class C, class T, class Cut>
struct LargeWide {
  static constexpr int kChunk = dispatch::kWideChunk, kChunks = dispatch::kWideChunks;
  static constexpr int kTurns = dispatch::kWideTurns;
  static constexpr int kLines = Cut::kLines, kRows = Cut::kRows;
  // Pieces of a chunk of R: in registers, in shared memory, brought.
  static constexpr int kKept = Cut::kKept, kShared = dispatch::kWideShared;
  static constexpr int kBrought = kChunk - kKept - kShared;
  static_assert(kBrought % 2 == 0, "two are brought together");
  // Pieces of a chunk in registers.
  static constexpr int kept_of(int c) { return kKept + (c + 1 == kChunks ? kShared : 0); }
  static constexpr int kPiece = dispatch::kLargePiece;
  // Pieces of 16 bytes: of a chunk of h, those of one line that are received together.
  static constexpr int kApart = dispatch::kLargeThreads / kLines;
  static constexpr int kReceived = 2 * kChunk / kApart;  // of a thread
  static constexpr int kStateBytes = kChunk * kPiece * kLines * 2;
  static constexpr int kRowBytes = kPiece * kRows * 2;  // of a piece of R

  const CudaDenseArgs<T, float>& a;
  std::uint32_t kept[kChunks * kKept + kShared][4];
  warp_group::Shared state, shared, ring;
  int chunks;                       // of R's columns
  std::uint32_t state_at, ring_at;  // of this thread
  const T* rows[2];                 // of R, this thread's of the first and the last 8 of 16
  bool aligned;                     // those of R
  int next = 0;                     // chunk to be brought
  const std::uint32_t* from;        // this thread's first piece of h
  int line, count;                  // its line; lines
  Index slot;                       // words
  int turn = 0;                     // of what is brought
  float sum[Cut::kSums];

  __device__ __forceinline__ LargeWide(const CudaDenseArgs<T, float>& a,
                                       const LargeForwardShare& share, const LargeMemoryAt& at,
                                       const std::uint32_t* exchange)
      : a(a),
        state(at.state, kLines),
        shared(at.weights, kRows),
        ring(at.parts, kRows),
        chunks(static_cast<int>(dispatch::wide_chunks(a.hidden))),
        state_at(at.state + threadIdx.x * 16),
        line(static_cast<int>(threadIdx.x) % kLines),
        count(share.own.count),
        slot(a.batch * a.hidden / 2) {
    from = exchange + Index{share.own.first} * a.hidden / 2 +
           (Index{static_cast<int>(threadIdx.x) / kLines} * count + line) * 4;
    keep(share, at.weights);
    // What is brought: 8 rows by four pieces of 16 bytes along the columns for a warp at once.
    const int warp = share.thread / 32, lane = share.thread % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const LargeRow of(share, warp * 16 + half * 8 + lane % 8);
      const Index row = of.gate * a.hidden + of.unit;
      rows[half] = of.gate < C::kGates ? a.weight + row * a.weight_stride + lane / 8 * 8 : nullptr;
    }
    aligned = reinterpret_cast<std::uintptr_t>(a.weight) % 16 == 0 && a.weight_stride % 8 == 0;
    ring_at = at.parts + (lane / 8 * kRows + warp * 16 + lane % 8) * 16;
    for (int i = share.thread; i < kTurns * kBrought * kRowBytes / 16; i += kGroupThreads) {
      store_shared(at.parts + i * 16, make_uint4(0, 0, 0, 0));  // rows that there are not
    }
    warp_group::meet(share.group);
    bring(0);
  }
  // Of so many lines in step t; post() is called before all of the block meet.
  template <class Post>
  __device__ __forceinline__ void make(int, int lines, const Post& post) {
    post();
#pragma unroll
    for (float& s : sum) s = 0.0f;
    Words words{from, line < lines ? 2 * kChunk * chunks : 0};
    uint4 v[kReceived];
    look(words, v);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c >= chunks) break;
      receive(words, v);
#pragma unroll
      for (int i = 0; i < kReceived; ++i) {
        store_shared(state_at + c % kTurns * kStateBytes + i * dispatch::kLargeThreads * 16, v[i]);
      }
      scan::cuda::await_copies<0>();
      warp_group::publish();
      warp_group::await(sum);
      __syncthreads();  // the chunk is here, and what the one before has read may be written again
      multiply(c);
      if (c + 1 < chunks) look(words, v);
      bring(turn ^ 1);
      turn ^= 1;
    }
    from += slot;
    warp_group::await(sum);
    __syncthreads();  // before the next step's words
  }
  __device__ __forceinline__ void take(int, int j, float (&all)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] = sum[4 * j + i];
  }

 private:
  // Loads what is kept of R.
  __device__ __forceinline__ void keep(const LargeForwardShare& share, std::uint32_t at) {
    const LargeRowWords<C, T> word{a, share, HeadShare(a)};
    const int warp = share.thread / 32, lane = share.thread % 32;
#pragma unroll
    for (int i = 0; i < kChunks * kKept + kShared; ++i) {
      const int c = min(i / kKept, kChunks - 1), piece = c * kChunk + i - c * kKept;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        kept[i][w] =
            word(warp * 16 + lane / 4 + w % 2 * 8, piece * kPiece + lane % 4 * 2 + w / 2 * 8);
      }
    }
    const int all = min(chunks, kChunks - 1) * kShared * 2 * kRows;  // of 16 bytes
    for (int i = share.thread; i < all; i += kGroupThreads) {
      const int piece = i / (2 * kRows), row = i % kRows;
      const int in_chunk = piece / kShared * kChunk + kKept + piece % kShared;
      const int column = in_chunk * kPiece + i / kRows % 2 * 8;
      store_shared(at + i * 16, make_uint4(word(row, column), word(row, column + 2),
                                           word(row, column + 4), word(row, column + 6)));
    }
  }
  // Asks for what is brought of the next chunk, to a turn of the ring. As one group of copies.
  __device__ __forceinline__ void bring(int to_turn) {
    const std::uint32_t to = ring_at + to_turn * kBrought * kRowBytes;
    const int first = (next * kChunk + kKept + kShared) * kPiece;
    next = next + 1 < chunks ? next + 1 : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!rows[half]) continue;
      const T* const row = rows[half] + first;
      if (aligned) {
#pragma unroll
        for (int i = 0; i < kBrought; i += 2) {
          copy_piece(to + half * 128 + i * kRowBytes, row + i * kPiece);
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < kBrought; i += 2) {
          store_shared(to + half * 128 + i * kRowBytes, loaded_piece(row + i * kPiece));
        }
      }
    }
    scan::cuda::commit_copies();
  }
  // Begins the products of a chunk, whose number is known once loops are unrolled (LargeWeights).
  __device__ __forceinline__ void multiply(int c) {
    const auto state_of = [&](int piece) { return state.at(c % kTurns * kChunk + piece, kLines); };
    state.forget();
    shared.forget();
    ring.forget();
    warp_group::begin(sum);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < kept_of(c)) {
        warp_group::multiply(T(), sum, kept[c * kKept + i], state_of(i));
      } else if (i < kKept + kShared) {
        warp_group::multiply(T(), sum, shared.at(c * kShared + i - kKept, kRows), state_of(i));
      } else {
        const int brought = turn * kBrought + i - kKept - kShared;
        warp_group::multiply(T(), sum, ring.at(brought, kRows), state_of(i));
      }
    }
    warp_group::end();
  }
  // This thread's pieces of the next chunk of h, of which so many are left along its line.
  struct Words {
    const std::uint32_t* at;
    int left;
  };
  __device__ __forceinline__ uint4 piece_of(const Words& words, int i) const {
    return persistent::look(words.at + i * kApart * count * 4);
  }
  // As they are now, and goes on to the next chunk.
  __device__ __forceinline__ void look(Words& words, uint4 (&v)[kReceived]) const {
#pragma unroll
    for (int i = 0; i < kReceived; ++i) {
      v[i] = words.left > 0 ? piece_of(words, i) : make_uint4(0, 0, 0, 0);
    }
    words.at += 2 * kChunk * count * 4;
    words.left -= 2 * kChunk;
    asm volatile("" : "+l"(words.at), "+r"(words.left));  // or each chunk would keep its own
  }
  // Looks for those of the last chunk until they have come.
  __device__ __forceinline__ void receive(const Words& words, uint4 (&v)[kReceived]) const {
    bool again;
    do {
      again = false;
#pragma unroll
      for (int i = 0; i < kReceived; ++i) {
        if (!absent(v[i])) continue;
        v[i] = piece_of({words.at - 2 * kChunk * count * 4, 0}, i);
        again |= absent(v[i]);
      }
    } while (__any_sync(~0u, again));
  }
};

}  // namespace scanrnn::persistent
