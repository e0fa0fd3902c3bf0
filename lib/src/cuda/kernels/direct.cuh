// SPDX-License-Identifier: Apache-2.0
// Direct on CUDA: projection and recurrence in one launch, for a few tokens. A warp owns one unit
// of one batch entry, or of four where there is one step, whose pre-activations never leave its
// registers; or, for one step of a few lines in 16 bits, a block some units of all of them, by
// tensor cores.
#pragma once

#include "cuda/kernels/fragment_sums.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/project.cuh"
#include "scanrnn/dispatch/direct.h"
#include "scanrnn/dispatch/tiles.h"

namespace scanrnn {

inline constexpr int kDirectTokens = dispatch::kCudaDirectTokens;
inline constexpr Index kDirectSlab = 65535;  // as high as a grid may be; the rest is its depth

// One unit of one line on its way through a few tokens, from sums that the kernel has made. kRows
// is the cell's gates, and one more with a projected highway input.
template <class Cell, class T, int kRows>
struct DirectItem {
  using Memory = LayerUnits<T>;
  using V = typename Memory::V;

  const CudaSchedule& s;
  Index line, unit, hidden;
  bool writes;
  V bias[kRows];
  Unit<Cell, V, true> item{{}, {}, {V(0)}};
  Strided<const T> skip;
  Strided<T> kept;
  ForwardSink<Cell, Memory> sink;
  StateEnds<Memory> ends;
  Marks marks;
  Masks masks;
  scan::Carried<V> state;

  __device__ __forceinline__ DirectItem(const CudaSchedule& s, const DirectKernelArgs<T>& a,
                                        Index line, Index unit, bool writes)
      : s(s),
        line(line),
        unit(unit),
        hidden(s.extent.rows),
        writes(writes),
        skip(a.skip.at_line(line)),
        kept(a.preactivations.at_line(line)),
        sink(ForwardSink<Cell, Memory>{a.y, a.states, s.extent.rows}.line(line)),
        ends(ends_of<Memory>(s)),
        marks(s.marks.at_line(line)),
        masks(a.masks.at_line(line)),
        state(s.ragged ? scan::carried(V(0)) : ends.first(line, unit)) {
#pragma unroll
    for (int gate = 0; gate < kRows; ++gate) {
      const bool has = a.bias && gate >= a.first_bias && gate < a.last_bias;
      bias[gate] = has ? Memory::read(a.bias + (gate - a.first_bias) * hidden, unit, hidden) : V(0);
    }
    read_vectors<Cell, Memory>(a.vectors, unit, hidden, item.own);
  }
  // Step t, from what the projection gives.
  __device__ __forceinline__ void step(Index t, V (&sums)[kRows]) {
#pragma unroll
    for (int gate = 0; gate < kRows; ++gate) {
      // A kept pre-activation carries its bias exactly where one from a matrix product does.
      if (writes && kept.data) {
        Memory::write(kept.at(t) + gate * hidden, unit, hidden,
                      Memory::kAddsBias ? sums[gate] : sums[gate] + bias[gate]);
      }
      sums[gate] += bias[gate];
    }
    item.gates = Cell::template gather<V>([&](int gate) { return sums[gate]; });
    if constexpr (kReadsX<Cell>) {
      item.own.x = kRows > Cell::kGates ? sums[kRows - 1] : Memory::read(skip.at(t), unit, hidden);
    }
    const std::uint32_t mark = s.ragged ? marks.at(t) : 0;
    if (Marks::absent(mark)) return;
    if (marks.enters(mark)) state = ends.first(Marks::sequence(mark), unit);
    if (marks.cut(mark)) state = scan::carried(V(0));
    if (masks) static_cast<Drawn<V, true>&>(item) = masks.at<Memory>(unit, t);
    const auto before = state;
    using scan::apply;
    state = apply(step_of(item), before);
    if (writes) sink.store(unit, t, item, before, state);
    if (writes && marks.leaves(mark)) ends.last(Marks::sequence(mark), unit, state);
  }
  __device__ __forceinline__ void close() const {
    if (writes && !s.ragged) ends.last(line, unit, state);
  }
};

// The sums of so many tokens exactly, in all lanes: as project(), but all pieces of a turn are
// asked for before the first product, which no branch of a token keeps apart.
template <int kVector, int kTokens, int kRows, class T, class V, class Token>
__device__ __forceinline__ void project_all(const T* const (&rows)[kRows], Token&& token,
                                            Index width, V (&sums)[kTokens][kRows]) {
  constexpr int kUnroll = kVector * sizeof(T) < 16 ? 8 : 4;
  const T* tokens[kTokens];
#pragma unroll
  for (int k = 0; k < kTokens; ++k) tokens[k] = token(k);
#pragma unroll kUnroll
  for (Index c = threadIdx.x % scan::cuda::kLanes * kVector; c < width;
       c += scan::cuda::kLanes * kVector) {
    Piece<T, kVector> w[kRows], in[kTokens];
    load_pieces(rows, c, w);
    load_pieces(tokens, c, in);
#pragma unroll
    for (int k = 0; k < kTokens; ++k) add_products(w, in[k], sums[k]);
  }
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) sums[k][row] = sum_of_lanes(sums[k][row]);
  }
}
// use(k, sums of token k) for so many tokens, kDirectTokens at most.
template <int kVector, class V, int kRows, class T, class Token, class Use>
__device__ __forceinline__ void project_few(const T* const (&rows)[kRows], Token&& token,
                                            int tokens, Index width, Use&& use) {
  if (tokens == 1) {
    V sums[1][kRows] = {};
    project_all<kVector>(rows, token, width, sums);
    return use(0, sums[0]);
  }
  V sums[kDirectTokens][kRows] = {};
  const auto there = [&](int k) { return token(min(k, tokens - 1)); };
  project_all<kVector>(rows, there, width, sums);
#pragma unroll
  for (int k = 0; k < kDirectTokens; ++k) {
    if (k < tokens) use(k, sums[k]);
  }
}

