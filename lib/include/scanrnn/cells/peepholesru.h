// SPDX-License-Identifier: Apache-2.0
// SRU as its library has it: the gates of f and r read the state before them, too, by a vector
// each (arXiv 1709.02755v5, eq. 1 and 3).
#pragma once

#include "scanrnn/cells/sru.h"

namespace scanrnn::cell {

template <class Activation>
struct PeepholeSRU : SRU<Activation> {
  static constexpr int kVectors = 2;
  static constexpr bool kDiagonal = true;
  SCANRNN_HD static constexpr int peek(int k) { return 1 + k; }
};

}  // namespace scanrnn::cell
