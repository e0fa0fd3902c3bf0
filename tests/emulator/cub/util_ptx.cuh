// SPDX-License-Identifier: Apache-2.0
// CUB's shuffles, for the emulator.
#pragma once

#include "emulator.h"

namespace cub {

// The value of the lane `apart` before or behind in the same group of kGroup lanes; at the group's
// end, this lane's own.
template <int kGroup, class T>
T ShuffleUp(const T& value, int apart, int first, unsigned) {
  const int own = emulated::lane(), from = own % kGroup - apart;
  return emulated::exchanged(value, from < first ? own : own - apart);
}
template <int kGroup, class T>
T ShuffleDown(const T& value, int apart, int last, unsigned) {
  const int own = emulated::lane(), from = own % kGroup + apart;
  return emulated::exchanged(value, from > last ? own : own + apart);
}
template <int kGroup, class T>
T ShuffleIndex(const T& value, int from, unsigned) {
  return emulated::exchanged(value, emulated::lane() / kGroup * kGroup + from);
}

}  // namespace cub
