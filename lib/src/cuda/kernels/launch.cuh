// SPDX-License-Identifier: Apache-2.0
// Runs any Source and Sink by the engine's kernel that the schedule names.
#pragma once

#include "cuda/kernels/linear.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/scan/cuda/block.cuh"
#include "scanrnn/scan/cuda/device/kernel.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"

namespace scanrnn {

using dispatch::kCudaBlockWarps;
using dispatch::kCudaDeviceWarps;

// The domain is the form in which elements cross blocks; inside a block a state is walked.
template <class Memory, class Source, class Sink>
cudaError_t launch(const CudaSchedule& s, const Source& source, const Sink& sink) {
  using V = typename Memory::V;
  using Scalar = scan::Scalar<V>;
  const auto ends = ends_of<Memory>(s);
  const scan::Launch on{s.stream, s.units, s.shared};
  if (s.strategy != dispatch::Strategy::parallel_scan) {
    return scan::launch_sequential<scan::AffineOp<V>>(s.extent, source, sink, ends, on);
  }
  if (!s.across_blocks) {
    return scan::launch_block<scan::AffineOp<V>, kCudaBlockWarps>(s.extent, source, sink, ends, on);
  }
  if (s.log_domain) {
    return scan::launch_device<scan::LogAffineOp<Scalar>, kCudaDeviceWarps>(s.extent, source, sink,
                                                                            ends, s.workspace, on);
  }
  return scan::launch_device<scan::AffineOp<Scalar>, kCudaDeviceWarps>(s.extent, source, sink, ends,
                                                                       s.workspace, on);
}

template <class Source, class Sink>
std::size_t workspace_of(const CudaSchedule& s) {
  using V = scan::Scalar<typename Source::V>;
  if (s.strategy != dispatch::Strategy::parallel_scan || !s.across_blocks) return 0;
  return s.log_domain
             ? scan::device_workspace<scan::LogAffineOp<V>, kCudaDeviceWarps, Source, Sink>(
                   s.extent)
             : scan::device_workspace<scan::AffineOp<V>, kCudaDeviceWarps, Source, Sink>(s.extent);
}

}  // namespace scanrnn
