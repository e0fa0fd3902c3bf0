// SPDX-License-Identifier: Apache-2.0
// What the planner and the persistent kernels of dense cells agree on beside their tiles.
#pragma once

namespace scanrnn::dispatch {

// Lines of a block up to which exact products in float32 are multiply-adds; of more, three products
// of tensor cores each.
inline constexpr int kPersistentFewLines = 2;

}  // namespace scanrnn::dispatch
