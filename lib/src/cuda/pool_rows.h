// SPDX-License-Identifier: Apache-2.0
// Which row of a pool of states each line of a batch goes on from.
#pragma once

#include "recurrence/ragged.h"

namespace scanrnn {

struct PoolRows {
  Integers indices{TensorView{}};
  Index states = 0;

  SCANRNN_HD explicit operator bool() const { return static_cast<bool>(indices); }
  // -1 where the line is nobody's.
  SCANRNN_HD Index of(Index line) const {
    const Index index = indices[line];
    return index >= 0 && index < states ? index : -1;
  }
};

}  // namespace scanrnn
