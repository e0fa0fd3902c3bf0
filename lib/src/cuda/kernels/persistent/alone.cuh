// SPDX-License-Identifier: Apache-2.0
// A small dense cell's whole sequence, a block for each line of each head. The block keeps all of R
// as float32, in registers and the rest in shared memory, and multiplies exactly, by fused
// multiply-adds: one line is too little for tensor cores. Blocks tell one another nothing, so they
// need not be resident together.
//
// Eight warps multiply, others step a unit a thread. While these store what a step gave and fetch
// what the next one reads, those multiply: a step is a product, the way of its sums through shared
// memory, and the cell's own arithmetic.
#pragma once

#include "cuda/kernels/persistent/item.cuh"
#include "cuda/kernels/persistent/weights.cuh"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn::persistent {

// How a block cuts R. A lane has kOwn units, of each a row for each sum (forward the gates',
// backward one, which is R's column in all gates), and of these every fourth piece of four values:
// the pieces of the four lanes that share a unit lie side by side.
template <class C, bool kBackward, int kUnitBlocks>
struct AloneCut {
  static constexpr auto kAlone = dispatch::persistent_alone(kUnitBlocks, C::kGates, kBackward);
  static constexpr int kOwn = kUnitBlocks, kSums = kBackward ? 1 : C::kGates;
  static constexpr int kRows = kOwn * kSums, kUnits = kAlone.units;
  static constexpr int kSent = kBackward ? C::kGates : 1;  // values of a unit that products read
  static constexpr int kPieces = kAlone.pieces, kKept = kPieces - kAlone.shared_pieces;
  static constexpr int kThreadsOfAll =
      kThreads + kUnits;  // a unit each, behind those that multiply

  using Part = typename std::conditional<kBackward, float, float4>::type;
  // In shared memory, after weights that have no room in registers.
  using Values = float[kSent][kUnits];
  static __device__ __forceinline__ Values* values(float4* memory) {
    return reinterpret_cast<Values*>(reinterpret_cast<char*>(memory) + kWeightBytes);
  }
  static __device__ __forceinline__ Part* parts(float4* memory) {
    return reinterpret_cast<Part*>(values(memory) + 1);
  }
  static constexpr int kWeightBytes = kAlone.shared_pieces * kRows * kThreads * 16;
  static_assert(kWeightBytes + sizeof(Values) + sizeof(Part) * kUnits == kAlone.shared_bytes,
                "the planner counts what the kernel takes");
};

// A lane's pieces of its rows.
template <class Cut>
struct AlonePieces {
  float4 kept[Cut::kKept][Cut::kRows];
  std::uint32_t at;  // of this thread's first piece in shared memory

  __device__ __forceinline__ std::uint32_t address(int piece, int row) const {
    return at + ((piece - Cut::kKept) * Cut::kRows + row) * kThreads * 16;
  }
  __device__ __forceinline__ void put(int piece, int row, const float4& w) {
    if (piece < Cut::kKept) {
      kept[piece < Cut::kKept ? piece : 0][row] = w;
    } else {
      store_shared(address(piece, row), w);
    }
  }
  __device__ __forceinline__ float4 get(int piece, int row) const {
    if (piece < Cut::kKept) return kept[piece < Cut::kKept ? piece : 0][row];
    float4 w;
    load_shared(address(piece, row), w);
    return w;
  }
};

// All threads of the block have come.
template <class Cut>
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(1), "n"(Cut::kThreadsOfAll) : "memory");
}

// The warps that multiply.
template <class Cut, bool kBackward, class T>
struct AloneProducts {
  AlonePieces<Cut> pieces;
  std::uint32_t values, parts;  // of this lane, in shared memory
  bool leaves;                  // whether this lane leaves what its unit's four lanes have added up

  __device__ __forceinline__ AloneProducts(const CudaRecurrent<T>& a, const HeadShare& head,
                                           float4* memory) {
    const int group = threadIdx.x / 4, part = threadIdx.x % 4;
    const int first = group * Cut::kOwn;  // of this lane's units
    pieces.at = kept_address(memory + threadIdx.x);
    values = kept_address(reinterpret_cast<float4*>(Cut::values(memory)) + part);
    parts = kept_address(Cut::parts(memory) + first + part % Cut::kOwn);
    leaves = part < Cut::kOwn;
#pragma unroll
    for (int piece = 0; piece < Cut::kPieces; ++piece)
#pragma unroll
      for (int row = 0; row < Cut::kRows; ++row) {
        const int unit = first + row / Cut::kSums, from = (piece * 4 + part) * 4;
        const auto value = [&](int e) {
          const int gate = kBackward ? (from + e) / Cut::kUnits : row % Cut::kSums;
          const int other = kBackward ? (from + e) % Cut::kUnits : from + e;
          if (unit >= head.units || other >= head.units) return 0.0f;
          const Index at = gate * a.hidden + head.first + (kBackward ? other : unit);
          return static_cast<float>(a.weight[at * a.weight_stride + (kBackward ? unit : other)]);
        };
        pieces.put(piece, row, make_float4(value(0), value(1), value(2), value(3)));
      }
  }
  // The products of R with the values that are there now.
  __device__ __forceinline__ void multiply() const {
    float sum[Cut::kRows] = {};
#pragma unroll
    for (int piece = 0; piece < Cut::kPieces; ++piece) {
      float4 v;
      load_shared(values + piece * 64, v);
#pragma unroll
      for (int row = 0; row < Cut::kRows; ++row) {
        const float4 w = pieces.get(piece, row);
        sum[row] = fmaf(w.w, v.w, fmaf(w.z, v.z, fmaf(w.y, v.y, fmaf(w.x, v.x, sum[row]))));
      }
    }
    // Four lanes share units; where there are two, each pair of lanes goes on with one.
    const bool second = Cut::kOwn > 1 && threadIdx.x % 2 == 1;
    float total[4] = {};
#pragma unroll
    for (int i = 0; i < Cut::kSums; ++i) {
      const float upper = sum[Cut::kOwn > 1 ? Cut::kSums + i : i];
      total[i] = (second ? upper : sum[i]) + __shfl_xor_sync(~0u, second ? sum[i] : upper, 1);
    }
#pragma unroll
    for (int i = 0; i < Cut::kSums; ++i) total[i] += __shfl_xor_sync(~0u, total[i], 2);
    if (!leaves) return;
    if constexpr (kBackward) {
      store_shared(parts, total[0]);
    } else {
      store_shared(parts, make_float4(total[0], total[1], total[2], total[3]));
    }
  }
};