template <class Cell, class T, int kRows, int kVector>
__global__ void __launch_bounds__(kProjectWarps* scan::cuda::kLanes)
    direct_kernel(const CudaSchedule s, const DirectKernelArgs<T> a) {
  using Walk = DirectItem<Cell, T, kRows>;
  using V = typename Walk::V;
  scan::cuda::await_stream();
  const Index hidden = s.extent.rows, lines = dispatch::cuda_direct_lines(s.extent.steps);
  const Index unit = Index{blockIdx.x} * kProjectWarps + threadIdx.x / scan::cuda::kLanes;
  const Index line = (Index{blockIdx.z} * kDirectSlab + blockIdx.y) * lines;
  if (unit >= hidden || line >= s.extent.lines) return;

  const T* weight[kRows];
#pragma unroll
  for (int gate = 0; gate < kRows; ++gate) {
    weight[gate] = a.weight + (gate * hidden + unit) * a.weight_stride;
  }
  const bool writes = threadIdx.x % scan::cuda::kLanes == 0;
  if (lines > 1) {
    const int count = static_cast<int>(min(lines, s.extent.lines - line));
    const auto token = [&](int k) { return a.x.at_line(line + k).data; };
    return project_few<kVector, V>(weight, token, count, a.input, [&](int k, V(&sums)[kRows]) {
      Walk walk(s, a, line + k, unit, writes);
      walk.step(0, sums);
      walk.close();
    });
  }
  Walk walk(s, a, line, unit, writes);
  const auto x = a.x.at_line(line);
  for (Index t = 0; t < s.extent.steps; t += kDirectTokens) {
    const int tokens = static_cast<int>(min(Index{kDirectTokens}, s.extent.steps - t));
    const auto token = [&](int k) { return x.at(t + k); };
    project_few<kVector, V>(weight, token, tokens, a.input,
                            [&](int k, V(&sums)[kRows]) { walk.step(t + k, sums); });
  }
  walk.close();
}

