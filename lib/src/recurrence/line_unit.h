// SPDX-License-Identifier: Apache-2.0
// What a step by whole lines makes of one unit, between its products with R and the norms of its
// line: once for who walks lines in memory (recurrence/line.h) and who keeps them in registers.
#pragma once

#include "recurrence/dense.h"
#include "recurrence/norm.h"

namespace scanrnn {

template <class C, class V>
struct LineUnit {
  using Sums = DenseSums<C, V>;
  using State = DenseState<C, V>;
  using Gates = typename C::template Gates<V>;
  // Sums that R alone adds to; where h is reset before a product, it is their row blocks'.
  static constexpr int kOwn = C::kPreactivations - C::kGates;
  static constexpr int kInOrder = C::kGates - kOwn;

  // What the step reads of its sums.
  SCANRNN_HD static Gates seen(const Sums& sums, [[maybe_unused]] bool resets) {
    if constexpr (C::kResets) {
      if (resets) return C::template after_reset<V>(sums.gates());
    }
    return sums.gates();
  }
  // The adjoint of a step without norms of its state.
  SCANRNN_HD static DenseCotangent<C, V> step_vjp(const Sums& sums, const State& before,
                                                  const State& d, [[maybe_unused]] bool resets) {
    DenseCotangent<C, V> out;
    const auto back = C::template step_vjp<V>(seen(sums, resets), before, d);
    out.before = back.before;
    scatter(back.gates, out);
    if constexpr (C::kResets) {  // sums of R's own are added to those of x
      for (int i = 0; resets && i < kOwn; ++i) {
        out.sums.value[C::kGates + i] = out.sums.value[kInOrder + i];
      }
    }
    return out;
  }

  // A normed c, (h, c) = (output(seen), c): what the output reads of c's norm, ...
  SCANRNN_HD static V normed(const V& norm, const V& scale, const V& bias) {
    return fma(norm, scale, bias);
  }
  // ... the adjoint of the output, which has that of the output gate's sum, and what c adds to its
  // own, ...
  SCANRNN_HD static auto output_vjp(const Sums& sums, const V& seen, State d) {
    d.c = V(0);
    return C::template output_vjp<V>(C::template values<V>(sums.gates()), seen, d);
  }
  // ... and that of c, with the output gate's.
  SCANRNN_HD static DenseCotangent<C, V> remember_vjp(const Sums& sums, const State& before,
                                                      const V& dc, const V& output_gate) {
    DenseCotangent<C, V> out;
    const auto back =
        C::template remember_vjp<V>(C::template values<V>(sums.gates()), before.c, dc);
    out.before = back.before;
    scatter(back.gates, out);
    out.sums.value[C::kGates - 1] = output_gate;
    return out;
  }

 private:
  SCANRNN_HD static void scatter(const Gates& gates, DenseCotangent<C, V>& out) {
    C::template scatter<V>(gates, [&](int i, const V& value) { out.sums.value[i] = value; });
  }
};

}  // namespace scanrnn
