// SPDX-License-Identifier: Apache-2.0
// What CUDA's opaque handles are to the emulator.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "emulator.h"

namespace emulated {

struct Node {
  std::function<void()> work;
  std::vector<std::shared_ptr<Node>> after;  // what comes before it
  bool over = false;

  bool ready() const {
    for (const auto& node : after) {
      if (!node->over) return false;
    }
    return true;
  }
};
using Step = std::shared_ptr<Node>;

}  // namespace emulated

struct CUgraph_st {
  std::vector<emulated::Step> steps;
  std::vector<CUstream_st*> streams;
  bool valid = true;  // as a capture
};
struct CUgraphExec_st {
  std::vector<emulated::Step> steps;
};
struct CUstream_st {
  emulated::Step last;
  std::vector<emulated::Step> awaited;
  CUgraph_st* capture = nullptr;
};
struct CUevent_st {
  emulated::Step step;
  CUgraph_st* capture = nullptr;
};
struct CUmemPoolHandle_st {};
