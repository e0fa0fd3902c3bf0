// SPDX-License-Identifier: Apache-2.0
// Products of a warp group, four warps whose first has a number that four divides: 64 rows of a
// times as many columns of b as there are sums, 16 elements of a 16-bit type along the sum. They
// run beside what follows until they are waited for. Code for 9.0 alone has them.
//
// A thread's sums are those of fragment::multiply, 8 columns after 8 columns; a warp has the 16
// rows of its number. An operand in registers is a fragment, too. One in shared memory is pieces of
// 8 rows (b: columns) by 16 bytes along the sum, 128 bytes each: pieces of the same elements of the
// sum follow one another.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace scanrnn::warp_group {

// Whether the code that is being compiled may have them.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kExists = true;
#else
inline constexpr bool kExists = false;
#endif

// An operand in shared memory at a 32-bit address, of so many rows, or columns. In a cluster, what
// is above the lower 24 bits of an address says whose block's memory it is; products read their
// own.
struct Shared {
  std::uint32_t lower, upper;

  __device__ __forceinline__ Shared(std::uint32_t address, int rows)
      : lower(address % (1u << 18) / 16 | static_cast<std::uint32_t>(rows) << 16),
        upper(128 / 16) {}
  // The operand `piece` times 16 elements further along the sum. It is computed at every use: that
  // takes fewer registers than to keep them all.
  __device__ __forceinline__ std::uint64_t at(int piece, int rows) const {
    return std::uint64_t{upper} << 32 | (lower + static_cast<std::uint32_t>(2 * rows * piece));
  }
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lower)); }
};

// Products see what all threads have written to shared memory before this and a barrier.
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// All threads of a warp group have come.
__device__ __forceinline__ void meet(int group) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(group + 1), "n"(128) : "memory");
}

#define SCANRNN_WORDS_4(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define SCANRNN_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SCANRNN_SUMS_8(d, i) SCANRNN_SUMS_4(d, i), SCANRNN_SUMS_4(d, i + 4)
#define SCANRNN_FIRST_SUMS(d) SCANRNN_SUMS_8(d, 0)
#define SCANRNN_SUMS_16(d) SCANRNN_SUMS_8(d, 0), SCANRNN_SUMS_8(d, 8)
#define SCANRNN_SUMS_32(d) SCANRNN_SUMS_16(d), SCANRNN_SUMS_8(d, 16), SCANRNN_SUMS_8(d, 24)
#define SCANRNN_FIRST_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define SCANRNN_FIRST_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define SCANRNN_NEXT_16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

// d += a b, a in registers or in shared memory.
#define SCANRNN_WGMMA(type, types)                                                            \
  __device__ __forceinline__ void multiply(type, float (&d)[8], const std::uint32_t (&a)[4],  \
                                           std::uint64_t b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32" types " {" SCANRNN_FIRST_8      \
                 "}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"                                       \
                 : SCANRNN_FIRST_SUMS(d)                                                      \
                 : SCANRNN_WORDS_4(a), "l"(b));                                               \
  }                                                                                           \
  __device__ __forceinline__ void multiply(type, float (&d)[8], std::uint64_t a,              \
                                           std::uint64_t b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32" types " {" SCANRNN_FIRST_8      \
                 "}, %8, %9, 1, 1, 1, 0, 0;"                                                  \
                 : SCANRNN_FIRST_SUMS(d)                                                      \
                 : "l"(a), "l"(b));                                                           \
  }                                                                                           \
  __device__ __forceinline__ void multiply(type, float (&d)[16], const std::uint32_t (&a)[4], \
                                           std::uint64_t b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32" types " {" SCANRNN_FIRST_16     \
                 "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"                                     \
                 : SCANRNN_SUMS_16(d)                                                         \
                 : SCANRNN_WORDS_4(a), "l"(b));                                               \
  }                                                                                           \
  __device__ __forceinline__ void multiply(type, float (&d)[16], std::uint64_t a,             \
                                           std::uint64_t b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32" types " {" SCANRNN_FIRST_16     \
                 "}, %16, %17, 1, 1, 1, 0, 0;"                                                \
                 : SCANRNN_SUMS_16(d)                                                         \
                 : "l"(a), "l"(b));                                                           \
  }                                                                                           \
  __device__ __forceinline__ void multiply(type, float (&d)[32], const std::uint32_t (&a)[4], \
                                           std::uint64_t b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32" types " {" SCANRNN_FIRST_16     \
                 "," SCANRNN_NEXT_16 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"                 \
                 : SCANRNN_SUMS_32(d)                                                         \
                 : SCANRNN_WORDS_4(a), "l"(b));                                               \
  }                                                                                           \
  __device__ __forceinline__ void multiply(type, float (&d)[32], std::uint64_t a,             \
                                           std::uint64_t b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32" types " {" SCANRNN_FIRST_16     \
                 "," SCANRNN_NEXT_16 "}, %32, %33, 1, 1, 1, 0, 0;"                            \
                 : SCANRNN_SUMS_32(d)                                                         \
                 : "l"(a), "l"(b));                                                           \
  }
SCANRNN_WGMMA(__nv_bfloat16, ".bf16.bf16")
SCANRNN_WGMMA(__half, ".f16.f16")
#undef SCANRNN_WGMMA

// Before the first product: sums and operands in registers are as they have to be.
__device__ __forceinline__ void begin(float (&d)[8]) {
  asm volatile("wgmma.fence.sync.aligned;" : SCANRNN_FIRST_SUMS(d)::"memory");
}
__device__ __forceinline__ void begin(float (&d)[16]) {
  asm volatile("wgmma.fence.sync.aligned;" : SCANRNN_SUMS_16(d)::"memory");
}
__device__ __forceinline__ void begin(float (&d)[32]) {
  asm volatile("wgmma.fence.sync.aligned;" : SCANRNN_SUMS_32(d)::"memory");
}
__device__ __forceinline__ void end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all products but those behind the last end().
__device__ __forceinline__ void await_but_last() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
// Waits for the sums of all products.
__device__ __forceinline__ void await(float (&d)[8]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : SCANRNN_FIRST_SUMS(d)::"memory");
}
__device__ __forceinline__ void await(float (&d)[16]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : SCANRNN_SUMS_16(d)::"memory");
}
__device__ __forceinline__ void await(float (&d)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : SCANRNN_SUMS_32(d)::"memory");
}
#undef SCANRNN_WORDS_4
#undef SCANRNN_SUMS_4
#undef SCANRNN_SUMS_8
#undef SCANRNN_FIRST_SUMS
#undef SCANRNN_SUMS_16
#undef SCANRNN_SUMS_32
#undef SCANRNN_FIRST_8
#undef SCANRNN_FIRST_16
#undef SCANRNN_NEXT_16

}  // namespace scanrnn::warp_group
