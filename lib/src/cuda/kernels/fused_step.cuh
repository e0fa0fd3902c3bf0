// SPDX-License-Identifier: Apache-2.0
// A whole forward step of a dense cell for a few lines, products and all, in one launch. Weights
// are read once and nothing but the new state is written. Lines of a ragged batch come with their
// sums, and a step that is cut takes nothing that R gives.
#pragma once

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/project.cuh"
#include "cuda/kernels/step.cuh"

namespace scanrnn::step {

inline constexpr int kWarps = 8;  // of a block of the kernel by tensor cores
inline constexpr int kUnits = 8;  // and its units: rows of a fragment

// 16 bytes from p on, of which elements from `left` on are zeros.
template <bool kVectors, class T>
__device__ __forceinline__ uint4 load_piece(const T* p, Index left) {
  constexpr int kPerWord = fragment::Bits<T>::kPerWord;
  uint4 out = make_uint4(0, 0, 0, 0);
  if constexpr (kVectors) {
    if (left > 0) out = *reinterpret_cast<const uint4*>(p);
  } else {
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * kPerWord; ++i) {
      if (i < left) words[i / kPerWord] |= fragment::Bits<T>::load(p + i) << (i % kPerWord * 16);
    }
    out = make_uint4(words[0], words[1], words[2], words[3]);
  }
  return out;
}

// sum[group][tile] += this warp's share of the products of a unit's rows with lines, 8 of them a
// group. The sum may be taken in any order, so that 16 bytes of a lane are its part of two
// fragments.
template <class T, bool kVectors, int kGates, int kGroups, int kTiles>
__device__ __forceinline__ void multiply_rows(const T* rows, Index gate_rows, Index stride,
                                              const Strided<const T>& in, int lines, Index width,
                                              float (&sum)[kGroups][kTiles][4]) {
  using Word = fragment::Operand<fragment::Bits<T>::kPerWord == 1, false>;  // TF32, or 16 bits
  constexpr int kPiece = 16 / sizeof(T), kChunk = 4 * kPiece;
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll 4
  for (Index chunk = Index{warp} * kChunk; chunk < width; chunk += kWarps * kChunk) {
    const Index at = chunk + quad * kPiece, left = width - at;
    uint4 w[2 * kTiles] = {}, v[kGroups];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      w[gate] = load_piece<kVectors>(rows + gate * gate_rows * stride + at, rows ? left : 0);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int line = group * 8 + row;
      v[group] = load_piece<kVectors>(in.at_line(line).data + at, line < lines ? left : 0);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 &u = w[2 * tile], &l = w[2 * tile + 1];
      const std::uint32_t a[2][4] = {
          {Word(u.x).upper, Word(l.x).upper, Word(u.y).upper, Word(l.y).upper},
          {Word(u.z).upper, Word(l.z).upper, Word(u.w).upper, Word(l.w).upper}};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4& x = v[group];
        fragment::multiply<T, false>(sum[group][tile], a[0], Word(x.x), Word(x.y));
        fragment::multiply<T, false>(sum[group][tile], a[1], Word(x.z), Word(x.w));
      }
    }
  }
}

