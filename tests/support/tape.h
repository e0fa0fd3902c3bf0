// SPDX-License-Identifier: Apache-2.0
// Arithmetic in long double that remembers itself: what each number was made of, so that the chain
// rule needs no equations of its own. A second way back, over squares, gives the size that a
// gradient has where its terms do not cancel.
#pragma once

#include <vector>

#include "support/oracle_parts.h"

namespace scanrnn::test::oracle {

class Tape {
 public:
  struct Number {
    std::size_t place;
    Real value;
  };

  Number leaf(Real value) { return put(value, 0, 0, 0, 0); }
  Number add(Number a, Number b) { return put(a.value + b.value, a.place, 1, b.place, 1); }
  Number subtract(Number a, Number b) { return put(a.value - b.value, a.place, 1, b.place, -1); }
  Number multiply(Number a, Number b) {
    return put(a.value * b.value, a.place, b.value, b.place, a.value);
  }
  Number times(Number a, Real by) { return of(a, a.value * by, by); }
  // A function of one number, by its value and its slope.
  Number of(Number a, Real value, Real slope) { return put(value, a.place, slope, a.place, 0); }

  // Adds to the cotangent of a number.
  void give(Number a, Real cotangent) {
    if (cotangents_.size() < nodes_.size())
      cotangents_.resize(nodes_.size()), squares_ = cotangents_;
    cotangents_[a.place] += cotangent;
    squares_[a.place] += cotangent * cotangent;
  }
  void back() {
    cotangents_.resize(nodes_.size()), squares_.resize(nodes_.size());
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      const Node& node = nodes_[i];
      for (const Edge& edge : {node.a, node.b}) {
        if (edge.slope == 0) continue;
        cotangents_[edge.place] += edge.slope * cotangents_[i];
        squares_[edge.place] += edge.slope * edge.slope * squares_[i];
      }
    }
  }
  Real cotangent(Number a) const { return cotangents_.at(a.place); }
  Real square(Number a) const { return squares_.at(a.place); }

 private:
  struct Edge {
    std::size_t place;
    Real slope;
  };
  struct Node {
    Edge a, b;
  };
  Number put(Real value, std::size_t a, Real da, std::size_t b, Real db) {
    nodes_.push_back({{a, da}, {b, db}});
    return {nodes_.size() - 1, value};
  }
  std::vector<Node> nodes_;
  Reals cotangents_, squares_;
};

}  // namespace scanrnn::test::oracle
