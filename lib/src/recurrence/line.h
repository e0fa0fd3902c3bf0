// SPDX-License-Identifier: Apache-2.0
// A step of a dense cell by whole lines, once for both processors: for options that read more of a
// line than a unit's own sums. Products stand between its phases; a line is a sequence.
//
//   forward   R h -> forward                       or, h reset before the product,
//             R h of all other row blocks -> reset -> R (r h) of the last ones -> forward
//   backward  backward -> d(R h) R                 or, so reset,
//             backward -> d(R (r h)) R of the last row blocks -> reset_vjp -> d(R h) R of the
//             others
#pragma once

#include "recurrence/dense.h"
#include "recurrence/dense_layer.h"
#include "recurrence/line_unit.h"

namespace scanrnn {

// What one step of all lines reads and writes; absent tensors are null. T is the type of tensors, W
// the one that is computed in. Tensors of tokens are in the order of time, [T,B,.], all others
// [N,.] with a row for each sequence.
template <class T, class W>
struct LineArgs {
  explicit LineArgs(const SequenceSteps& lines) : lines(lines) {}

  SequenceSteps lines;
  Index step = 0, hidden = 0;
  bool resets = false;  // h, before the product with the last row blocks of R
  bool fed = false;     // the products of this step hold something
  Masks masks;          // in the order of time
  const T *bias = nullptr, *recurrent_bias = nullptr;
  const T *norm = nullptr, *norm_c = nullptr, *norm_c_bias = nullptr;  // [G*H], [H], [H]

  Strided<T> h0, c0, hn, cn;     // backward, hn and cn: the cotangents of the final state
  W *h = nullptr, *c = nullptr;  // carried from step to step, [N,H]
  W* products = nullptr;         // R h, [N,G*H]; what is worked in
  W* remembered = nullptr;       // of a normed c, [N,2*H]
  T* next = nullptr;             // what the next product multiplies, [N,H], or backward [N,G*H]

  Strided<T> projected;            // forward: row blocks of W x
  Strided<T> y, sums, cells, raw;  // raw: R h as it was, [.,G*H]; kept are sums, cells and raw
  // Backward: cotangents, and for the products for dR the h and r h of each step.
  Strided<T> dy, dsums, draw, dnorm, dnorm_c, before, reset;
  Strided<W> moments;  // of R h and of c at each step, [.,4], for who does not work them out
  Strided<T> dh0, dc0;
};

// A line at its step. Workers are norm.h's; Memory is of tensors, Wide of W.
template <class C, class Memory, class Wide, class Workers>
class Line {
 public:
  using T = typename Memory::T;
  using V = typename Memory::V;
  using W = typename Wide::T;
  using Args = LineArgs<T, W>;
  using Sums = DenseSums<C, V>;
  using State = DenseState<C, V>;
  using Unit = LineUnit<C, V>;

  SCANRNN_HD Line(const Args& args, Index line, Index step, const Workers& workers)
      : a(args), own(args.lines.of(line)), n(line), t(step), hidden(args.hidden), workers(workers) {
    walks = t < own.count;
    cut = walks && own.cut(t);
  }

  SCANRNN_HD void forward() const {
    if (!walks) return;
    const bool fed = a.fed && !cut;
    W* products = row_of(a.products, C::kGates);
    Moments<W> norm{};
    if (a.norm && fed) norm = moments<W>(workers, products, C::kGates * hidden);
    const T* projected = own.at(a.projected, t);
    T* raw = own.at(a.raw, t);
    workers.rows(hidden, [&](Index row) {
      auto sums = Sums::template of_biases<Memory>(a.bias, a.recurrent_bias, row, hidden);
      sums.add_input([&](int i) { return Memory::read(projected + i * hidden, row, hidden); });
      sums.add_recurrent([&](int i) {
        const V product = fed ? Wide::read(products + i * hidden, row, hidden) : V(0);
        if (raw) Memory::write(raw + i * hidden, row, hidden, product);
        if (!a.norm || !fed) return product;
        return Memory::read(a.norm + i * hidden, row, hidden) * norm(product);
      });
      if constexpr (C::kStates == 2) {
        if (a.norm) return remember(row, sums, products);
      }
      const State before = state_before(row);
      const State after = C::template step<V>(Unit::seen(sums, a.resets), before);
      finish(row, sums, before, after);
    });
    if constexpr (C::kStates == 2) {
      if (a.norm) output(products);
    }
  }