// By tensor cores, for kGroups times 8 lines: a block owns kUnits units, a warp a share of the
// inputs, and a thread adds up the sums of one unit of one line and makes its step.
template <class C, class T, bool kVectors, int kGroups>
__global__ void __launch_bounds__(32 * kWarps)
    fused_by_fragments(const __grid_constant__ CudaDenseArgs<T, float> a) {
  constexpr int kTiles = (C::kGates + 1) / 2, kLines = 8 * kGroups;
  constexpr int kSums = C::kPreactivations;
  static_assert(kSums <= 4, "a unit's sums are one float4");
  static_assert(kLines * kUnits <= 32 * kWarps, "a thread has one item");
  __shared__ float4 parts[kWarps][kLines][kUnits + 1];  // apart, so that quads meet other banks
  scan::cuda::await_stream();
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
  const Index first_unit = Index{blockIdx.x} * kUnits, first = Index{blockIdx.y} * kLines;
  const int lines = a.batch - first < kLines ? static_cast<int>(a.batch - first) : kLines;
  const int local = threadIdx.x % kUnits, line = threadIdx.x / kUnits;
  Item<C, T, float> item;
  item.line = first + line;
  item.unit = first_unit + local;
  const bool live = line < lines && item.unit < a.hidden && a.steps_of(item.line) > 0;
  if (live) item.load(a);  // what these loads bring is on its way during the products

  float input[kGroups][kTiles][4] = {}, recurrent[kGroups][kTiles][4] = {};
  const Index unit = first_unit + row;
  const bool exists = unit < a.hidden;
  if (!a.sums.data) {
    multiply_rows<T, kVectors, C::kGates>(
        exists ? a.input_weight + unit * a.input_weight_stride : nullptr, a.hidden,
        a.input_weight_stride, a.x.at_line(first), lines, a.input, input);
  }
  if (a.initial.data) {
    multiply_rows<T, kVectors, C::kGates>(exists ? a.weight + unit * a.weight_stride : nullptr,
                                          a.hidden, a.weight_stride, a.initial.at_line(first),
                                          lines, a.hidden, recurrent);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      auto part = DenseSums<C, float>::zeros();
      part.add_input([&](int i) { return input[group][i / 2][i % 2 * 2 + column]; });
      part.add_recurrent([&](int i) { return recurrent[group][i / 2][i % 2 * 2 + column]; });
      const auto of = [&](int i) { return i < kSums ? part.value[i < kSums ? i : 0] : 0.0f; };
      parts[warp][group * 8 + 2 * quad + column][row] = make_float4(of(0), of(1), of(2), of(3));
    }
  }
  __syncthreads();
  if (!live) return;
  if (!item.cut) {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float4 part = parts[i][line][local];
      const float sums[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int s = 0; s < kSums; ++s) item.sums.value[s] += sums[s];
    }
  }
  item.walk(a);
}

// Sums of kCount values over the lanes of a warp. A lane sends one half of its values and keeps the
// other until one is left: value number lane / (32 / kCount).
template <int kCount, int kApart = scan::cuda::kLanes / 2, class V>
__device__ __forceinline__ V sums_over_lanes(V* values) {
  if constexpr (kApart == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(~0u, values[0], kApart);
    return sums_over_lanes<1, kApart / 2>(values);
  } else {
    const bool upper = threadIdx.x & kApart;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const V kept = upper ? values[i + kCount / 2] : values[i];
      const V sent = upper ? values[i] : values[i + kCount / 2];
      values[i] = kept + __shfl_xor_sync(~0u, sent, kApart);
    }
    return sums_over_lanes<kCount / 2, kApart / 2>(values);
  }
}

