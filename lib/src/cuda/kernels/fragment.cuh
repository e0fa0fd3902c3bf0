// SPDX-License-Identifier: Apache-2.0
// Products by tensor cores of values that lie in registers as 32-bit words: two of a 16-bit type,
// or one float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace scanrnn::fragment {

// Elements as bits, of which kPerWord make a word.
template <class T>
struct Bits {
  static constexpr int kPerWord = 2;
  __device__ static std::uint32_t load(const T* p) {
    return *reinterpret_cast<const unsigned short*>(p);
  }
  __device__ static std::uint32_t of(float x) {
    const T value = static_cast<T>(x);
    return *reinterpret_cast<const unsigned short*>(&value);
  }
  __device__ static float value(std::uint32_t bits) {
    const auto raw = static_cast<unsigned short>(bits);
    return static_cast<float>(*reinterpret_cast<const T*>(&raw));
  }
  // A word of two elements.
  __device__ static std::uint32_t of(float first, float second) {
    const auto pair = pack(T(), first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }

 private:
  __device__ static __half2 pack(__half, float a, float b) { return __floats2half2_rn(a, b); }
  __device__ static __nv_bfloat162 pack(__nv_bfloat16, float a, float b) {
    return __floats2bfloat162_rn(a, b);
  }
};
template <>
struct Bits<float> {
  static constexpr int kPerWord = 1;
  __device__ static std::uint32_t load(const float* p) {
    return *reinterpret_cast<const std::uint32_t*>(p);
  }
  __device__ static std::uint32_t of(float x) { return __float_as_uint(x); }
  __device__ static float value(std::uint32_t bits) { return __uint_as_float(bits); }
};

// c += a b: 16 rows of a, 8 columns of b, 32 bytes of the sum.
#define SCANRNN_MMA(type, shape)                                                        \
  __device__ __forceinline__ void multiply(type, float (&c)[4], const std::uint32_t* a, \
                                           std::uint32_t b0, std::uint32_t b1) {        \
    asm volatile("mma.sync.aligned." shape                                              \
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"               \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));       \
  }
SCANRNN_MMA(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
SCANRNN_MMA(__half, "m16n8k16.row.col.f32.f16.f16.f32")
SCANRNN_MMA(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef SCANRNN_MMA

// An operand as a tensor core takes it: 16-bit values as they are, and of a float32 the upper part,
// rounded, and with kSplit what that leaves.
template <bool kFloat, bool kSplit>
struct Operand {
  std::uint32_t upper, lower = 0;
  __device__ __forceinline__ explicit Operand(std::uint32_t bits) : upper(bits) {
    if constexpr (kFloat && !kSplit) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(upper) : "r"(bits));
    if constexpr (kSplit) {  // volatile, or both parts of all weights would be kept in registers
      asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(upper) : "r"(bits));
      lower = __float_as_uint(__uint_as_float(bits) - __uint_as_float(upper));
    }
  }
};
template <class T, bool kSplit, class B>
__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t* a, const B& b0,
                                         const B& b1) {
  if constexpr (!kSplit) {
    multiply(T(), c, a, b0.upper, b1.upper);
  } else {
    std::uint32_t upper[4], lower[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Operand<true, true> part(a[i]);
      upper[i] = part.upper;
      lower[i] = part.lower;
    }
    multiply(T(), c, lower, b0.upper, b1.upper);
    multiply(T(), c, upper, b0.lower, b1.lower);
    multiply(T(), c, upper, b0.upper, b1.upper);
  }
}

}  // namespace scanrnn::fragment
