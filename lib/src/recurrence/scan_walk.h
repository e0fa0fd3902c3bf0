// SPDX-License-Identifier: Apache-2.0
// What the kernels of the bare recurrence are called with, once for both processors: tensors in the
// order of the walk, and whether their rows are adjacent.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "recurrence/scan.h"

namespace scanrnn {

// Whether all rows of a tensor [T,B,N] are a stride apart, those of one entry behind those of
// another.
inline bool has_even_rows(const TensorView& view) {
  return view.sizes[1] == 1 || view.strides[1] == view.sizes[2] * view.strides[2];
}

// A tensor [T,B,N] in the order of the walk; `split`: each row is a line of its own.
template <class T>
Grid<T> walked_grid(const TensorView& view, bool reverse, Index split) {
  Grid<T> out{static_cast<T*>(view.data), view.strides[1], view.strides[0], view.strides[2], split};
  if (split && has_even_rows(view)) {  // no line has to be divided for
    out.line = out.row;
    out.split = 0;
  }
  if (out.data && reverse) {
    out.data += (view.sizes[0] - 1) * out.step;
    out.step = -out.step;
  }
  return out;
}

template <class T>
ScanKernelArgs<T> forward_args(const ScanArgs& args, Index split) {
  const auto in = [&](const TensorView& view) {
    return as_const(walked_grid<T>(view, args.reverse, split));
  };
  const auto out = [&](const TensorView& view) {
    return walked_grid<T>(view, args.reverse, split);
  };
  return {args.form,
          in(args.a),
          in(args.b),
          in(args.sign_b),
          as_const(walked_grid<std::uint8_t>(args.reset, args.reverse, split)),
          in(args.h0),
          in(args.sign_h0),
          out(args.h),
          out(args.sign_h)};
}

// Walked against the order of forward.
template <class T>
ScanBackwardKernelArgs<T> backward_args(const ScanBackwardArgs& args, Index split) {
  const auto in = [&](const TensorView& view) {
    return as_const(walked_grid<T>(view, !args.reverse, split));
  };
  const auto out = [&](const TensorView& view) {
    return walked_grid<T>(view, !args.reverse, split);
  };
  return {args.form,
          in(args.a),
          in(args.b),
          in(args.sign_b),
          as_const(walked_grid<std::uint8_t>(args.reset, !args.reverse, split)),
          in(args.h0),
          in(args.sign_h0),
          in(args.h),
          in(args.sign_h),
          in(args.dh),
          out(args.da),
          out(args.db),
          out(args.dh0)};
}

// Whether the rows of all these are adjacent; `reset` may have any strides.
inline bool has_adjacent_rows(std::initializer_list<const TensorView*> views) {
  return std::all_of(views.begin(), views.end(), [](const TensorView* view) {
    return !*view || view->strides[2] == 1 || view->sizes[2] == 1;
  });
}
inline bool has_adjacent_rows(const ScanArgs& a) {
  return has_adjacent_rows({&a.a, &a.b, &a.sign_b, &a.h0, &a.sign_h0, &a.h, &a.sign_h});
}
inline bool has_adjacent_rows(const ScanBackwardArgs& a) {
  return has_adjacent_rows(
      {&a.a, &a.b, &a.sign_b, &a.h0, &a.sign_h0, &a.h, &a.sign_h, &a.dh, &a.da, &a.db, &a.dh0});
}

}  // namespace scanrnn
