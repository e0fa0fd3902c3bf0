// SPDX-License-Identifier: Apache-2.0
// Steps of whole lines for one instruction set, and norms of rows; compiled once for each, as
// cpu/kernels/table.cpp is.

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace scanrnn::HWY_NAMESPACE {
namespace {

// The workers of a row (recurrence/norm.h): this thread. Sums are in double, of few parts.
template <class T>
struct OneThread {
  using W = T;

  template <class F>
  void rows(Index width, F&& use) const {
    for (Index row = 0; row * Vec<T>::kLanes < width; ++row) use(row);
  }
  template <class F>
  T sum(Index count, F&& value) const {
    constexpr Index kParts = 8;  // that lie side by side in vectors
    double parts[kParts] = {};
    Index i = 0;
    for (; i + kParts <= count; i += kParts) {
      for (Index k = 0; k < kParts; ++k) parts[k] += static_cast<double>(value(i + k));
    }
    for (Index k = 0; i + k < count; ++k) parts[k] += static_cast<double>(value(i + k));
    double total = 0;
    for (const double part : parts) total += part;
    return static_cast<T>(total);
  }
};

template <class Cell, class T>
void line(LinePhase phase, const LineArgs<T, T>& args, Index n) {
  const OneThread<T> workers;
  const Line<Cell, Lanes<T>, Lanes<T>, OneThread<T>> line(args, n, args.step, workers);
  switch (phase) {
    case LinePhase::reset:
      return line.reset();
    case LinePhase::forward:
      return line.forward();
    case LinePhase::backward:
      return line.backward();
    case LinePhase::reset_vjp:
      return line.reset_vjp();
    case LinePhase::end:
      return line.end();
  }
}

template <class T>
void norm(const T* from, const T* scale, const T* bias, T* to, Index width) {
  norm_row<Lanes<T>>(OneThread<T>(), from, scale, bias, to, width);
}
template <class T>
void norm_vjp(const T* from, const T* scale, const T* d, T* dfrom, T* dscale, Index width) {
  norm_row_vjp<Lanes<T>>(OneThread<T>(), from, scale, d, dfrom, dscale, width);
}

template <template <class> class CellOf, class T, class... Options>
void add(CpuLineKernel<T>* entry, cell::Variants<Options...>) {
  static_assert(sizeof...(Options) <= kMaxVariants);
  const auto of = [](auto cell) -> CpuLineKernel<T> {
    using C = decltype(cell);
    if constexpr (C::kByLines) {
      return &line<C, T>;
    } else {
      return nullptr;
    }
  };
  ((*entry++ = of(CellOf<Options>())), ...);
}

template <class T>
CpuLineKernels<T> kernels_of() {
  CpuLineKernels<T> out{{}, &norm<T>, &norm_vjp<T>};
#define SCANRNN_DENSE_CELL(name, option, list, ...) \
  add<cell::name>(out.line[static_cast<int>(Cell::name)], cell::list());
#include "scanrnn/cells.def"
  return out;
}

}  // namespace

const CpuLineTable& line_table() {
  static const CpuLineTable kernels{kernels_of<float>(), kernels_of<double>()};
  return kernels;
}

}  // namespace scanrnn::HWY_NAMESPACE
