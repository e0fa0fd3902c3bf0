// SPDX-License-Identifier: Apache-2.0
// CUDA on a CPU, for tests where there is no GPU: a thread of a block is a fiber, a block a thread
// of the host, and what the kernels ask of the hardware is here by the names that they use. Results
// and waiting are those of a device; time is not. Every translated file has this included before
// all.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

// Where the running fiber is.
extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

namespace emulated {

inline constexpr int kLanes = 32;
inline int lane() { return static_cast<int>(threadIdx.x % kLanes); }
inline constexpr std::size_t kSharedBytes = 227 << 10;

// The shared memory of the block that this fiber is one of.
// In a cluster an address tells the block's rank, too.
char* shared_memory();
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(shared_memory());
}
std::uint32_t shared_address(const void* p);
char* shared_at(std::uint32_t address);
template <class T>
T& at(std::uint32_t address) {
  return *reinterpret_cast<T*>(shared_at(address));
}

// Lets other fibers go on; of one that polls.
void yield();
// Waits for all live threads of the block, or for all live lanes of the warp.
void sync_block();
void sync_warp();
void arrive(int barrier, int threads);
void arrive_and_wait(int barrier, int threads);
// A block comes to the barrier of a grid that is all resident; whether all have come that often.
unsigned arrive_at_grid();
bool grid_has_come(unsigned arrival);
// Blocks of a cluster: where one of them has what is at an address here; values on their way there,
// which land when its threads look at the barrier that counts them; all of them come together.
std::uint32_t cluster_address(std::uint32_t address, int rank);
void send_to_block(std::uint32_t to, std::uint32_t barrier, const float* values, int count);
void land_sent();
void meet_cluster();
// A lane leaves up to 256 bytes; behind the next sync_warp() the others may read them until they
// have left and waited once more.
void leave(const void* data, std::size_t bytes);
const void* left_by(int lane);
// Copies that a fiber has begun land when it waits for them, not before.
void begin_copy(void* to, const void* from, std::size_t bytes);
void end_group();
void await_groups(int pending);

template <class T>
T exchanged(const T& value, int from) {
  static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 256, "a lane's slot");
  leave(&value, sizeof value);
  sync_warp();
  T out;
  std::memcpy(&out, left_by(from), sizeof out);
  return out;
}
template <class T, class F>
T over_lanes(T own, T start, F&& join) {
  leave(&own, sizeof own);
  sync_warp();
  for (int i = 0; i < kLanes; ++i) {
    T of_lane;
    std::memcpy(&of_lane, left_by(i), sizeof of_lane);
    start = join(start, of_lane);
  }
  return start;
}

// How a kernel is launched.
struct How {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
  bool all_resident = false;
  unsigned cluster = 1;  // blocks

  How(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream)
      : grid(grid), block(block), shared(shared), stream(stream) {}
};
cudaError_t enqueue(const How& how, std::function<void()> thread);

template <class F, class... Arguments>
cudaError_t launch(const How& how, F kernel, Arguments... arguments) {
  return enqueue(how, [=] { kernel(arguments...); });
}
// Other work of a stream.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace emulated

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline  // the compiler's time matters more
#undef __noinline__
#define __noinline__ inline

