// SPDX-License-Identifier: Apache-2.0
// A dense cell's whole sequence in one kernel. R stays in registers, and blocks hand one another
// what the next product needs through memory in which every word says itself that it has come.
//
// The lines of the batch are cut into groups, the units into slices, and a block has one slice of
// one group: of R the rows of its units' gates (forward) or the columns of its units (backward). A
// step of a block is
//   receive  poll the group's words of this step until none of them is absent: h, or the
//            cotangents of R h
//   product  each warp multiplies its pieces of R by its share of those words (tensor cores), and
//            leaves partial sums in shared memory
//   item     a thread adds up the sums of one unit of one line and makes its step; what the next
//            product reads is sent, and only then is the rest stored
// All bits of an absent word are set, a value that is never sent. A word is written once, whole,
// and says nothing about any other, so that no fence and no barrier crosses blocks. Blocks wait for
// one another, so all of them must be resident: the launch is cooperative, or an error.
#pragma once

#include <algorithm>

#include "cuda_dense.h"
#include "cuda_fragment.cuh"
#include "scanrnn/cells/step_cell.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

using dispatch::PersistentShape;
using dispatch::PersistentTile;
inline constexpr int kThreads = 32 * dispatch::kPersistentWarps;
inline constexpr std::uint32_t kAbsent = 0xffffffffu;

__device__ __forceinline__ uint4 receive(const std::uint32_t* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ bool absent(const uint4& v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == kAbsent;
}
// A NaN of all ones becomes another NaN.
__device__ __forceinline__ void send(std::uint32_t* p, std::uint32_t word) {
  if (word == kAbsent) word = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}

// Addresses of shared memory in 32 bits: a generic one is looked up at every use.
__device__ __forceinline__ void store_shared(std::uint32_t p, const float4& v) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(p), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t p, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(p), "f"(v) : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t p, float4& v) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(p)
               : "memory");
}
__device__ __forceinline__ void load_shared(std::uint32_t p, float& v) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(p) : "memory");
}
__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <class C, class T, bool kBackward, bool kSplit, int kUnitBlocks, int kChunks, int kFetched,
          int kItems>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CudaDenseArgs<T, float> a,
           const __grid_constant__ PersistentShape shape, std::uint32_t* const exchange) {
  constexpr int kPerWord = Bits<T>::kPerWord;
  constexpr int kSums = C::kPreactivations;
  constexpr int kSent = kBackward ? C::kGates : 1;    // values of an item that others read
  constexpr int kBlocks = kBackward ? 1 : C::kGates;  // rows of R for each unit
  constexpr int kTiles = (kUnitBlocks * kBlocks + 1) / 2;
  constexpr int kChains = kTiles >= 4 ? 1 : kTiles >= 2 ? 2 : 4;  // products that need not wait
  constexpr int kRead = kBackward ? kSums : C::kGates;
  using Part = typename std::conditional<kBackward, float, float4>::type;
  static_assert(C::kGates <= 4, "a unit's sums are one float4");

  extern __shared__ float4 memory[];
  const auto parts = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
  const int warps_along_sum = dispatch::kPersistentWarps / shape.warps_along_units;
  const int warp_units = warp % shape.warps_along_units, warp_sum = warp / shape.warps_along_units;
  const int slice = static_cast<int>(blockIdx.x) % shape.slices;
  const int group = static_cast<int>(blockIdx.x) / shape.slices;
  const int batch = static_cast<int>(a.batch), hidden = static_cast<int>(a.hidden);
  const int steps = static_cast<int>(a.steps);
  const int first_line = static_cast<int>(a.batch * group / shape.groups);
  const int lines = static_cast<int>(a.batch * (group + 1) / shape.groups) - first_line;
  const int units = shape.units, first_unit = slice * units;
  const int block_words = shape.block_words;
  const int words = kSent * block_words;
  const Index slot = Index{(words + 15) / 16} * batch * 16;

  // Pieces of R, as fragments. The sum may be taken in any order, so a lane's words of a chunk are
  // adjacent: each 16 bytes that it receives are its part of two fragments of b.
  std::uint32_t weights[kChunks][kTiles][8];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int block = 2 * tile + half;  // of 8 rows
        const int local = (warp_units * kUnitBlocks + block / kBlocks) * 8;
        const int unit = first_unit + local + row;
        const bool exists = block < kUnitBlocks * kBlocks && local < units && unit < hidden;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int word = (warp_sum * kChunks + chunk) * 16 + quad * 4 + i;
          const int gate = kBackward ? word / block_words : block % kBlocks;
          std::uint32_t bits = 0;
#pragma unroll
          for (int e = 0; e < kPerWord; ++e) {
            const int other = (kBackward ? word % block_words : word) * kPerWord + e;
            if (!exists || gate >= C::kGates || other >= hidden) continue;
            const Index at = kBackward ? (Index{gate} * hidden + other) * a.weight_stride + unit
                                       : (Index{gate} * hidden + unit) * a.weight_stride + other;
            bits |= Bits<T>::load(a.weight + at) << (16 * e);
          }
          const bool once = kPerWord == 1 && !kSplit;  // rounded here, not in every step
          weights[chunk][tile][i / 2 * 4 + i % 2 * 2 + half] = Operand<once, false>(bits).upper;
        }
      }

  // The items of this thread: where they read and write.
  const std::uint32_t line_bytes = 4u * shape.line_floats;
  const std::uint32_t warp_bytes = (lines + 1) / 2 * 2 * line_bytes;
  bool live[kItems], sends[kItems];
  float h[kItems], c[kItems], bias[kItems][kBackward ? 1 : kSums], direct[kItems];
  std::uint32_t in[kItems][kRead], before[kItems], dy[kItems], part[kItems];
  Strided<const T> sums[kItems], from[kItems], cotangents[kItems];
  Strided<T> kept[kItems], y[kItems], cells[kItems];
  std::uint32_t* to[kItems][kSent];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int item = static_cast<int>(threadIdx.x) + j * kThreads;
    const int local = item % units, unit = first_unit + local;
    const int line = item / units, at = first_line + line;
    live[j] = line < lines && unit < hidden;
    sends[j] = line < lines && unit % kPerWord == 0 && unit / kPerWord < block_words;
    part[j] = parts + (line < lines ? line * line_bytes + local * sizeof(Part) : 0);
    sums[j] = a.sums.at_line(at).from(unit, 0);
    kept[j] = a.kept.at_line(at).from(unit, 0);
    y[j] = a.y.at_line(at).from(unit, 0);
    cells[j] = a.cells.at_line(at).from(unit, 0);
    from[j] = a.before.at_line(at).from(unit, 0);
    cotangents[j] = a.dy.at_line(at).from(unit, 0);
    const Index carry = Index{at} * hidden + unit;
    h[j] = live[j] ? a.h[carry] : 0.0f;
    c[j] = live[j] && C::kPair ? a.c[carry] : 0.0f;
    direct[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSums && !kBackward; ++i)
      bias[j][i] = live[j] ? a.bias[i * hidden + unit] : 0.0f;
