// SPDX-License-Identifier: Apache-2.0
// The CPU kernels for one instruction set. This file is compiled once for each; what it defines
// lives in that set's namespace, so that the linker never merges code of two sets. The build
// includes the header of every cell before it.
#include "cpu/kernels/table.h"

#include <cstring>

#include "cpu/kernels/dense.h"
#include "cpu/kernels/run.h"

namespace scanrnn::HWY_NAMESPACE {
namespace {

// The domain is the form in which elements cross threads; where none cross there is nothing to
// choose.
template <class T, class Source, class Sink>
void run_in_domain(const CpuSchedule& s, const Source& source, const Sink& sink) {
  if constexpr (!Source::kComposes) {
    using Step = decltype(source.step(source.load(0, 0)));
    scan::sequential<scan::StepwiseOp<Vec<T>, Step>>(s.team, extent_of<T>(s), source, sink,
                                                     {0, s.steps}, carry_of<T>(s));
  } else if (s.log_domain && s.chunk != 0) {
    run<scan::LogAffineOp<Vec<T>>>(s, extent_of<T>(s), source, sink);
  } else {
    run<scan::AffineOp<Vec<T>>>(s, extent_of<T>(s), source, sink);
  }
}

template <class Cell, class T>
void forward(const CpuSchedule& s, const ForwardKernelArgs<T>& a) {
  using Memory = Lanes<T>;
  run_in_domain<T>(s,
                   ForwardSource<Cell, Memory, true>{
                       {a.preactivations, a.bias, a.vectors, s.hidden}, a.skip, 0, a.masks},
                   ForwardSink<Cell, Memory>{a.y, a.states, s.hidden});
}

template <class Cell, class T>
void backward(const CpuSchedule& s, const BackwardKernelArgs<T>& a) {
  using Memory = Lanes<T>;
  run_in_domain<T>(
      s,
      BackwardSource<Cell, Memory, true>{{a.preactivations, a.bias, a.vectors, s.hidden},
                                         a.skip,
                                         a.states,
                                         a.initial,
                                         a.dy,
                                         s.steps - 1,
                                         a.masks},
      BackwardSink<Cell, Memory>{a.dpreactivations, a.dskip, a.dvectors, s.hidden});
}

// What the kernels read of a cell's vectors, and their cotangents from what they summed.
template <class Cell, class T>
void prepare_vectors(const T* vectors, Index count, T* out) {
  for (Index i = 0; i < count; i += Vec<T>::kLanes) {
    const Index row = i / Vec<T>::kLanes;
    Lanes<T>::write(out, row, count, Cell::vector(Lanes<T>::read(vectors, row, count)));
  }
}
template <class Cell, class T>
void finish_vectors(const T* vectors, Index count, T* sums) {
  for (Index i = 0; i < count; i += Vec<T>::kLanes) {
    const Index row = i / Vec<T>::kLanes;
    Lanes<T>::write(
        sums, row, count,
        Cell::vector_vjp(Lanes<T>::read(vectors, row, count), Lanes<T>::read(sums, row, count)));
  }
}
template <class Cell, class T>
CpuCellKernels<T> kernels_of_cell() {
  CpuCellKernels<T> out{&forward<Cell, T>, &backward<Cell, T>};
  if constexpr (Cell::kReadsOwn) {
    out.prepare_vectors = &prepare_vectors<Cell, T>;
    out.finish_vectors = &finish_vectors<Cell, T>;
  }
  return out;
}

template <class T>
void load_carry(const CpuSchedule& s, const T* h, Index line) {
  const scan::Extent extent = extent_of<T>(s);
  auto* carry = static_cast<scan::Carried<Vec<T>>*>(s.carry);
  const scan::Range mine = s.team.share(extent.lines * extent.rows);
  scan::for_lines(mine, extent.rows, [&](Index i, scan::Range rows) {
    for (Index row = rows.begin; row < rows.end; ++row) {
      carry[i * extent.rows + row] =
          scan::carried(h ? Lanes<T>::read(h + i * line, row, s.hidden) : Vec<T>(0));
    }
  });
}

template <class T>
void store_carry(const CpuSchedule& s, T* h, Index line) {
  if (!h) return;
  const scan::Extent extent = extent_of<T>(s);
  const auto* carry = static_cast<const scan::Carried<Vec<T>>*>(s.carry);
  const scan::Range mine = s.team.share(extent.lines * extent.rows);
  scan::for_lines(mine, extent.rows, [&](Index i, scan::Range rows) {
    for (Index row = rows.begin; row < rows.end; ++row) {
      Lanes<T>::write(h + i * line, row, s.hidden, carry[i * extent.rows + row].h);
    }
  });
}

template <class T>
void column_sums(const scan::Team& team, const T* values, Index count, Index stride, Index columns,
                 T* sums) {
  using V = Vec<T>;
  constexpr Index kRun = 16;  // plain additions between compensated ones
  const scan::Range mine = team.share((columns + V::kLanes - 1) / V::kLanes);
  constexpr Index kBlock = 8;  // vectors side by side, so that a pass reads whole cache lines
  for (Index block = mine.begin; block < mine.end; block += kBlock) {
    const Index width = std::min(kBlock, mine.end - block);
    scan::Carried<V> total[kBlock];
    for (Index j = 0; j < width; ++j) total[j] = scan::carried(V(0));
    for (Index first = 0; first < count; first += kRun) {
      V part[kBlock];
      for (Index j = 0; j < width; ++j) part[j] = V(0);
      for (Index i = first; i < std::min(first + kRun, count); ++i) {
        for (Index j = 0; j < width; ++j) {
          part[j] = part[j] + Lanes<T>::read(values + i * stride, block + j, columns);
        }
      }
      for (Index j = 0; j < width; ++j) {
        total[j] = scan::apply(scan::Affine<V>{V(1), V(0), part[j]}, total[j]);
      }
    }
    for (Index j = 0; j < width; ++j) Lanes<T>::write(sums, block + j, columns, total[j].h);
  }
}

void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, Index count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(to_dtype));
  } else if (to_dtype == Dtype::float32) {
    const auto* source = static_cast<const std::uint16_t*>(from);
    auto* target = static_cast<float*>(to);
    if (from_dtype == Dtype::float16) return halves_to_floats(source, target, count);
    for (Index i = 0; i < count; ++i) target[i] = widen(BFloat16{source[i]});
  } else {
    const auto* source = static_cast<const float*>(from);
    if (to_dtype == Dtype::float16) {
      return floats_to_halves(source, static_cast<std::uint16_t*>(to), count);
    }
    auto* target = static_cast<BFloat16*>(to);
    for (Index i = 0; i < count; ++i) narrow(source[i], target[i]);
  }
}

