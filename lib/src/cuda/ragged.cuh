// SPDX-License-Identifier: Apache-2.0
// Ragged batches on CUDA: integers are read on the device alone, once for all layers of a stack,
// and what does not exist, or comes from a pool of states, is moved by rows.
#pragma once

#include "cuda/pointwise.cuh"
#include "cuda/pool_rows.h"
#include "cuda/status.h"
#include "recurrence/dense_layer.h"
#include "stack/backend.h"

namespace scanrnn::ragged {

using pointwise::kThreads;

// Whether a pass of a dense layer needs no lines.
inline bool is_rectangle(const dispatch::Plan& plan, const Ragged& told, bool backward) {
  return !told.lengths && !told.cu_seqlens && dispatch::is_persistent(plan, backward);
}
// The tables of a batch, in memory of the arena: lines for a dense cell where they
// are needed, marks for a linear one and for training.
RaggedTables prepare(const dispatch::Plan& plan, const Ragged& told, bool backward, Arena& arena,
                     cudaStream_t stream);

// ---- rows: a warp takes one after another

using scan::cuda::kLanes;

// use(i, j) for the rows of [rows,columns,.].
template <class F>
__device__ __forceinline__ void for_rows(Index rows, Index columns, F&& use) {
  const Index warps = pointwise::item_stride() / kLanes;
  for (Index row = pointwise::first_item() / kLanes; row < rows * columns; row += warps) {
    use(row / columns, row % columns);
  }
}
// use(k) for the elements of a row.
template <class F>
__device__ __forceinline__ void for_elements(Index width, F&& use) {
  for (Index k = threadIdx.x % kLanes; k < width; k += kLanes) use(k);
}
inline Index rows_of(const TensorView& view) {
  Index rows = 1;
  for (int axis = 0; axis < view.rank - 1; ++axis) {
    rows *= view.sizes[static_cast<std::size_t>(axis)];
  }
  return rows;
}
inline unsigned blocks_for_rows(Index rows) {
  return static_cast<unsigned>(std::clamp<Index>(rows * kLanes / kThreads, 1, 1 << 12));
}

// A tensor of up to three axes as kernels see it; each T may be several adjacent elements.
template <class T>
struct Cube {
  T* data;
  Index rows = 1, columns = 1, width = 1, row = 0, column = 0, element = 0;

