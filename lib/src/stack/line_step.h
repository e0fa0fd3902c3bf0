// SPDX-License-Identifier: Apache-2.0
// A step of whole lines as a layer call asks a backend for it, and as its kernels are told of it.
#pragma once

#include "recurrence/line.h"

namespace scanrnn {

enum class LinePhase : std::uint8_t { reset, forward, backward, reset_vjp, end };

// As LineArgs, which says what each is; of any dtype. Absent tensors are those of a step that does
// not need them.
struct LineStep {
  explicit LineStep(const LayerCall& call) : call(call) {}

  const LayerCall& call;
  LinePhase phase = LinePhase::forward;
  Index step = 0;
  bool fed = false;
  void *h = nullptr, *c = nullptr, *products = nullptr, *remembered = nullptr, *next = nullptr;
  TensorView h0, c0, hn, cn, dh0, dc0;
  TensorView y, sums, cells, dy, dsums, draw, dnorm, dnorm_c, before, reset, moments;

  Index lines() const { return call.is_ragged() ? call.sequences : call.batch; }
};

template <class T, class W>
LineArgs<T, W> line_args(const LineStep& of) {
  const LayerCall& call = of.call;
  const auto state = [](const TensorView& view) {
    return Strided<T>{static_cast<T*>(view.data), view.strides[0], 0};
  };
  const auto tokens = [](const TensorView& view) {
    return Strided<T>{static_cast<T*>(view.data), view.strides[1], view.strides[0]};
  };
  const auto values = [](const TensorView& view) { return static_cast<const T*>(view.data); };
  LineArgs<T, W> out((SequenceSteps(call)));
  out.step = of.step;
  out.hidden = call.hidden;
  out.resets = call.resets;
  out.fed = of.fed;
  out.masks = walked(call, {0, call.steps, 0, call.batch}, false);
  out.bias = values(call.bias);
  out.recurrent_bias = values(call.recurrent_bias);
  out.norm = values(call.norms.hh);
  out.norm_c = values(call.norms.c);
  out.norm_c_bias = values(call.norms.c_bias);
  out.h0 = state(of.h0), out.c0 = state(of.c0);
  out.hn = state(of.hn), out.cn = state(of.cn);
  out.dh0 = state(of.dh0), out.dc0 = state(of.dc0);
  out.h = static_cast<W*>(of.h);
  out.c = static_cast<W*>(of.c);
  out.products = static_cast<W*>(of.products);
  out.remembered = static_cast<W*>(of.remembered);
  out.next = static_cast<T*>(of.next);
  out.projected = tokens(call.projected);
  out.y = tokens(of.y), out.sums = tokens(of.sums), out.cells = tokens(of.cells);
  if (call.norms.hh) out.raw = tokens(call.raw_product);
  out.dy = tokens(of.dy), out.dsums = tokens(of.dsums), out.draw = tokens(of.draw);
  out.dnorm = tokens(of.dnorm), out.dnorm_c = tokens(of.dnorm_c);
  out.before = tokens(of.before), out.reset = tokens(of.reset);
  out.moments = {static_cast<W*>(of.moments.data), of.moments.strides[1], of.moments.strides[0]};
  return out;
}

}  // namespace scanrnn