template <template <class> class CellOf, class T, class... Options>
void add(CpuCellKernels<T>* entry, cell::Variants<Options...>) {
  static_assert(sizeof...(Options) <= kMaxVariants);
  ((*entry++ = kernels_of_cell<CellOf<Options>, T>()), ...);
}

template <template <class> class CellOf, int kStates, int kPreactivations, class T,
          class... Options>
void add_dense(CpuDenseKernels<T>* entry, cell::Variants<Options...>) {
  static_assert(sizeof...(Options) <= kMaxVariants);
  static_assert(((CellOf<Options>::kPreactivations == kPreactivations &&
                  CellOf<Options>::kStates == kStates) &&
                 ...),
                "cells.def says otherwise");
  ((*entry++ = {&dense_forward<CellOf<Options>, T>, &dense_backward<CellOf<Options>, T>}), ...);
}

template <class T>
CpuTypeKernels<T> kernels_of() {
  CpuTypeKernels<T> out{{},
                        {},
                        {&pack_gates<T>, &pack_columns<T>, &project<T>, &project_back<T>},
                        &load_carry<T>,
                        &store_carry<T>,
                        &column_sums<T>};
#define SCANRNN_LINEAR_CELL(name, option, list, ...) \
  add<cell::name>(out.cells[static_cast<int>(Cell::name)], cell::list());
#define SCANRNN_DENSE_CELL(name, option, list, states, preactivations, ...)              \
  add_dense<cell::name, states, preactivations>(out.dense[static_cast<int>(Cell::name)], \
                                                cell::list());
#include "scanrnn/cells.def"
  return out;
}

}  // namespace

const CpuScanTable& scan_table();  // cpu/kernels/scan.cpp
const CpuLineTable& line_table();  // cpu/kernels/lines.cpp

const CpuKernels& table() {
  static const CpuKernels kernels{hwy::TargetName(HWY_TARGET),
                                  kernels_of<float>(),
                                  kernels_of<double>(),
                                  scan_table(),
                                  line_table(),
                                  &convert};
  return kernels;
}

}  // namespace scanrnn::HWY_NAMESPACE

namespace scanrnn {
const CpuKernels& SCANRNN_ISA_TABLE() { return HWY_NAMESPACE::table(); }
}  // namespace scanrnn
