// SPDX-License-Identifier: Apache-2.0
// What the blocks of a group add up over a line at each step of a walk by whole lines: two numbers
// of each sixteen units pass between them, as words that say themselves that they have come. The
// lanes that have units of a line make its totals, in the order of the units.
#pragma once

#include "cuda/kernels/persistent/share.cuh"
#include "cuda/kernels/persistent/words.cuh"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

// Totals of kPerUnit values of each unit: means over the line of two sums; or, kMoments, mean and
// scale of the norm, of which sixteen units leave their own mean and the sum of squares about it.
template <int kItems>
class LineTotals {
 public:
  // `words`: of the first total in the first row of the exchange.
  __device__ __forceinline__ LineTotals(const Share& share, std::uint32_t* words)
      : lanes_(min(share.units, 32)),
        first_(lane() % lanes_),
        whole_(share.head.units / kUnits),
        rest_(fixed(static_cast<float>(share.head.units % kUnits))),
        share_(fixed(1.0f / static_cast<float>(share.head.units))) {
    const auto line_words = static_cast<int>(dispatch::line_total_words(share.head.units));
    pieces_ = line_words / 4;
    apart_ = Index{share.lines} * line_words;
#pragma unroll
    for (int i = 0; i < 2 * kPieces; ++i) {
      first_weights_[i] = fixed(weight(2 * (first_ + i / 2 * lanes_) + i % 2));
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const auto [line, local] = share.item(j);
      const int unit = share.first_unit + local, sixteen = unit / kUnits;
      waits_[j] = line < share.own.count;
      exists_[j] = waits_[j] && unit < share.head.units;
      sends_[j] = exists_[j] && lane() % kUnits == 0;
      own_share_[j] = fixed(1.0f / fmaxf(1.0f, weight(sixteen)));
      std::uint32_t* const own =
          words + Index{share.first_line + (waits_[j] ? line : 0)} * line_words;
      to_[j] = own + 2 * sixteen;
      from_[j] = own + 4 * first_;
      // The last sixteen fill a piece for one that there is not, too.
      fills_[j] = sends_[j] && sixteen % 2 == 0 && (sixteen + 1) * kUnits >= share.head.units;
    }
  }
  // Words of all totals of a step.
  __device__ __forceinline__ Index words() const { return kTotals * apart_; }
  __device__ __forceinline__ void move(Index slot) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      to_[j] += slot;
      from_[j] += slot;
    }
  }

  // That this row's words will be asked for.
  __device__ __forceinline__ void expect() const {
#pragma unroll
    for (int j = 0; j < kItems; ++j)
#pragma unroll
      for (int which = 0; which < kTotals; ++which)
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const bool waits = waits_[j] && first_ + i * lanes_ < pieces_;
          if (waits) persistent::expect(from_[j] + which * apart_ + i * lanes_ * 4);
        }
  }

  // All lanes of a warp send what item j has of a total.
  template <int kWhich>
  __device__ __forceinline__ void send_sums(int j, float2 own) const {
    if (!exists_[j]) own = make_float2(0.0f, 0.0f);
    send_pair<kWhich>(j, add_up<kUnits>(own));
  }
  template <int kWhich, int kPerUnit>
  __device__ __forceinline__ void send_moments(int j, const float (&values)[kPerUnit]) const {
    const float shift = __shfl_sync(~0u, values[0], lane() / kUnits * kUnits);
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i) {
      const float apart = exists_[j] ? values[i] - shift : 0.0f;
      sums.x += apart;
      sums.y = fmaf(apart, apart, sums.y);
    }
    sums = add_up<kUnits>(sums);
    const float mean = sums.x * (own_share_[j] * (1.0f / kPerUnit));
    send_pair<kWhich>(j, make_float2(shift + mean, fmaf(-sums.x, mean, sums.y)));
  }
  // And all wait for it.
  template <int kWhich, bool kMoments, int kPerUnit>
  __device__ __forceinline__ void receive(float2 (&out)[kItems]) const {
    float2 sums[kItems];
    float shift[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) sums[j] = make_float2(0.0f, 0.0f);
    for (int done = 0; done < pieces_; done += lanes_ * kPieces) {
      uint4 v[kItems * kPieces];
      bool waits[kItems * kPieces];
#pragma unroll
      for (int i = 0; i < kItems * kPieces; ++i) {
        waits[i] = waits_[i / kPieces] && first_ + done + i % kPieces * lanes_ < pieces_;
      }
      receive_at(
          [&](int i) {
            return from_[i / kPieces] + kWhich * apart_ + (done + i % kPieces * lanes_) * 4;
          },
          waits, v);
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (kMoments && done == 0) {
          shift[j] = __shfl_sync(~0u, __uint_as_float(v[j * kPieces].x), lane() - first_);
        }
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const uint4& piece = v[j * kPieces + i];
          const int sixteen = 2 * (first_ + done + i * lanes_);
          const float own = done == 0 ? first_weights_[2 * i] : weight(sixteen);
          const float other = done == 0 ? first_weights_[2 * i + 1] : weight(sixteen + 1);
          add<kMoments, kPerUnit>(sums[j], own, piece.x, piece.y, shift[j]);
          add<kMoments, kPerUnit>(sums[j], other, piece.z, piece.w, shift[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      sums[j] = add_up<kUnits>(sums[j]);
      if (lanes_ == 32) sums[j] = add_up<32, kUnits>(sums[j]);
      out[j] = make_float2(sums[j].x * share_, sums[j].y * share_);
      if constexpr (kMoments) {
        const float variance = fmaf(-out[j].x, out[j].x, out[j].y);
        const float scale = inverse_root(variance + static_cast<float>(kNormEpsilon));
        out[j] = make_float2(shift[j] + out[j].x, scale);
      }
    }
  }

 private:
  static constexpr int kUnits = dispatch::kLineTotalUnits, kTotals = dispatch::kLineTotals;
  static constexpr int kPieces = 2;  // of 16 bytes, that a lane asks for at a time
  static_assert(kUnits == 16, "half a warp");

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Kept, where the compiler would rather divide again.
  __device__ __forceinline__ static float fixed(float x) {
    asm volatile("" : "+f"(x));
    return x;
  }
  __device__ __forceinline__ static float inverse_root(float x) {
    float out;  // within 2 units in the last place
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
  }
  // The sums of lanes beside one another: of kLanes, where each kDone have them already.
  template <int kLanes, int kDone = 1>
  __device__ __forceinline__ static float2 add_up(float2 own) {
#pragma unroll
    for (int apart = kLanes / 2; apart >= kDone; apart /= 2) {
      own.x += __shfl_xor_sync(~0u, own.x, apart);
      own.y += __shfl_xor_sync(~0u, own.y, apart);
    }
    return own;
  }
  // Units of a sixteen.
  __device__ __forceinline__ float weight(int sixteen) const {
    return sixteen < whole_ ? static_cast<float>(kUnits) : sixteen == whole_ ? rest_ : 0.0f;
  }
  template <int kWhich>
  __device__ __forceinline__ void send_pair(int j, const float2& pair) const {
    std::uint32_t* const to = to_[j] + kWhich * apart_;
    if (sends_[j]) {
      send(to, __float_as_uint(pair.x), __float_as_uint(pair.y));
    }
    if (fills_[j]) {
      send(to + 2, 0, 0);
    }
  }
  // A pair of so many units to the sums; of moments, to those of the values apart from `shift`, for
  // each value of a unit.
  template <bool kMoments, int kPerUnit>
  __device__ __forceinline__ static void add(float2& sums, float units, std::uint32_t first,
                                             std::uint32_t second, float shift) {
    const float x = __uint_as_float(first), y = __uint_as_float(second) * (1.0f / kPerUnit);
    if constexpr (kMoments) {
      const float apart = x - shift;
      sums.x = fmaf(units, apart, sums.x);
      sums.y += fmaf(units * apart, apart, y);
    } else {
      sums.x = fmaf(x, 1.0f / kPerUnit, sums.x);
      sums.y += y;
    }
  }

  int lanes_, first_;  // that share a line, and which of them this one is
  int whole_;          // sixteens of units; and what is left of another
  float rest_;
  float first_weights_[2 * kPieces];  // of the sixteens that this lane asks for first
  float share_, own_share_[kItems];   // one over the units of a line, and of an item's sixteen
  int pieces_;                        // of 16 bytes, that a total of a line has
  Index apart_;                       // words from one total to the next
  std::uint32_t *to_[kItems], *from_[kItems];
  bool waits_[kItems], exists_[kItems], sends_[kItems], fills_[kItems];
};

}  // namespace scanrnn::persistent
