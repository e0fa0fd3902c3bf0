// SPDX-License-Identifier: Apache-2.0
// Products of matrices whose rows are no whole vectors of 16 bytes. cuBLASLt multiplies these at a
// third or a quarter of what it can, whatever lies between the rows, so that large ones are faster
// by copies with zeros behind each row, part by part.
#pragma once

#include <functional>

#include "cuda/gemm.h"

namespace scanrnn {

// How a product is cut into parts, and what of it is copied.
struct PaddedProduct {
  Index m = 0, n = 0, k = 0;  // as it is multiplied
  bool a = false, b = false, c = false;
  bool along_k = false;  // parts are of the sum, and not of the rows of C
  bool sums = false;     // the copy of C is float32, to which parts, or what C has, are added
  Index rows = 0;        // of a part; 0: nothing is to be copied, or it has no room
};

// The copies have so many `bytes`; float64 has none.
PaddedProduct padded_product(const CudaProduct& product, std::size_t bytes);
// Whether that is thought to be faster. tf32: operands of float32 are rounded to it.
bool is_faster(const PaddedProduct& padded, const CudaProduct& product, bool tf32);

// Runs one that has parts, each by multiply().
void run_padded(const CudaProduct& product, const PaddedProduct& padded, void* memory,
                cudaStream_t stream, const std::function<void(const CudaProduct&)>& multiply);

}  // namespace scanrnn