#pragma unroll
    for (int i = 0; i < kSent; ++i) {
      const int word = i * block_words + unit / kPerWord;
      to[j][i] = exchange + (Index{word / 16} * batch + at) * 16 + word % 16;
    }
  }
  // Value i of item j, to every block of the group.
  const auto send_item = [&](int j, int i, float value) {
    std::uint32_t bits = Bits<T>::of(value);
    if (kPerWord == 2) bits |= __shfl_xor_sync(~0u, bits, 1) << 16;
    if (sends[j]) send(to[j][i], bits);
    to[j][i] += slot;
  };
  // What the items of step t read, ahead of its use.
  const auto fetch = [&](int t) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (!live[j] || t >= steps) continue;
#pragma unroll
      for (int i = 0; i < kRead; ++i) in[j][i] = Bits<T>::load(sums[j].data + Index{i} * hidden);
      sums[j].next();
      if (!kBackward) continue;
      dy[j] = cotangents[j].data ? Bits<T>::load(cotangents[j].data) : 0;
      if (cotangents[j].data) cotangents[j].next();
      if (t + 1 == steps) {
        const int item = static_cast<int>(threadIdx.x) + j * kThreads;
        from[j] = a.initial.at_line(first_line + item / units);
        if (from[j].data) from[j].data += first_unit + item % units;
      }
      before[j] = from[j].data ? Bits<T>::load(from[j].data) : 0;
      if (t + 1 < steps) from[j].next();
    }
  };
  const bool has_items = static_cast<int>(threadIdx.x) - lane < units * lines;  // this warp
  if (has_items) {
#pragma unroll
    for (int j = 0; j < kItems; ++j)
#pragma unroll
      for (int i = 0; i < kSent; ++i) send_item(j, i, kBackward ? 0.0f : h[j]);
    fetch(0);
  }

  const std::uint32_t* words_in =
      exchange + (Index{warp_sum * kChunks} * batch + first_line + row) * 16 + quad * 4;
  const int chunk_words = batch * 16;
  const std::uint32_t own_parts =
      parts + warp_sum * warp_bytes + 2 * quad * line_bytes +
      (warp_units * kUnitBlocks * 8 + row) * static_cast<int>(sizeof(Part));
  const std::uint32_t half_bytes = warps_along_sum * warp_bytes;
  std::uint32_t half = 0;  // which of two sets of partial sums, so that one barrier is enough
  // Backward ends with a product and no step: the cotangent of the state before the first one.
  const int turns = steps + kBackward;
  for (int t = 0; t < turns; ++t) {
    for (int first = 0; first < lines; first += 8) {
      const bool exists = first + row < lines;
      float sum[kChains][kTiles][4] = {};
#pragma unroll
      for (int done = 0; done < kChunks; done += kFetched) {
        uint4 v[kFetched];
        bool waits[kFetched];
#pragma unroll
        for (int i = 0; i < kFetched; ++i) {
          waits[i] = exists && (warp_sum * kChunks + done + i) * 16 + quad * 4 < words;
          v[i] = make_uint4(0, 0, 0, 0);
        }
        bool again;
        do {
          again = false;
#pragma unroll
          for (int i = 0; i < kFetched; ++i)
            if (waits[i]) v[i] = receive(words_in + first * 16 + Index{done + i} * chunk_words);
#pragma unroll
          for (int i = 0; i < kFetched; ++i) {
            waits[i] = waits[i] && absent(v[i]);
            again |= waits[i];
          }
        } while (__any_sync(~0u, again));
#pragma unroll
        for (int i = 0; i < kFetched; ++i) {
          using B = Operand<kPerWord == 1, kSplit>;
          const B b[4] = {B(v[i].x), B(v[i].y), B(v[i].z), B(v[i].w)};
#pragma unroll
          for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
              multiply<T, kSplit>(sum[(2 * i + step) % kChains][tile],
                                  weights[done + i][tile] + 4 * step, b[2 * step], b[2 * step + 1]);
        }
      }
#pragma unroll
      for (int i = 1; i < kChains; ++i)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[0][tile][e] += sum[i][tile][e];
      if (first + 2 * quad >= lines) continue;
#pragma unroll
      for (int block = 0; block < kUnitBlocks; ++block) {
        if ((warp_units * kUnitBlocks + block) * 8 >= units) continue;
        const std::uint32_t at = own_parts + half + first * line_bytes + block * 8 * sizeof(Part);
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const auto of = [&](int b) { return sum[0][b / 2][b % 2 * 2 + column]; };
          if constexpr (kBackward) {
            store_shared(at + column * line_bytes, of(block));
          } else {
            const int b = block * kBlocks;
            store_shared(
                at + column * line_bytes,
                make_float4(of(b), of(b + 1), of(b + 2), kBlocks > 3 ? of(b + kBlocks - 1) : 0.0f));
          }
        }
      }
    }
    __syncthreads();
    words_in += slot;
    if (has_items) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        Part p[dispatch::kPersistentWarps];
        std::uint32_t at = part[j] + half;