  // What the product with the last row blocks of R multiplies.
  SCANRNN_HD void reset() const {
    if constexpr (C::kResets) {
      if (!walks) return;
      const T* projected = own.at(a.projected, t);
      const W* products = row_of(a.products, C::kGates);
      const bool fed = a.fed && !cut;
      workers.rows(hidden, [&](Index row) {
        auto sums = Sums::template of_biases<Memory>(a.bias, a.recurrent_bias, row, hidden);
        sums.add_input([&](int i) { return Memory::read(projected + i * hidden, row, hidden); });
        sums.add_recurrent([&](int i) {
          return fed && i < Unit::kInOrder ? Wide::read(products + i * hidden, row, hidden) : V(0);
        });
        Memory::write(row_of(a.next, 1), row, hidden,
                      C::template reset<V>(sums.gates(), state_before(row).h));
      });
    }
  }

  SCANRNN_HD void backward() const {
    T* fed = row_of(a.next, C::kGates);
    if (!walks) return clear(fed);
    T* dsums = own.at(a.dsums, t);
    const T* sums = own.at(a.sums, t);
    if constexpr (C::kStates == 2) {
      if (a.norm) output_vjp(sums, dsums);
    }
    workers.rows(hidden, [&](Index row) {
      const auto of = Sums::template read<Memory>(sums, row, hidden);
      const State before = state_kept(row);
      Memory::write(own.at(a.before, t), row, hidden, before.h);
      State d = state_cotangent(row);
      const auto past = draw_update_vjp<C, Memory>(draws(), row, d);
      auto back = step_vjp(row, of, before, d, dsums);
      back.before.h = back.before.h + past.h;
      if constexpr (C::kStates == 2) back.before.c = back.before.c + past.c;
      give_back(row, back.before);
      back.sums.template write<Memory>(dsums, row, hidden);
      for (int i = 0; i < C::kGates; ++i) {
        const V through = cut ? V(0) : back.sums.recurrent(i);
        if (a.norm) Wide::write(row_of(a.products, C::kGates) + i * hidden, row, hidden, through);
        if (!a.norm) Memory::write(fed + i * hidden, row, hidden, through);
      }
    });
    if (a.norm) product_vjp(fed);
  }

  // Leaves the step's moments, of what forward has kept.
  SCANRNN_HD void keep_moments() const {
    if (!walks) return;
    W* const to = own.at(a.moments, t);
    const auto keep = [&](const Moments<W>& of, int first) {
      workers.rows(1, [&](Index) {
        to[first] = of.mean;
        to[first + 1] = of.scale;
      });
    };
    const T* raw = own.at(a.raw, t);
    keep(moments_of<W>(workers, C::kGates * hidden,
                       [&](Index i) { return Memory::read(raw, i, C::kGates * hidden); }),
         0);
    if constexpr (C::kStates == 2) {
      const T* sums = own.at(a.sums, t);
      keep(moments_of<W>(workers, hidden,
                         [&](Index row) {
                           const auto of = Sums::template read<Memory>(sums, row, hidden);
                           return C::template remember<V>(C::template values<V>(of.gates()),
                                                          state_kept(row).c);
                         }),
           2);
    }
  }

  // From the cotangent of what the last row blocks of R multiplied, in `products`, [N,H].
  SCANRNN_HD void reset_vjp() const {
    if constexpr (C::kResets) {
      if (!walks) return;
      const W* through = row_of(a.products, 1);
      const T* sums = own.at(a.sums, t);
      workers.rows(hidden, [&](Index row) {
        const auto gates = Sums::template read<Memory>(sums, row, hidden).gates();
        const V h = state_kept(row).h;
        const V d = cut ? V(0) : Wide::read(through, row, hidden);
        const auto back = C::template reset_vjp<V>(gates, h, d);
        Memory::write(own.at(a.reset, t), row, hidden, C::template reset<V>(gates, h));
        // The reset gate is the one whose cotangent the step has left out.
        C::template scatter<V>(back.gates, [&](int i, const V& value) {
          if (i > 0) return;
          Memory::write(own.at(a.dsums, t), row, hidden, value);
          Memory::write(row_of(a.next, C::kGates), row, hidden, cut ? V(0) : value);
        });
        if (cut) return;  // zero times a gate that is no number would be none
        W* carry = row_of(a.h, 1);
        Wide::write(carry, row, hidden, Wide::read(carry, row, hidden) + back.before.h);
      });
    }
  }