inline void __syncthreads() { ::emulated::sync_block(); }
inline void __syncwarp(unsigned = ~0u) { ::emulated::sync_warp(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
[[noreturn]] inline void __trap() { std::abort(); }
inline void __nanosleep(unsigned) { ::emulated::yield(); }
template <class T>
T __shfl_sync(unsigned, T value, int from, int = 32) {
  return ::emulated::exchanged(value, from % 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return ::emulated::exchanged(value, ::emulated::lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned apart, int = 32) {
  const int from = ::emulated::lane() + static_cast<int>(apart);
  return ::emulated::exchanged(value, from < 32 ? from : ::emulated::lane());
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned apart, int = 32) {
  const int from = ::emulated::lane() - static_cast<int>(apart);
  return ::emulated::exchanged(value, from >= 0 ? from : ::emulated::lane());
}
inline bool __any_sync(unsigned, bool x) {
  return ::emulated::over_lanes(x, false, [](bool a, bool b) { return a || b; });
}
inline bool __all_sync(unsigned, bool x) {
  return ::emulated::over_lanes(x, true, [](bool a, bool b) { return a && b; });
}
inline int __reduce_max_sync(unsigned, int x) {
  return ::emulated::over_lanes(x, x, [](int a, int b) { return a > b ? a : b; });
}
inline unsigned __ballot_sync(unsigned, bool x) {
  ::emulated::leave(&x, sizeof x);
  ::emulated::sync_warp();
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) {
    bool of_lane;
    std::memcpy(&of_lane, ::emulated::left_by(i), sizeof of_lane);
    out |= unsigned{of_lane} << i;
  }
  return out;
}
template <class T>
T atomicAdd(T* p, T value) {
  return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicMax(T* p, T value) {
  T seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (seen < value &&
         !__atomic_compare_exchange_n(p, &seen, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return seen;
}
template <class T>
T atomicMin(T* p, T value) {
  T seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (value < seen &&
         !__atomic_compare_exchange_n(p, &seen, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return seen;
}
template <class T>
unsigned atomicOr(T* p, T value) {
  return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST);
}
inline std::uint32_t __float_as_uint(float x) {
  std::uint32_t out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}
inline float __uint_as_float(std::uint32_t x) {
  float out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int4 __ldcs(const int4* p) { return *p; }
inline void __stcs(int4* p, const int4& value) { *p = value; }
inline std::size_t __cvta_generic_to_shared(const void* p) { return ::emulated::shared_address(p); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
using std::max;
using std::min;

// The instructions of PTX that the library writes, by name: outputs, then inputs.
namespace emulated::ptx {

template <class... Any>
void nothing(Any&...) {}
template <class... Any>
void griddepcontrol_wait(Any...) {}
template <class... Any>
void griddepcontrol_launch_dependents(Any...) {}
inline void mov_u32(int& lane_id) { lane_id = lane(); }  // of %laneid

inline void ld_relaxed_gpu_global_v4_u32(unsigned& a, unsigned& b, unsigned& c, unsigned& d,
                                         const std::uint32_t* p) {
  yield();
  a = __atomic_load_n(p, __ATOMIC_RELAXED);
  b = __atomic_load_n(p + 1, __ATOMIC_RELAXED);
  c = __atomic_load_n(p + 2, __ATOMIC_RELAXED);
  d = __atomic_load_n(p + 3, __ATOMIC_RELAXED);
}
inline void st_relaxed_gpu_global_v2_u32(std::uint32_t* p, std::uint32_t x, std::uint32_t y) {
  __atomic_store_n(p, x, __ATOMIC_RELAXED);
  __atomic_store_n(p + 1, y, __ATOMIC_RELAXED);
}
inline void st_relaxed_gpu_global_v4_u32(std::uint32_t* p, std::uint32_t x, std::uint32_t y,
                                         std::uint32_t z, std::uint32_t w) {
  st_relaxed_gpu_global_v2_u32(p, x, y);
  st_relaxed_gpu_global_v2_u32(p + 2, z, w);
}
inline void st_relaxed_gpu_global_u32(std::uint32_t* p, std::uint32_t x) {
  __atomic_store_n(p, x, __ATOMIC_RELAXED);
}
inline void prefetch_global_L2(const void*) {}
void load_packet(unsigned (&out)[4], const void* from);
void store_packet(void* to, const unsigned (&in)[4]);
inline void ld_relaxed_gpu_global_b128(unsigned& a, unsigned& b, unsigned& c, unsigned& d,
                                       const void* from) {
  yield();
  unsigned v[4];
  load_packet(v, from);
  a = v[0], b = v[1], c = v[2], d = v[3];
}
inline void mov_b64(void* to, unsigned a, unsigned b, unsigned c, unsigned d) {  // st.b128
  store_packet(to, {a, b, c, d});
}

inline void st_shared_v4_f32(std::uint32_t p, float a, float b, float c, float d) {
  at<float4>(p) = {a, b, c, d};
}
inline void st_shared_v2_f32(std::uint32_t p, float a, float b) { at<float2>(p) = {a, b}; }
inline void st_shared_v4_u32(std::uint32_t p, unsigned a, unsigned b, unsigned c, unsigned d) {
  at<uint4>(p) = {a, b, c, d};
}
inline void st_shared_f32(std::uint32_t p, float x) { at<float>(p) = x; }
inline void st_shared_u16(std::uint32_t p, unsigned short x) { at<unsigned short>(p) = x; }
inline void st_shared_u32(std::uint32_t p, std::uint32_t x) { at<std::uint32_t>(p) = x; }
template <class V>
void ld_shared_v4(V& a, V& b, V& c, V& d, std::uint32_t p) {
  const V* from = &at<V>(p);
  a = from[0], b = from[1], c = from[2], d = from[3];
}
inline void ld_shared_v4_f32(float& a, float& b, float& c, float& d, std::uint32_t p) {
  ld_shared_v4(a, b, c, d, p);
}
inline void ld_shared_v4_u32(unsigned& a, unsigned& b, unsigned& c, unsigned& d, std::uint32_t p) {
  ld_shared_v4(a, b, c, d, p);
}
inline void ld_shared_v2_f32(float& a, float& b, std::uint32_t p) {
  a = at<float2>(p).x, b = at<float2>(p).y;
}
inline void ld_shared_f32(float& x, std::uint32_t p) { x = at<float>(p); }
inline void ld_shared_u32(std::uint32_t& x, std::uint32_t p) { x = at<std::uint32_t>(p); }
inline void rsqrt_approx_ftz_f32(float& y, float x) { y = 1.0f / std::sqrt(x); }

inline void cp_async_cg_shared_global(std::uint32_t to, const void* from, int bytes = 16) {
  begin_copy(&at<char>(to), from, static_cast<std::size_t>(bytes));
}
inline void cp_async_ca_shared_global(std::uint32_t to, const void* from, int bytes) {
  begin_copy(&at<char>(to), from, static_cast<std::size_t>(bytes));
}
inline void cp_async_commit_group() { end_group(); }
inline void cp_async_wait_group(int pending) { await_groups(pending); }

inline void barrier_cta_arrive(int barrier, int threads) { arrive(barrier, threads); }
inline void barrier_cta_sync(int barrier, int threads) { arrive_and_wait(barrier, threads); }

// A float32 rounded to the 10 bits of TF32's mantissa, ties away from zero.
inline void cvt_rna_tf32_f32(std::uint32_t& out, std::uint32_t bits) {
  const bool finite = (bits >> 23 & 0xff) != 0xff;
  out = (finite ? bits + 0x1000 : bits) & 0xffffe000u;
}
float from_half(std::uint16_t bits);
inline float from_bfloat(std::uint16_t bits) { return __uint_as_float(std::uint32_t{bits} << 16); }

// Products of a warp: 16 rows, 8 columns, a sum of 32 bytes. A lane has rows lane / 4 and 8 more of
// A, column lane / 4 of B, and of the result columns 2 (lane % 4) and the next.
template <int kPerWord, class F>
void mma(F&& value, float& c0, float& c1, float& c2, float& c3, const std::uint32_t (&own)[6]) {
  constexpr int kWords = 4;  // of a lane's quad along the sum, twice
  leave(own, sizeof own);
  sync_warp();
  const int row = lane() / 4, column = lane() % 4 * 2;
  const auto word = [&](int of, int i) {
    return static_cast<const std::uint32_t*>(left_by(of))[i];
  };
  float* const out[2][2] = {{&c0, &c1}, {&c2, &c3}};
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < 2; ++j) {
      double sum = *out[half][j];
      for (int part = 0; part < 2; ++part) {
        for (int quad = 0; quad < kWords; ++quad) {
          const std::uint32_t a = word(row * 4 + quad, 2 * part + half);
          const std::uint32_t b = word((column + j) * 4 + quad, 4 + part);
          for (int e = 0; e < kPerWord; ++e) {
            sum += static_cast<double>(value(a, e)) * static_cast<double>(value(b, e));
          }
        }
      }
      *out[half][j] = static_cast<float>(sum);
    }
  }
}
inline void mma_sync_aligned(const char* shape, float& c0, float& c1, float& c2, float& c3,
                             std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                             std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t own[6] = {a0, a1, a2, a3, b0, b1};
  const auto half = [](std::uint32_t word, int e) {
    return static_cast<std::uint16_t>(word >> 16 * e);
  };
  if (std::strstr(shape, "bf16")) {
    mma<2>([&](std::uint32_t w, int e) { return from_bfloat(half(w, e)); }, c0, c1, c2, c3, own);
  } else if (std::strstr(shape, "f16.f16")) {
    mma<2>([&](std::uint32_t w, int e) { return from_half(half(w, e)); }, c0, c1, c2, c3, own);
  } else {  // the hardware reads the upper bits alone
    mma<1>([](std::uint32_t w, int) { return __uint_as_float(w & 0xffffe000u); }, c0, c1, c2, c3,
           own);
  }
}

}  // namespace emulated::ptx

#include "cluster.h"
#include "warp_group.h"

// What cuda_runtime.h has for nvcc alone.
template <class F>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, F* kernel) {
  return ::cudaFuncGetAttributes(out, reinterpret_cast<const void*>(kernel));
}
template <class F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  ::emulated::How how(config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& own = config->attrs[i];
    if (own.id == cudaLaunchAttributeCooperative) how.all_resident = own.val.cooperative != 0;
    if (own.id == cudaLaunchAttributeClusterDimension) how.cluster = own.val.clusterDim.x;
  }
  cudaFuncAttributes of;
  const auto status = cudaFuncGetAttributes(&of, kernel);
  if (status != cudaSuccess) return status;
  const std::size_t most = static_cast<std::size_t>(of.maxDynamicSharedSizeBytes);
  if (how.shared > most) return cudaErrorInvalidValue;
  return ::emulated::launch(how, kernel, static_cast<std::decay_t<Parameters>>(arguments)...);
}
namespace emulated {
template <class... Parameters, std::size_t... kIndex>
cudaError_t launch_by(const How& how, void (*kernel)(Parameters...), void** arguments,
                      std::index_sequence<kIndex...>) {
  return launch(how, kernel, *static_cast<std::decay_t<Parameters>*>(arguments[kIndex])...);
}
template <class... Parameters>
cudaError_t launch_resident(void (*kernel)(Parameters...), dim3 blocks, int threads,
                            void** arguments, std::size_t shared, cudaStream_t stream) {
  How how(blocks, static_cast<unsigned>(threads), shared, stream);
  how.all_resident = true;
  return launch_by(how, kernel, arguments, std::index_sequence_for<Parameters...>());
}
}  // namespace emulated