#pragma unroll
        for (int i = 0; i < dispatch::kPersistentWarps; ++i) {
          p[i] = Part();
          if (i < warps_along_sum) load_shared(at, p[i]);
          at += warp_bytes;
        }
        const Part total = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
        if constexpr (!kBackward) {
          const float products[4] = {total.x, total.y, total.z, total.w};
          float s[kSums];
#pragma unroll
          for (int i = 0; i < kSums; ++i) {
            s[i] = bias[j][i];
            if (i < C::kGates) s[i] += Bits<T>::value(in[j][i]);
          }
#pragma unroll
          for (int i = 0; i < C::kGates; ++i) s[cell::recurrent_sum<C>(i)] += products[i];
          const auto gates = C::template gather<float>([&](int i) { return s[i]; });
          const auto after = C::template step<float>(gates, {h[j], c[j]});
          h[j] = live[j] ? after.h : 0.0f;
          c[j] = live[j] ? after.c : 0.0f;
          if (t + 1 < steps) send_item(j, 0, h[j]);
          if (!live[j]) continue;
          *y[j].data = static_cast<T>(h[j]);
          y[j].next();
          if (!kept[j].data) continue;
#pragma unroll
          for (int i = 0; i < kSums; ++i) kept[j].data[Index{i} * hidden] = static_cast<T>(s[i]);
          kept[j].next();
          if (C::kPair) *cells[j].data = static_cast<T>(c[j]);
          if (C::kPair) cells[j].next();
        } else if (t < steps) {
          const auto gates =
              C::template gather<float>([&](int i) { return Bits<T>::value(in[j][i]); });
          const float dh = Bits<T>::value(dy[j]) + (t == 0 ? h[j] : total + direct[j]);
          const float b = Bits<T>::value(before[j]);
          const auto d = C::template step_vjp<float>(
              gates, {C::kPair ? 0.0f : b, C::kPair ? b : 0.0f}, {dh, c[j]});
          direct[j] = d.before.h;
          c[j] = d.before.c;
          float s[kSums];
          C::template scatter<float>(d.gates,
                                     [&](int i, float value) { s[i] = live[j] ? value : 0.0f; });
#pragma unroll
          for (int i = 0; i < kSent; ++i) send_item(j, i, s[cell::recurrent_sum<C>(i)]);
          if (!live[j]) continue;
#pragma unroll
          for (int i = 0; i < kSums; ++i) kept[j].data[Index{i} * hidden] = static_cast<T>(s[i]);
          kept[j].next();
        } else {
          h[j] = total + direct[j];
        }
      }
      fetch(t + 1);
    }
    half = half_bytes - half;
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    if (!live[j]) continue;
    const int item = static_cast<int>(threadIdx.x) + j * kThreads;
    const Index carry = Index{first_line + item / units} * hidden + first_unit + item % units;
    a.h[carry] = h[j];
    if (C::kPair) a.c[carry] = c[j];
  }
}

