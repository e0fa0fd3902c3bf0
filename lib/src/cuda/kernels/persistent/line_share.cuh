// SPDX-License-Identifier: Apache-2.0
// Which lines of the batch are a group's.
#pragma once

namespace scanrnn::persistent {

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

}  // namespace scanrnn::persistent