// One step of up to kGroups times 8 lines.
template <class Cell, class T, int kRows, int kGroups>
__global__ void __launch_bounds__(step::kWarps* scan::cuda::kLanes)
    direct_step_kernel(const CudaSchedule s, const DirectKernelArgs<T> a) {
  using Sums = step::FragmentSums<T, true, kRows, kGroups>;
  __shared__ float parts[step::kWarps][8 * kGroups][step::kUnits][kRows | 1];  // odd: other banks
  scan::cuda::await_stream();
  const Index hidden = s.extent.rows, first_unit = Index{blockIdx.x} * step::kUnits;
  const int lines = static_cast<int>(s.extent.lines), lane = threadIdx.x % scan::cuda::kLanes;
  const Index row = first_unit + lane / 4;
  Sums sums;
  sums.multiply({row < hidden ? a.weight + row * a.weight_stride : nullptr,
                 hidden * a.weight_stride, a.input},
                Sums::lines(lines, [&](int i) { return a.x.at_line(i).data; }), 0, a.input);
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    const int line = i / 2 * 8 + lane % 4 * 2 + i % 2;
#pragma unroll
    for (int gate = 0; gate < kRows; ++gate) {
      parts[threadIdx.x / scan::cuda::kLanes][line][lane / 4][gate] =
          sums.value[i / 2][gate / 2][gate % 2 * 2 + i % 2];
    }
  }
  __syncthreads();
  const int line = threadIdx.x / step::kUnits, own = threadIdx.x % step::kUnits;
  if (line >= lines || first_unit + own >= hidden) return;
  float totals[kRows] = {};
#pragma unroll
  for (int warp = 0; warp < step::kWarps; ++warp) {
#pragma unroll
    for (int gate = 0; gate < kRows; ++gate) totals[gate] += parts[warp][line][own][gate];
  }
  DirectItem<Cell, T, kRows> walk(s, a, line, first_unit + own, true);
  walk.step(0, totals);
  walk.close();
}

template <class Cell, class T, int kRows>
cudaError_t launch_direct_rows(const CudaSchedule& s, const DirectKernelArgs<T>& a) {
  // Whether all rows begin at pieces of so many elements.
  const auto reads_by = [&](Index elements) {
    const auto piece = static_cast<std::uintptr_t>(elements) * sizeof(T);
    return reinterpret_cast<std::uintptr_t>(a.weight) % piece == 0 &&
           reinterpret_cast<std::uintptr_t>(a.x.data) % piece == 0 &&
           (a.weight_stride | a.x.line | a.x.step | a.input) % elements == 0;
  };
  const bool vectors = reads_by(kVectorOf<T>);
  const auto warps = [](Index units, int each) {
    return static_cast<unsigned>((units + each - 1) / each);
  };
  if constexpr (sizeof(T) == 2) {
    if (vectors && dispatch::cuda_direct_step(s.extent.steps, s.extent.lines, sizeof(T))) {
      const auto run = [&](auto kernel) {
        return scan::cuda::launch_early(kernel, dim3(warps(s.extent.rows, step::kUnits)),
                                        step::kWarps * scan::cuda::kLanes, {}, s.stream, s, a);
      };
      return s.extent.lines > 8 ? run(direct_step_kernel<Cell, T, kRows, 2>)
                                : run(direct_step_kernel<Cell, T, kRows, 1>);
    }
  }
  const Index each = dispatch::cuda_direct_lines(s.extent.steps);
  const Index lines = (s.extent.lines + each - 1) / each;
  const Index slabs = (lines + kDirectSlab - 1) / kDirectSlab;
  if (slabs > kDirectSlab) return cudaErrorInvalidConfiguration;
  const dim3 grid(warps(s.extent.rows, kProjectWarps),
                  static_cast<unsigned>(lines < kDirectSlab ? lines : kDirectSlab),
                  static_cast<unsigned>(slabs));
  const auto run = [&](auto kernel) {
    return scan::cuda::launch_early(kernel, grid, kProjectWarps * scan::cuda::kLanes, {}, s.stream,
                                    s, a);
  };
  if (vectors) return run(direct_kernel<Cell, T, kRows, kVectorOf<T>>);
  if constexpr (sizeof(T) == 2) {
    if (reads_by(2)) return run(direct_kernel<Cell, T, kRows, 2>);
  }
  return run(direct_kernel<Cell, T, kRows, 1>);
}
template <class Cell, class T>
cudaError_t launch_direct(const CudaSchedule& s, const DirectKernelArgs<T>& a) {
  if (s.extent.lines == 0 || s.extent.rows == 0) return cudaSuccess;
  if constexpr (Cell::kHighway) {
    if (!a.skip.data) return launch_direct_rows<Cell, T, Cell::kGates + 1>(s, a);
  }
  return launch_direct_rows<Cell, T, Cell::kGates>(s, a);
}

}  // namespace scanrnn
