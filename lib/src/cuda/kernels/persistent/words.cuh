// SPDX-License-Identifier: Apache-2.0
// Words that pass between the blocks of a grid and say themselves that they have come. All bits of
// an absent word are set, a value that is never sent. A word is written once, whole, and says
// nothing about any other, so that no fence and no barrier crosses blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace scanrnn::persistent {

inline constexpr std::uint32_t kAbsent = 0xffffffffu;

__device__ __forceinline__ uint4 look(const std::uint32_t* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
// Brings a place into the second level cache that was written long ago.
__device__ __forceinline__ void expect(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
__device__ __forceinline__ bool absent(const uint4& v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == kAbsent;
}
// Polls pieces of 16 bytes, at(i), until no lane of the warp still waits for a word. A piece that a
// lane does not wait for is zeros.
template <int kCount, class At>
__device__ __forceinline__ void receive_at(At&& at, bool (&waits)[kCount], uint4 (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = make_uint4(0, 0, 0, 0);
  bool again;
  do {
    again = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (waits[i]) v[i] = look(at(i));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      waits[i] = waits[i] && absent(v[i]);
      again |= waits[i];
    }
  } while (__any_sync(~0u, again));
}
// The same of pieces that are `apart` words from one to the next.
template <int kCount>
__device__ __forceinline__ void receive(const std::uint32_t* from, int apart, bool (&waits)[kCount],
                                        uint4 (&v)[kCount]) {
  receive_at([&](int i) { return from + std::int64_t{i} * apart; }, waits, v);
}
// A NaN of all ones becomes another NaN. Two words at an even place go side by side, and four at a
// place that four divides.
__device__ __forceinline__ void send(std::uint32_t* p, uint4 v) {
  if (v.x == kAbsent) v.x = 0x7fffffffu;
  if (v.y == kAbsent) v.y = 0x7fffffffu;
  if (v.z == kAbsent) v.z = 0x7fffffffu;
  if (v.w == kAbsent) v.w = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void send(std::uint32_t* p, std::uint32_t first, std::uint32_t second) {
  if (first == kAbsent) first = 0x7fffffffu;
  if (second == kAbsent) second = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(first), "r"(second)
               : "memory");
}
__device__ __forceinline__ void send(std::uint32_t* p, std::uint32_t word) {
  if (word == kAbsent) word = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}

// An address of shared memory that stays in a register: nothing tells the compiler how to compute
// it again in every step.
__device__ __forceinline__ std::uint32_t kept_address(const void* p) {
  auto out = static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("" : "+r"(out));
  return out;
}

// Addresses of shared memory in 32 bits: a generic one is looked up at every use.
__device__ __forceinline__ void store_shared(std::uint32_t p, const float4& v) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(p), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t p, const float2& v) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(p), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t p, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t p, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(p), "f"(v) : "memory");
}
// The element of T that a word's lower bits are.
template <class T>
__device__ __forceinline__ void store_shared_bits(std::uint32_t p, std::uint32_t bits) {
  if constexpr (sizeof(T) == 2) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(p), "h"(static_cast<unsigned short>(bits))
                 : "memory");
  } else {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(p), "r"(bits) : "memory");
  }
}
__device__ __forceinline__ void load_shared(std::uint32_t p, float4& v) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(p)
               : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t p, float2& v) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(p) : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t p, uint4& v) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(p)
               : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t p, float& v) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(p) : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t p, std::uint32_t& v) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
}
__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

}  // namespace scanrnn::persistent
