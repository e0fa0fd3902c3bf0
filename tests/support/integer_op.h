// SPDX-License-Identifier: Apache-2.0
// A scan operator that is exact and does not commute: affine maps over the integers mod 2^32.
#pragma once

#include <cstdint>

#include "scanrnn/scan/op.h"

namespace scanrnn::test {

using Word = std::uint32_t;

struct IntegerMap {
  Word a, b;
};

// Its types are four, so that an engine cannot mix up what the contract keeps apart. A Local counts
// its steps: then() answers with nonsense when more than kLocalSteps are appended.
struct IntegerOp {
  struct Step : IntegerMap {};
  struct Local : IntegerMap {
    int steps;
  };
  struct Element : IntegerMap {};
  using State = Word;

  SCANRNN_HD static Local local_identity() { return {{1, 0}, 0}; }
  SCANRNN_HD static Element identity() { return {{1, 0}}; }
  SCANRNN_HD static Local then(const Local& f, const Step& g) {
    if (f.steps >= scan::kLocalSteps) return {{0xDEAD, 0xBEEF}, f.steps};
    return {{g.a * f.a, g.a * f.b + g.b}, f.steps + 1};
  }
  SCANRNN_HD static Local join(const Local& f, const Local& g) {
    return {{g.a * f.a, g.a * f.b + g.b}, scan::kLocalSteps};
  }
  SCANRNN_HD static Element promote(const Local& f) { return {{f.a, f.b}}; }
  SCANRNN_HD static Element combine(const Element& f, const Element& g) {
    return {{g.a * f.a, g.a * f.b + g.b}};
  }
  SCANRNN_HD static State apply(const IntegerMap& f, State x) { return f.a * x + f.b; }
  SCANRNN_HD static State advance(const Step& f, State x) { return f.a * x + f.b; }
};

}  // namespace scanrnn::test
