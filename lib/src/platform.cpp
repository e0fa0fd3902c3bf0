// SPDX-License-Identifier: Apache-2.0
// The processor, the memory and the compiler, on Linux, macOS and Windows.
#include "platform.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cpuid.h>  // last: its macros are the names of functions elsewhere

namespace scanrnn {
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned part = 0) {
  Registers out;
  __cpuid_count(leaf, part, out.a, out.b, out.c, out.d);
  return out;
}

// Which registers the system saves when it changes threads.
std::uint64_t saved_registers() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

constexpr bool all(std::uint64_t word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1) == 0) return false;
  }
  return true;
}

// The highest version of x86-64 that can be run, or 1. Names: the bits that Intel's manual lists
// under CPUID, and the versions of the System V ABI.
int version_here() {
  const unsigned basic = cpuid(0).a, extended = cpuid(0x80000000u).a;
  if (basic < 1 || extended < 0x80000001u) return 1;
  const Registers one = cpuid(1), more = cpuid(0x80000001u);
  // SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF
  if (!all(one.c, {0, 9, 13, 19, 20, 23}) || !all(more.c, {0})) return 1;
  // FMA, MOVBE, OSXSAVE, AVX, F16C; LZCNT
  if (basic < 7 || !all(one.c, {12, 22, 27, 28, 29}) || !all(more.c, {5})) return 2;
  const Registers seven = cpuid(7);
  // BMI1, AVX2, BMI2; the registers of SSE and AVX
  if (!all(seven.b, {3, 5, 8}) || !all(saved_registers(), {1, 2})) return 2;
  // AVX-512 F, DQ, CD, BW, VL; masks, and the rest of the 512-bit registers
  if (!all(seven.b, {16, 17, 28, 30, 31}) || !all(saved_registers(), {5, 6, 7})) return 3;
  return 4;
}

// By the leaves that list caches one by one: Intel's, and AMD's of the same form.
std::int64_t largest_cache() {
  std::int64_t largest = 0;
  for (const unsigned leaf : {4u, 0x8000001du}) {
    if (leaf > cpuid(leaf & 0x80000000u).a) continue;
    for (unsigned i = 0; i < 16; ++i) {
      const Registers cache = cpuid(leaf, i);
      if ((cache.a & 0x1fu) == 0) break;
      const auto part = [&](int bit, unsigned mask) {
        return static_cast<std::int64_t>(cache.b >> bit & mask) + 1;
      };
      const std::int64_t sets = static_cast<std::int64_t>(cache.c) + 1;
      const std::int64_t bytes = part(22, 0x3ffu) * part(12, 0x3ffu) * part(0, 0xfffu) * sets;
      largest = std::max(largest, bytes);
    }
    if (largest > 0) break;
  }
  return largest;
}

}  // namespace

bool runs_x86_64(int version) {
  static const int here = version_here();
  return version <= here;
}

std::string processor_name() {
  std::string found;
  if (cpuid(0x80000000u).a >= 0x80000004u) {
    for (unsigned leaf = 0x80000002u; leaf <= 0x80000004u; ++leaf) {
      const Registers words = cpuid(leaf);
      for (const unsigned word : {words.a, words.b, words.c, words.d}) {
        for (int byte = 0; byte < 4; ++byte) {
          found.push_back(static_cast<char>(word >> 8 * byte & 0xffu));
        }
      }
    }
  }
  found = found.substr(0, found.find('\0'));
  const std::size_t begin = found.find_first_not_of(' ');
  if (begin == std::string::npos) return "cpu";
  return found.substr(begin, found.find_last_not_of(' ') + 1 - begin);
}

std::int64_t physical_memory() {
#ifdef _WIN32
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  return GlobalMemoryStatusEx(&status) ? static_cast<std::int64_t>(status.ullTotalPhys) : 0;
#else
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? pages * bytes : 0;
#endif
}

std::int64_t last_level_cache() {
  static const std::int64_t bytes = largest_cache();
  return bytes > 0 ? bytes : std::int64_t{32} << 20;
}

std::string compiler_name() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return __VERSION__;
#endif
}

bool in_child_of_teams() {
#ifdef _WIN32
  return false;  // which has no forks
#else
  static std::atomic<bool> forked{false};
  static const int status = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  return forked.load(std::memory_order_relaxed) || status != 0;
#endif
}

void want_huge_pages(void* data, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kLeast = std::size_t{4} << 20, kPage = 4096;
  if (bytes < kLeast) return;
  const std::size_t skip = -reinterpret_cast<std::uintptr_t>(data) % kPage;
  madvise(static_cast<char*>(data) + skip, bytes - skip, MADV_HUGEPAGE);  // no more than a wish
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

}  // namespace scanrnn
