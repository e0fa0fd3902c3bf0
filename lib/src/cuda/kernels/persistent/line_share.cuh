// SPDX-License-Identifier: Apache-2.0
// Which lines of the batch are a group's, and which units a head's.
#pragma once

#include <type_traits>

#include "cuda/kernels/dense.h"

namespace scanrnn::persistent {

// whole: all lines have all steps. cut: so they have, and a flag of each step may say that no state
// comes into it. ragged: those of a ragged batch, whose steps have such flags, too.
enum class Lines { whole, cut, ragged };

// use(std::integral_constant<Lines, ...>()) by what a walk's arguments say of its lines.
template <class Args, class Use>
auto by_kind_of_lines(const Args& args, const Use& use) {
  if (args.lines) return use(std::integral_constant<Lines, Lines::ragged>());
  if (args.reset.data) return use(std::integral_constant<Lines, Lines::cut>());
  return use(std::integral_constant<Lines, Lines::whole>());
}

// Neighbours; of a ragged batch, whose longest lines come first, every so many, so that all groups
// have as much to do. Either way `first` counts the lines of the groups before.
struct LineShare {
  int group, groups, first, count;

  __device__ __forceinline__ LineShare(int batch, int group, int groups)
      : group(group), groups(groups) {
    const int each = batch / groups, more = batch % groups;
    first = group * each + min(group, more);
    count = each + (group < more);
  }
  template <bool kRagged>
  __device__ __forceinline__ int line(int i) const {
    return kRagged ? group + i * groups : first + i;
  }
};

// The head of a block, whose number in the launch is its y. Units are counted in the head where R
// and the exchange are read, in the whole layer wherever a unit has values of its own.
struct HeadShare {
  int first, units;

  template <class Args>
  __device__ __forceinline__ explicit HeadShare(const Args& a)
      : first((static_cast<int>(a.first_head) + static_cast<int>(blockIdx.y)) *
              static_cast<int>(a.head_units)),
        units(static_cast<int>(a.head_units)) {}
};

}  // namespace scanrnn::persistent