// A thread that steps a unit.
template <class Cut, class C, class T, bool kBackward, Lines kLines>
struct AloneStepper {
  using Args = CudaDenseArgs<T, float>;
  using Unit = Item<C, T, kBackward, kLines>;

  Unit item;
  std::uint32_t values, part;
  std::uint32_t ahead[Unit::kRead];  // forward: what the step after the next one reads

  __device__ __forceinline__ AloneStepper(const Args& a, const HeadShare& head, int line,
                                          float4* memory) {
    const int unit = static_cast<int>(threadIdx.x) - kThreads;
    values = kept_address(reinterpret_cast<float*>(Cut::values(memory)) + unit);
    part = kept_address(Cut::parts(memory) + unit);
    item.open(a, line, head.first + unit, unit < head.units);
    // What no item ever sends is zero, and so is what comes before the last step, backward.
#pragma unroll
    for (int i = 0; i < Cut::kSent; ++i) store_shared(values + i * Cut::kUnits * 4, 0.0f);
    if (!kBackward) send();
    item.fetch(a, 0);
    if (!kBackward) item.fetch_sums(a, 1, ahead);
  }
  // What products read is rounded as a tensor would be.
  __device__ __forceinline__ void send() const {
    if (!item.live) return;
#pragma unroll
    for (int i = 0; i < Cut::kSent; ++i) {
      store_shared(values + i * Cut::kUnits * 4, Bits<T>::value(Bits<T>::of(item.sent(i))));
    }
  }
  __device__ __forceinline__ typename Cut::Part total() const {
    typename Cut::Part out;
    load_shared(part, out);
    return out;
  }
  __device__ __forceinline__ void go_on(const Args& a, int t) {
    item.store(a);
    if constexpr (kBackward) {
      item.fetch(a, t + 1);
      item.expect_later(a, t + 1);
    } else {
#pragma unroll
      for (int i = 0; i < Unit::kRead; ++i) item.in[i] = ahead[i];
      item.fetch_draws(a, t + 1);
      item.fetch_sums(a, t + 2, ahead);
    }
  }
};

// Registers by what a thread has to do, where the architecture lets warps hand them over.
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
#endif
}
__device__ __forceinline__ void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
#endif
}

template <class C, class T, bool kBackward, Lines kLines, int kUnitBlocks>
__global__ void __launch_bounds__(AloneCut<C, kBackward, kUnitBlocks>::kThreadsOfAll,
                                  AloneCut<C, kBackward, kUnitBlocks>::kAlone.resident)
    alone_kernel(const __grid_constant__ CudaDenseArgs<T, float> a) {
  using Cut = AloneCut<C, kBackward, kUnitBlocks>;
  extern __shared__ float4 memory[];
  const HeadShare head(a);
  const int line = static_cast<int>(blockIdx.x);
  const int steps = static_cast<int>(a.steps_of(line));
  const bool multiplies = threadIdx.x < kThreads;
  if (multiplies) {
    if constexpr (Cut::kAlone.wide) take_registers();
    const AloneProducts<Cut, kBackward, T> products(a, head, memory);
    meet<Cut>();
    // Backward ends with a product and no step: the cotangent of the state before the first one.
    for (int t = 0; t < steps + kBackward; ++t) {
      products.multiply();
      meet<Cut>();  // sums are there
      meet<Cut>();  // and what the next product reads
    }
  } else {
    if constexpr (Cut::kAlone.wide) give_registers();
    AloneStepper<Cut, C, T, kBackward, kLines> stepper(a, head, line, memory);
    meet<Cut>();
    for (int t = 0; t < steps; ++t) {
      meet<Cut>();
      stepper.item.step(a, t, stepper.total());
      stepper.send();
      meet<Cut>();
      stepper.go_on(a, t);
    }
    if constexpr (kBackward) {
      meet<Cut>();
      stepper.item.finish(stepper.total());
      meet<Cut>();
    }
    stepper.item.close(a);
  }
}

template <class C, class T, bool kBackward, int kUnitBlocks>
cudaError_t launch_alone(const CudaDenseArgs<T, float>& args, dim3 blocks, cudaStream_t stream) {
  using Cut = AloneCut<C, kBackward, kUnitBlocks>;
  const auto kernel = by_kind_of_lines(
      args, [](auto kind) { return alone_kernel<C, T, kBackward, kind, kUnitBlocks>; });
  constexpr int kBytes = Cut::kAlone.shared_bytes;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  kernel<<<blocks, Cut::kThreadsOfAll, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace scanrnn::persistent
