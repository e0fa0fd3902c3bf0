// SPDX-License-Identifier: Apache-2.0
// Batches of sequences that are not all of T steps: what a call is told of them.
#pragma once

#include <cstdint>

#include "scanrnn/dispatch/plan.h"
#include "scanrnn/tensor.h"

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// Which steps there are, on the device of x; all absent: every sequence has T steps. lengths and
// cu_seqlens exclude one another. Integers are int32 or int64, `reset` is boolean. On the CPU
// values out of range are an error. On CUDA they are read by kernels alone and brought to what is
// there, lengths to [0, T] and cu_seqlens to [0, tokens], as if the first were 0 and the last the
// number of tokens; of values that make no sense nothing is touched but the call's own tensors.
// With SCANRNN_CHECK=1 in the environment they are an error there, too, and the call waits for the
// device.
struct Ragged {
  // [B], in [0, T], in any order: the steps of a sequence from there on do not exist. y is 0 there,
  // the state at the end is that after the last step, or h_0; whatever x and dy hold there, nothing
  // comes of it.
  TensorView lengths;
  // [N+1], rising from 0 to the number of tokens: sequence n is tokens cu_seqlens[n] up to
  // cu_seqlens[n+1]. Then x is [tokens,C], y [tokens,D*H], and N is in the place of B.
  TensorView cu_seqlens;
  // x-like without the last axis, [T,B], or [tokens]: the state before this step is zero. In the
  // reverse direction the stretches are the same, walked backwards.
  TensorView reset;

  explicit operator bool() const { return lengths || cu_seqlens || reset; }
};

// The sizes of a batch: T and B, or of a packed one its tokens and sequences.
struct BatchShape {
  std::int64_t steps = 0, batch = 0;
  dispatch::Batch layout = dispatch::Batch::rectangular;
  // Packed: no sequence has more steps; 0: not known. Then a dense cell on CUDA, which has no way
  // to ask the device, launches what the longest possible would take, and the rest ends at once.
  std::int64_t longest = 0;
};

}  // namespace scanrnn
#pragma GCC visibility pop
