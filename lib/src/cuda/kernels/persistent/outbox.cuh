// SPDX-License-Identifier: Apache-2.0
// Where a unit of a line leaves what the next product reads.
#pragma once

#include "cuda/kernels/persistent/share.cuh"
#include "cuda/kernels/persistent/words.cuh"

namespace scanrnn::persistent {

// Where a thread sends the values of an item, to every block of the group.
template <class Cut>
struct Outbox {
  bool sends;
  std::uint32_t* to[Cut::kSent];

  __device__ __forceinline__ void open(const Share& share, std::uint32_t* exchange, int line,
                                       int unit) {
    sends = line < share.own.count && unit % Cut::kPerWord == 0 &&
            unit / Cut::kPerWord < share.block_words;
#pragma unroll
    for (int i = 0; i < Cut::kSent; ++i) {
      const int word = i * share.block_words + unit / Cut::kPerWord;
      to[i] =
          exchange + (Index{word / 16} * share.lines + share.first_line + line) * 16 + word % 16;
    }
  }
  // value(i) for each, or for some of them; all lanes of the warp.
  template <int kFirst = 0, int kEnd = Cut::kSent, class Value>
  __device__ __forceinline__ void send(const Value& value) const {
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const float own = value(i);
      std::uint32_t word;
      if constexpr (Cut::kPerWord == 2) {
        word = Bits<typename Cut::Type>::of(own, __shfl_xor_sync(~0u, own, 1));
      } else {
        word = Bits<typename Cut::Type>::of(own);
      }
      if (sends) persistent::send(to[i], word);
    }
  }
  // To the row so many words on.
  __device__ __forceinline__ void move(Index words) {
#pragma unroll
    for (int i = 0; i < Cut::kSent; ++i) to[i] += words;
  }
};

}  // namespace scanrnn::persistent
