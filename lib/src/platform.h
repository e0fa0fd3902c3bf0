// SPDX-License-Identifier: Apache-2.0
// What no standard of C++ has: all that differs between compilers and systems is here and in
// platform.cpp. The compilers are GCC and Clang (clang-cl, too), the processors x86-64; see
// lib/platform.cmake.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#define SCANRNN_INLINE __attribute__((always_inline)) inline
#define SCANRNN_INLINE_LAMBDA __attribute__((always_inline))  // after the parameters

namespace scanrnn {

// ---- hints to the processor

// Memory that is read soon.
SCANRNN_INLINE void prefetch(const void* from) {
  _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0);
}

// Inside a loop that waits for another thread.
SCANRNN_INLINE void pause() { _mm_pause(); }

// ---- float16: bits to float and back, to nearest, ties to even; a NaN comes out quiet

namespace portable {

SCANRNN_INLINE float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  std::uint32_t bits;
  if (magnitude >= 0x7c00u) {
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0;
    bits = 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + (112u << 23);  // the exponents' biases are 15 and 127
  } else {
    const float tiny = static_cast<float>(magnitude) * (1.0f / (1u << 24));  // exact
    std::memcpy(&bits, &tiny, sizeof bits);
  }
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

SCANRNN_INLINE std::uint16_t float_to_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, halfway between the largest half and 2^16
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal half
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  } else {
    float sum;  // the last place of 0.5f is the smallest half, so that this addition rounds to it
    std::memcpy(&sum, &magnitude, sizeof sum);
    sum += 0.5f;
    std::memcpy(&half, &sum, sizeof half);
    half -= 0x3f000000u;
  }
  return static_cast<std::uint16_t>(half | sign);
}

}  // namespace portable

// Where the processor has an instruction for it.
#ifdef __F16C__
SCANRNN_INLINE float half_to_float(std::uint16_t half) { return _cvtsh_ss(half); }
SCANRNN_INLINE std::uint16_t float_to_half(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
#else
using portable::float_to_half;
using portable::half_to_float;
#endif

// Many of them, several at a time where the processor can.
SCANRNN_INLINE void halves_to_floats(const std::uint16_t* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < count; ++i) to[i] = half_to_float(from[i]);
}
SCANRNN_INLINE void floats_to_halves(const float* from, std::uint16_t* to, std::int64_t count) {
  std::int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#endif
  for (; i < count; ++i) to[i] = float_to_half(from[i]);
}

// ---- the system (platform.cpp)

// Whether this processor and this system run code for x86-64-v2, -v3, -v4.
bool runs_x86_64(int version);

std::string processor_name();
std::int64_t physical_memory();   // in bytes; 0 where the system does not say
std::int64_t last_level_cache();  // in bytes, of one processor; 32 MiB where it does not say
std::string compiler_name();

// Whether this is the child of a fork that was made after the first such question: OpenMP would
// wait there for threads that only the parent has.
bool in_child_of_teams();

// Asks for huge pages where there is room for some: what a training call writes is often fresh from
// the system, and faulting it in by small pages takes a tenth of the call.
void want_huge_pages(void* data, std::size_t bytes);

}  // namespace scanrnn
