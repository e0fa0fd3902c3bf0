// SPDX-License-Identifier: Apache-2.0
// Runs any Source and Sink by the engine's kernel that the schedule names.
#pragma once

#include "cuda/kernels/linear.h"
#include "recurrence/marked.h"
#include "scanrnn/dispatch/scan_rows.h"
#include "scanrnn/dispatch/tiles.h"
#include "scanrnn/scan/cuda/block.cuh"
#include "scanrnn/scan/cuda/device/kernel.cuh"
#include "scanrnn/scan/cuda/lanes/few.cuh"
#include "scanrnn/scan/cuda/lanes/kernel.cuh"
#include "scanrnn/scan/cuda/lanes/packed.cuh"
#include "scanrnn/scan/cuda/sequential.cuh"
#include "scanrnn/scan/cuda/short.cuh"

namespace scanrnn {

using dispatch::kCudaBlockWarps;
using dispatch::kCudaDeviceWarps;

// Op, of V, walks states inside a block; Across, of a scalar, is what elements cross blocks by. A
// kernel that there is not gives way to a general one.
template <class Op, class Across, Kernels kKernels = Kernels::lines, class Source, class Sink,
          class Ends>
cudaError_t launch_by(const CudaSchedule& s, const Source& source, const Sink& sink,
                      const Ends& ends) {
  const scan::Launch on{s.stream, s.units, s.shared};
  if (s.strategy != dispatch::Strategy::parallel_scan) {
    return scan::launch_sequential<Op>(s.extent, source, sink, ends, on);
  }
  constexpr int kBytes = static_cast<int>(sizeof(typename Source::T));
  const bool along_lanes = s.along_lanes && !s.across_blocks;
  if constexpr (kKernels == Kernels::all && scan::kPacks<Op, Source>) {
    const bool packs = dispatch::cuda_packs_lines(s.extent.steps, s.extent.lines, kBytes,
                                                  Source::kLastDiffers, s.units);
    if (along_lanes && packs && scan::packed_fit(s.extent, source, sink, ends)) {
      return scan::launch_packed<Op>(s.extent, source, sink, ends, on);
    }
  }
  // A reset cuts lines that are walked.
  constexpr bool kCut = kKernels == Kernels::general && !scan::cuda::IsMarked<Source>::value;
  if constexpr (kKernels == Kernels::all || kCut) {
    const bool walks =
        kCut || dispatch::cuda_lane_has_line(s.extent.steps, s.extent.lines, kBytes, s.units);
    if (along_lanes && walks && s.extent.steps > 0 && scan::lines_fit(s.extent, source, sink)) {
      return scan::launch_lines<Op>(s.extent, source, sink, ends, on);
    }
  }
  if constexpr (kKernels == Kernels::all) {
    if (s.along_lanes && scan::lanes_fit(s.extent, source, sink)) {
      return scan::launch_lanes<Op, Across>(s.extent, source, sink, ends, s.across_blocks,
                                            s.workspace, on);
    }
  }
  if (!s.across_blocks) {
    if constexpr (kKernels == Kernels::general) {
      return scan::launch_sequential<Op>(s.extent, source, sink, ends, on);
    } else {
      return scan::launch_block<Op, kCudaBlockWarps>(s.extent, source, sink, ends, on);
    }
  }
  return scan::launch_device<Across, kCudaDeviceWarps>(s.extent, source, sink, ends, s.workspace,
                                                       on);
}
static_assert(scan::kShortSteps == dispatch::kCudaShortSteps);
// The same of the bare recurrence. A few steps are walked where they lie: by vectors of whole
// lines; of rows beside one another up to kShortSteps, of rows whose steps are adjacent fewer,
// since each result is a request of its own there. Rows that begin anywhere are copied by vectors
// all the same, where there are no resets.
template <Kernels kKernels, class Source>
inline constexpr bool kMayBeUnaligned =
    kKernels != Kernels::general && sizeof(typename Source::T) <= 4;
template <class Op, class Across, Kernels kKernels, class Source, class Sink, class Ends>
cudaError_t launch_bare(const CudaSchedule& s, const Source& source, const Sink& sink,
                        const Ends& ends) {
  const bool along_lanes = s.along_lanes && !s.across_blocks;
  const bool walks = s.strategy != dispatch::Strategy::parallel_scan;
  const scan::Launch on{s.stream, s.units, s.shared};
  if constexpr (kKernels == Kernels::all && scan::kHasFew<Op, Source>) {
    if ((walks || along_lanes) && scan::few_fit(s.extent, source, sink, ends)) {
      return scan::launch_few<Op>(s.extent, source, sink, ends, on);
    }
  }
  const Index most = walks         ? scan::kShortSteps
                     : along_lanes ? dispatch::kCudaAdjacentSteps / Sink::kStreams
                                   : 0;
  if (s.extent.steps >= 1 && s.extent.steps <= most) {
    return scan::launch_short<Op>(s.extent, source, sink, ends, on);
  }
  if constexpr (kMayBeUnaligned<kKernels, Source>) {
    if (!s.along_lanes && scan::is_unaligned(s.extent, source)) {
      return launch_by<Op, Across>(s, scan::Unaligned<Source>{source}, sink, ends);
    }
  }
  return launch_by<Op, Across, kKernels>(s, source, sink, ends);
}
template <class Across, class Source, class Sink, Kernels kKernels = Kernels::lines>
std::size_t workspace_by(const CudaSchedule& s) {
  if (s.strategy != dispatch::Strategy::parallel_scan || !s.across_blocks) return 0;
  if constexpr (kKernels == Kernels::all) {
    // A reset takes general kernels, and so do rows that are apart.
    if (s.along_lanes) {
      return std::max(scan::lanes_workspace<Across, Source>(s.extent),
                      scan::device_workspace<Across, kCudaDeviceWarps, Source, Sink>(s.extent));
    }
  }
  return scan::device_workspace<Across, kCudaDeviceWarps, Source, Sink>(s.extent);
}

template <class Across, class Source, class Sink, Kernels kKernels>
std::size_t bare_workspace(const CudaSchedule& s) {
  const std::size_t bytes = workspace_by<Across, Source, Sink, kKernels>(s);
  if constexpr (kMayBeUnaligned<kKernels, Source>) {
    return std::max(bytes, workspace_by<Across, scan::Unaligned<Source>, Sink>(s));
  }
  return bytes;
}

// Walks lines whose steps do not compose.
template <class Source, class Sink, class Ends>
cudaError_t launch_stepwise(const CudaSchedule& s, const scan::Extent& extent, const Source& source,
                            const Sink& sink, const Ends& ends) {
  using Line = scan::cuda::LineOf<Source>;
  return scan::launch_sequential<scan::StepwiseOp<typename Line::V, scan::cuda::StepOf<Line>>>(
      extent, source, sink, ends, {s.stream, s.units, s.shared});
}

// The domain is the form in which elements cross blocks; inside a block a state is walked.
template <class Memory, class Source, class Sink>
cudaError_t launch(const CudaSchedule& s, const Source& source, const Sink& sink) {
  using V = typename Memory::V;
  using Scalar = scan::Scalar<V>;
  const auto ends = ends_of<Memory>(s);
  if constexpr (!Source::kComposes) {
    return launch_stepwise(s, s.extent, source, sink, ends);
  } else if (s.log_domain) {
    return launch_by<scan::AffineOp<V>, scan::LogAffineOp<Scalar>>(s, source, sink, ends);
  } else {
    return launch_by<scan::AffineOp<V>, scan::AffineOp<Scalar>>(s, source, sink, ends);
  }
}

// Each sequence for itself, where the ways of a ragged batch say so.
template <class Memory, class Source, class Sink>
cudaError_t launch_sequences(const CudaSchedule& s, const RaggedWays& ways, const Source& source,
                             const Sink& sink) {
  if (!ways.sequences) return cudaSuccess;
  const SequenceSource<Source> each{source, *s.sequences, s.against_time, ways};
  const SequenceSink<SequenceSource<Source>, Sink> out{sink, each};
  scan::Extent extent = s.extent;
  extent.lines = s.sequences->count;
  if constexpr (Source::kComposes) {
    return scan::launch_sequential<scan::AffineOp<typename Memory::V>>(
        extent, each, out, ends_of<Memory>(s), {s.stream, s.units, s.shared});
  } else {
    return launch_stepwise(s, extent, each, out, ends_of<Memory>(s));
  }
}

// A rectangular batch with draws: a scan over blocks, or its lines as the sequences that they are.
// No plan splits these inside a block, or composes logarithms: kernels for that would be one more
// each for every cell.
template <class Memory, class Source, class Sink>
cudaError_t launch_drawn(const CudaSchedule& s, const Source& source, const Sink& sink) {
  if constexpr (Source::kComposes) {
    if (s.across_blocks) {
      using Across = scan::AffineOp<scan::Scalar<typename Memory::V>>;
      return scan::launch_device<Across, kCudaDeviceWarps>(
          s.extent, source, sink, ends_of<Memory>(s), s.workspace, {s.stream, s.units, s.shared});
    }
  }
  return launch_sequences<Memory>(s, {true, false}, source, sink);
}
template <class Source, class Sink>
std::size_t drawn_workspace(const CudaSchedule& s) {
  if constexpr (Source::kComposes) {
    using Across = scan::AffineOp<scan::Scalar<typename Source::V>>;
    if (s.across_blocks) {
      return scan::device_workspace<Across, kCudaDeviceWarps, Source, Sink>(s.extent);
    }
  }
  return 0;
}

template <class Source>
inline constexpr bool kDraws = !std::is_empty<scan::cuda::DrawnOf<Source>>::value;

// The same over marks, by operators that know a cut; the marks say where states enter and leave.
// Where steps do not compose, each sequence is still a line of its own. With draws there is one
// kernel, the scan over blocks by values, and no plan says otherwise.
template <class Memory, class Source, class Sink>
cudaError_t launch_marked(const CudaSchedule& s, const Source& source, const Sink& sink) {
  using V = typename Memory::V;
  const StateEnds<Memory> none{{}, {}, s.extent.rows};
  if constexpr (!Source::kComposes) {
    const SequenceSource<Source> each{source, *s.sequences, s.against_time, {true, true}};
    scan::Extent extent = s.extent;
    extent.lines = s.sequences->count;
    return launch_stepwise(s, extent, each, SequenceSink<SequenceSource<Source>, Sink>{sink, each},
                           none);
  } else if constexpr (kDraws<Source>) {
    if (!s.across_blocks || s.log_domain) return cudaErrorNotSupported;
    return scan::launch_device<scan::ResetOp<V>, kCudaDeviceWarps>(
        s.extent, source, sink, none, s.workspace, {s.stream, s.units, s.shared});
  } else if (s.log_domain) {
    return launch_by<scan::ResetOp<V>, scan::LogResetOp<V>, Kernels::general>(s, source, sink,
                                                                              none);
  } else {
    return launch_by<scan::ResetOp<V>, scan::ResetOp<V>, Kernels::general>(s, source, sink, none);
  }
}
template <class Source, class Sink>
std::size_t marked_workspace(const CudaSchedule& s) {
  using V = typename Source::V;
  if constexpr (!Source::kComposes) {
    return 0;
  } else if constexpr (kDraws<Source>) {
    if (!s.across_blocks) return 0;
    return scan::device_workspace<scan::ResetOp<V>, kCudaDeviceWarps, Source, Sink>(s.extent);
  } else {
    return s.log_domain ? workspace_by<scan::LogResetOp<V>, Source, Sink, Kernels::general>(s)
                        : workspace_by<scan::ResetOp<V>, Source, Sink, Kernels::general>(s);
  }
}

template <class Source, class Sink>
std::size_t workspace_of(const CudaSchedule& s) {
  using V = scan::Scalar<typename Source::V>;
  if constexpr (!Source::kComposes) return 0;
  return s.log_domain ? workspace_by<scan::LogAffineOp<V>, Source, Sink>(s)
                      : workspace_by<scan::AffineOp<V>, Source, Sink>(s);
}

}  // namespace scanrnn