  // The cotangent of an initial state that is carried: products have added to it.
  SCANRNN_HD void end() const {
    if (own.count == 0) return;
    workers.rows(hidden, [&](Index row) {
      Memory::write(a.dh0.at_line(n).data, row, hidden, Wide::read(row_of(a.h, 1), row, hidden));
    });
  }

 private:
  template <class U>
  SCANRNN_HD U* row_of(U* rows, Index blocks) const {
    return rows ? rows + n * blocks * hidden : nullptr;
  }
  SCANRNN_HD DenseDraws draws() const {
    const Masks& masks = a.masks;
    return {masks, masks.token + own.line * masks.line + own.step(t) * masks.step};
  }
  SCANRNN_HD V read(const Strided<T>& state, Index row) const {
    return state.data ? Memory::read(state.at_line(n).data, row, hidden) : V(0);
  }

  // The state before the step, of tensors that the walk carries.
  SCANRNN_HD State state_before(Index row) const {
    return State::of([&](int i) {
      if (cut) return V(0);
      if (t == 0) return read(i == 0 ? a.h0 : a.c0, row);
      return Wide::read(row_of(i == 0 ? a.h : a.c, 1), row, hidden);
    });
  }
  // The same of what forward left.
  SCANRNN_HD State state_kept(Index row) const {
    return State::of([&](int i) {
      if (cut) return V(0);
      if (t == 0) return read(i == 0 ? a.h0 : a.c0, row);
      return Memory::read(own.at(i == 0 ? a.y : a.cells, t - 1), row, hidden);
    });
  }
  SCANRNN_HD State state_cotangent(Index row) const {
    const bool last = t + 1 == own.count;
    auto d = State::of([&](int i) {
      if (last) return read(i == 0 ? a.hn : a.cn, row);
      return Wide::read(row_of(i == 0 ? a.h : a.c, 1), row, hidden);
    });
    if (a.dy.data) d.h = d.h + Memory::read(own.at(a.dy, t), row, hidden);
    return d;
  }
  SCANRNN_HD void give_back(Index row, const State& d) const {
    for (int i = 0; i < C::kStates; ++i) {
      const V value = cut ? V(0) : d.at(i);
      Wide::write(row_of(i == 0 ? a.h : a.c, 1), row, hidden, value);
      if (i > 0 && t == 0 && a.dc0.data) {
        Memory::write(a.dc0.at_line(n).data, row, hidden, value);
      }
    }
  }

  // The state after the step to where it goes.
  SCANRNN_HD void finish(Index row, const Sums& sums, const State& before, State after) const {
    draw_update<C, Memory>(draws(), row, before, after);
    const bool last = t + 1 == own.count;
    for (int i = 0; i < C::kStates; ++i) {
      Wide::write(row_of(i == 0 ? a.h : a.c, 1), row, hidden, after.at(i));
      const Strided<T>& end = i == 0 ? a.hn : a.cn;
      if (last && end.data) Memory::write(end.at_line(n).data, row, hidden, after.at(i));
    }
    Memory::write(row_of(a.next, 1), row, hidden, after.h);
    const DenseSink<C, Memory> sink{own.at(a.y, t), own.at(a.sums, t), own.at(a.cells, t), hidden};
    sink.store(row, sums, after);
  }

  // ---- a normed c: the step in two parts, the norm of the line between them