// Without tensor cores: a warp owns a unit and reads its rows of W and R once for kLines lines;
// then lane k makes the step of line k. For what tensor cores would round, and for one line of any
// type, which would leave seven columns of a fragment empty.
template <class C, class T, int kVector, int kLines>
__global__ void __launch_bounds__(kProjectWarps* scan::cuda::kLanes)
    fused_by_lanes(const __grid_constant__ CudaDenseArgs<T, typename CudaDenseKernels<T>::V> a) {
  using V = typename CudaDenseKernels<T>::V;
  constexpr int kLanes = scan::cuda::kLanes, kSums = C::kPreactivations;
  constexpr int kApart = kLanes / (kSums * kLines);  // lanes that end with the same sum
  static_assert(kApart * kSums * kLines == kLanes, "sums are halved until a lane has one");
  scan::cuda::await_stream();
  const int lane = threadIdx.x % kLanes;
  const Index unit = Index{blockIdx.x} * kProjectWarps + threadIdx.x / kLanes;
  const Index first = Index{blockIdx.y} * kLines;
  if (unit >= a.hidden) return;
  const int lines = a.batch - first < kLines ? static_cast<int>(a.batch - first) : kLines;
  Item<C, T, V> item;
  item.line = first + lane;
  item.unit = unit;
  const bool live = lane < lines && a.steps_of(item.line) > 0;
  if (live) item.load(a);  // what these loads bring is on its way during the products

  V input[kLines][C::kGates] = {}, recurrent[kLines][C::kGates] = {};
  const T* rows[C::kGates];
  if (!a.sums.data) {
#pragma unroll
    for (int i = 0; i < C::kGates; ++i) {
      rows[i] = a.input_weight + (i * a.hidden + unit) * a.input_weight_stride;
    }
    project<kVector>(rows, {a.x.data, 0, a.x.line}, first, lines, a.input, input);
  }
  if (a.initial.data) {
#pragma unroll
    for (int i = 0; i < C::kGates; ++i) {
      rows[i] = a.weight + (i * a.hidden + unit) * a.weight_stride;
    }
    project<kVector>(rows, {a.initial.data, 0, a.initial.line}, first, lines, a.hidden, recurrent);
  }
  V parts[kLines * kSums];
#pragma unroll
  for (int k = 0; k < kLines; ++k) {
    auto part = DenseSums<C, V>::zeros();
    part.add_input([&](int i) { return input[k][i]; });
    part.add_recurrent([&](int i) { return recurrent[k][i]; });
#pragma unroll
    for (int i = 0; i < kSums; ++i) parts[k * kSums + i] = part.value[i];
  }
  const V total = sums_over_lanes<kLines * kSums>(parts);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const V sum = __shfl_sync(~0u, total, (lane * kSums + i) * kApart);
    if (!item.cut) item.sums.value[i] += sum;
  }
  if (live) item.walk(a);
}

template <class C, class T>
cudaError_t launch_fused(const CudaDenseArgs<T, typename CudaDenseKernels<T>::V>& a,
                         cudaStream_t stream) {
  constexpr int kPiece = kVectorOf<T>;
  const bool vectors =
      reads_by_vectors(a.weight, a.weight_stride) &&
      reads_by_vectors(a.initial.data, a.initial.line) && a.hidden % kPiece == 0 &&
      (a.sums.data || (reads_by_vectors(a.input_weight, a.input_weight_stride) &&
                       reads_by_vectors(a.x.data, a.x.line) && a.input % kPiece == 0));
  const auto run = [&](auto kernel, Index units, Index lines, int threads) {
    const dim3 grid(static_cast<unsigned>((a.hidden + units - 1) / units),
                    static_cast<unsigned>((a.batch + lines - 1) / lines));
    return scan::cuda::launch_early(kernel, grid, threads, 0, stream, a);
  };
  constexpr int kLaneThreads = kProjectWarps * scan::cuda::kLanes;
  if (vectors && a.batch == 1) {
    return run(fused_by_lanes<C, T, kPiece, 1>, kProjectWarps, 1, kLaneThreads);
  }
  if constexpr (sizeof(T) >= 4) {
    if (a.exact_products) {
      return vectors ? run(fused_by_lanes<C, T, kPiece, 4>, kProjectWarps, 4, kLaneThreads)
                     : run(fused_by_lanes<C, T, 1, 4>, kProjectWarps, 4, kLaneThreads);
    }
  }
  if constexpr (sizeof(T) <= 4) {
    if (!vectors) return run(fused_by_fragments<C, T, false, 1>, kUnits, 8, 32 * kWarps);
    if (a.batch > 8) return run(fused_by_fragments<C, T, true, 2>, kUnits, 16, 32 * kWarps);
    return run(fused_by_fragments<C, T, true, 1>, kUnits, 8, 32 * kWarps);
  }
  return cudaErrorInvalidConfiguration;  // float64 without exact products, which nobody asks for
}

}  // namespace scanrnn::step