  explicit Cube(const TensorView& v, Index each = 1) : data(static_cast<T*>(v.data)) {
    const auto last = static_cast<std::size_t>(v.rank - 1);
    width = v.sizes[last] / each, element = v.strides[last];
    if (last > 0) columns = v.sizes[last - 1], column = v.strides[last - 1] / each;
    if (last > 1) rows = v.sizes[last - 2], row = v.strides[last - 2] / each;
  }
  __device__ __forceinline__ T& operator()(Index i, Index j, Index k) const {
    return data[i * row + j * column + k * element];
  }
};

// use(what rows of the tensors are moved by, how many elements that is): an element of type T, or a
// word of 16 bytes where rows of all tensors, of which some may be absent, are made of those.
template <class T, class F>
void with_pieces(std::initializer_list<TensorView> tensors, F&& use) {
  constexpr Index kEach = sizeof(uint4) / sizeof(T);
  const auto has_words = [](const TensorView& v) {
    const auto whole = [](Index i) { return i % kEach == 0; };
    const auto last = static_cast<std::size_t>(v.rank - 1);
    return !v.data ||
           (reinterpret_cast<std::uintptr_t>(v.data) % sizeof(uint4) == 0 && v.strides[last] == 1 &&
            whole(v.sizes[last]) && std::all_of(v.strides.data(), v.strides.data() + last, whole));
  };
  if (std::all_of(tensors.begin(), tensors.end(), has_words)) return use(uint4(), kEach);
  use(T(), Index{1});
}

template <class Piece>
__global__ void __launch_bounds__(kThreads) copy(Cube<const Piece> from, Cube<Piece> to) {
  for_rows(to.rows, to.columns, [&](Index i, Index j) {
    for_elements(to.width, [&](Index k) { to(i, j, k) = from(i, j, k); });
  });
}
template <class Piece>
__global__ void __launch_bounds__(kThreads) clear_behind(Cube<Piece> view, Integers lengths) {
  for_rows(view.rows, view.columns, [&](Index t, Index b) {
    if (t < lengths[b]) return;
    for_elements(view.width, [&](Index k) { view(t, b, k) = Piece{}; });
  });
}
// Zeros at the steps of a line from its length on, in a tensor [T,B,.] that has a token.
template <class T>
void clear_padding(const TensorView& view, Integers lengths, cudaStream_t stream) {
  with_pieces<T>({view}, [&](auto piece, Index each) {
    using Piece = decltype(piece);
    clear_behind<<<blocks_for_rows(rows_of(view)), kThreads, 0, stream>>>(Cube<Piece>(view, each),
                                                                          lengths);
    SCANRNN_CUDA(cudaGetLastError());
  });
}

// Zeros in [1,B,.] where the row is nobody's.
template <class T>
__global__ void __launch_bounds__(kThreads) clear_skipped(Cube<T> view, PoolRows rows) {
  for_rows(view.rows, view.columns, [&](Index i, Index j) {
    if (rows.of(j) >= 0) return;
    for_elements(view.width, [&](Index k) { view(i, j, k) = static_cast<T>(0.0f); });
  });
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    take_states(Cube<const T> pool, PoolRows rows, Cube<T> to) {
  for_rows(to.rows, to.columns, [&](Index i, Index j) {
    const Index row = rows.of(j);
    for_elements(to.width,
                 [&](Index k) { to(i, j, k) = row < 0 ? static_cast<T>(0.0f) : pool(i, row, k); });
  });
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    put_states(Cube<const T> from, PoolRows rows, Cube<T> pool) {
  for_rows(from.rows, from.columns, [&](Index i, Index j) {
    const Index row = rows.of(j);
    if (row < 0) return;
    for_elements(from.width, [&](Index k) { pool(i, row, k) = from(i, j, k); });
  });
}

// The states of sequences without a step: they pass through. [N,H]; absent ones are zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    pass(const SequenceBounds all, Strided<const T> from, Strided<T> to, Index hidden) {
  for_rows(1, all.count, [&](Index, Index n) {
    if (all.length(n) > 0) return;
    for_elements(hidden, [&](Index k) {
      to.at_line(n).data[k] = from.data ? from.at_line(n).data[k] : static_cast<T>(0.0f);
    });
  });
}
template <class T>
void pass_states(const SequenceBounds& all, const TensorView& from, const TensorView& to,
                 cudaStream_t stream) {
  pass<<<blocks_for_rows(all.count), kThreads, 0, stream>>>(
      all, Strided<const T>{static_cast<const T*>(from.data), from.strides[0], 0},
      Strided<T>{static_cast<T*>(to.data), to.strides[0], 0}, to.sizes[1]);
  SCANRNN_CUDA(cudaGetLastError());
}
// Between states in the order of the sequences, [N,H], and those in the order of the walk, `apart`
// from one another. Absent ones are all `fresh`; `rounded`, [N,H], may be absent.
template <class T, class V>
__global__ void __launch_bounds__(kThreads)
    to_lines(const RaggedLine* lines, Index count, Strided<const T> from, V* to, Index apart,
             T* rounded, Index hidden, V fresh) {
  for_rows(1, count, [&](Index, Index i) {
    const T* own = from.at_line(lines[i].sequence).data;
    for_elements(hidden, [&](Index k) {
      const T value = own ? own[k] : static_cast<T>(fresh);
      to[i * apart + k] = static_cast<V>(value);
      if (rounded) rounded[i * hidden + k] = value;
    });
  });
}
template <class T, class V>
__global__ void __launch_bounds__(kThreads)
    from_lines(const RaggedLine* lines, Index count, const V* from, Index apart, Strided<T> to,
               Index hidden) {
  for_rows(1, count, [&](Index, Index i) {
    T* own = to.at_line(lines[i].sequence).data;
    for_elements(hidden, [&](Index k) { own[k] = static_cast<T>(from[i * apart + k]); });
  });
}
// Rows of each sequence, [N,.], added to its edge; or the edges to the rows and, where there is no
// first one, zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_to_edges(EdgeSteps edges, Strided<const T> rows, Cube<T> tokens, Index width) {
  using V = typename scan::Units<T>::V;
  for_rows(1, edges.count(), [&](Index, Index n) {
    const Index step = edges.step(n);
    if (step < 0) return;
    const T* from = rows.at_line(n).data;
    for_elements(width, [&](Index k) {
      T& to = tokens(step, edges.line(n), k);
      to = static_cast<T>(static_cast<V>(to) + static_cast<V>(from[k]));
    });
  });
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    take_edges(EdgeSteps edges, Cube<const T> tokens, Strided<T> rows, Index width) {
  for_rows(1, edges.count(), [&](Index, Index n) {
    const Index step = edges.step(n);
    if (step < 0 && edges.last) return;
    T* to = rows.at_line(n).data;
    for_elements(width, [&](Index k) {
      to[k] = step < 0 ? static_cast<T>(0.0f) : tokens(step, edges.line(n), k);
    });
  });
}
// The initial states that come into a step; zeros for the others.
template <class T>
__global__ void __launch_bounds__(kThreads)
    take_entering(EdgeSteps edges, Cube<const T> states, Cube<T> rows) {
  for_rows(1, edges.count(), [&](Index, Index n) {
    const bool enters = edges.step(n) >= 0;
    for_elements(rows.width,
                 [&](Index k) { rows(0, n, k) = enters ? states(0, n, k) : static_cast<T>(0.0f); });
  });
}
// Sets all bits of as many slots as the longest line has steps from `first_step` on, and of one
// more; where it has none, of no slot.
template <class Piece>
__global__ void __launch_bounds__(kThreads)
    clear_slots(const RaggedLine* lines, Index first_step, Piece* memory, Index slot_pieces,
                Index slots) {
  const Index left = lines[0].steps - first_step;
  if (left <= 0) return;
  const Index pieces = min(left + 1, slots) * slot_pieces;
  for (Index i = pointwise::first_item(); i < pieces; i += pointwise::item_stride()) {
    memory[i] = Piece{~0u, ~0u, ~0u, ~0u};
  }
}
// The h before each token, [T,B,H], as the products with R saw it: zero behind a cut.
template <class Piece>
__global__ void __launch_bounds__(kThreads)
    keep_before(Marks marks, Cube<const Piece> y, Strided<const Piece> initial,
                Cube<Piece> before) {
  for_rows(y.rows, y.columns, [&](Index t, Index b) {
    const std::uint32_t m = marks.at_line(b).at(t);
    const Piece* from = nullptr;
    if (!Marks::absent(m) && !marks.cut(m)) {
      from = marks.enters(m) ? initial.at_line(Marks::sequence(m)).data
                             : &y(marks.reverse ? t + 1 : t - 1, b, 0);
    }
    for_elements(y.width, [&](Index k) { before(t, b, k) = from ? from[k] : Piece{}; });
  });
}

}  // namespace scanrnn::ragged