  // The sums and c go to memory.
  SCANRNN_HD void remember(Index row, const Sums& sums, W* products) const {
    for (int i = 0; i < C::kGates; ++i) {
      Wide::write(products + i * hidden, row, hidden, sums.value[i]);
    }
    const auto by = C::template values<V>(sums.gates());
    Wide::write(row_of(a.remembered, 2), row, hidden,
                C::template remember<V>(by, state_before(row).c));
  }
  SCANRNN_HD void output(const W* products) const {
    const W* c = row_of(a.remembered, 2);
    const auto norm = moments<W>(workers, c, hidden);
    workers.rows(hidden, [&](Index row) {
      const auto sums =
          Sums::of([&](int i) { return Wide::read(products + i * hidden, row, hidden); });
      const V own = Wide::read(c, row, hidden);
      const auto by = C::template values<V>(sums.gates());
      State before = state_before(row), after;
      after.h = C::template output<V>(by, normed(norm(own), row));
      after.c = own;
      finish(row, sums, before, after);
    });
  }
  // What tanh reads of the norm of c.
  SCANRNN_HD V normed(const V& norm, Index row) const {
    return Unit::normed(norm, Memory::read(a.norm_c, row, hidden),
                        Memory::read(a.norm_c_bias, row, hidden));
  }
  // Leaves the cotangent of c through the output behind c, and that of the output gate's sum.
  SCANRNN_HD void output_vjp(const T* kept, T* dsums) const {
    W *c = row_of(a.remembered, 2), *dc = c + hidden;
    workers.rows(hidden, [&](Index row) {
      const auto by = C::template values<V>(Sums::template read<Memory>(kept, row, hidden).gates());
      Wide::write(c, row, hidden, C::template remember<V>(by, state_kept(row).c));
    });
    const auto norm = moments<W>(workers, c, hidden);
    T* dnorm_c = own.at(a.dnorm_c, t);
    workers.rows(hidden, [&](Index row) {
      const auto sums = Sums::template read<Memory>(kept, row, hidden);
      State d = state_cotangent(row);
      draw_update_vjp<C, Memory>(draws(), row, d);
      const V seen = normed(norm(Wide::read(c, row, hidden)), row);
      const auto back = Unit::output_vjp(sums, seen, d);
      Memory::write(dsums + (C::kGates - 1) * hidden, row, hidden, back.s);
      Memory::write(dnorm_c + hidden, row, hidden, back.c);
      Wide::write(dc, row, hidden, back.c);
    });
    norm_vjp<Wide, Wide, Memory>(workers, c, a.norm_c, dc, hidden,
                                 [&](Index row, const V& back, const V& of_scale) {
                                   Wide::write(dc, row, hidden, back);
                                   Memory::write(dnorm_c, row, hidden, of_scale);
                                 });
  }

  // ---- the adjoint of a unit's step

  SCANRNN_HD DenseCotangent<C, V> step_vjp(Index row, const Sums& sums, const State& before,
                                           const State& d, const T* dsums) const {
    if constexpr (C::kStates == 2) {
      if (a.norm) {
        const V dc = d.c + Wide::read(row_of(a.remembered, 2) + hidden, row, hidden);
        return Unit::remember_vjp(sums, before, dc,
                                  Memory::read(dsums + (C::kGates - 1) * hidden, row, hidden));
      }
    }
    return Unit::step_vjp(sums, before, d, a.resets);
  }
  // From the cotangents of the normed product those of R h.
  SCANRNN_HD void product_vjp(T* fed) const {
    const Index width = C::kGates * hidden;
    T* draw = own.at(a.draw, t);
    T* dnorm = own.at(a.dnorm, t);
    if (cut) {
      clear(fed), clear(draw);
      return clear(dnorm);
    }
    norm_vjp<Memory, Wide, Memory>(workers, own.at(a.raw, t), a.norm, row_of(a.products, C::kGates),
                                   width, [&](Index row, const V& back, const V& of_scale) {
                                     Memory::write(fed, row, width, back);
                                     Memory::write(draw, row, width, back);
                                     Memory::write(dnorm, row, width, of_scale);
                                   });
  }
  SCANRNN_HD void clear(T* rows) const {
    const Index width = C::kGates * hidden;
    workers.rows(width, [&](Index row) { Memory::write(rows, row, width, V(0)); });
  }

  const Args& a;
  const SequenceWalk own;
  const Index n, t, hidden;
  const Workers& workers;
  bool walks, cut;
};

}  // namespace scanrnn