// Launches the kernel of the shape's tile.
template <class C, class T>
struct Launcher {
  using Args = CudaDenseArgs<T, float>;
  using Launch = cudaError_t (*)(const Args&, const PersistentShape&, void*, cudaStream_t);

  template <bool kBackward>
  static cudaError_t run(const Args& args, const PersistentShape& shape, void* exchange,
                         cudaStream_t stream) {
    using Indices = std::make_index_sequence<std::size(dispatch::persistent_tiles<kBackward>())>;
    if constexpr (std::is_same<T, float>::value) {
      if (shape.split_products) {
        return table<kBackward, true>(Indices())[shape.tile](args, shape, exchange, stream);
      }
    }
    return table<kBackward, false>(Indices())[shape.tile](args, shape, exchange, stream);
  }

 private:
  template <bool kBackward, bool kSplit, std::size_t... kTile>
  static const Launch* table(std::index_sequence<kTile...>) {
    static constexpr Launch launches[] = {launch<kBackward, kSplit, kTile>...};
    return launches;
  }
  template <bool kBackward, bool kSplit, std::size_t kTile>
  static cudaError_t launch(const Args& args, const PersistentShape& shape, void* exchange,
                            cudaStream_t stream) {
    constexpr PersistentTile tile = dispatch::persistent_tiles<kBackward>()[kTile];
    const auto of_tile =
        kernel<C, T, kBackward, kSplit, tile.unit_blocks, tile.chunks, tile.fetched, tile.items>;
    const Index most = (args.batch + shape.groups - 1) / shape.groups;
    const int warps_along_sum = dispatch::kPersistentWarps / shape.warps_along_units;
    const auto bytes =
        sizeof(float) * 2 *
        static_cast<std::size_t>(warps_along_sum * ((most + 1) / 2 * 2) * shape.line_floats);
    // All that there is: a limit that followed `bytes` could be lowered by another thread before
    // this one has launched.
    int device, limit;
    cudaError_t status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    status = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return status;
    status = cudaFuncSetAttribute(of_tile, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    if (status != cudaSuccess) return status;
    auto* words = static_cast<std::uint32_t*>(exchange);
    void* arguments[] = {const_cast<Args*>(&args), const_cast<PersistentShape*>(&shape), &words};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(of_tile),
                                       static_cast<unsigned>(shape.slices * shape.groups), kThreads,
                                       arguments, bytes, stream);
  }
};
template <class C>
struct Launcher<C, double> {
  template <bool>
  static cudaError_t run(const CudaDenseArgs<double, double>&, const PersistentShape&, void*,
                         cudaStream_t) {
    return cudaErrorInvalidConfiguration;  // the planner never asks for it
  }
};

}  // namespace scanrnn::persistent
