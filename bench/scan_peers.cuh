// SPDX-License-Identifier: Apache-2.0
// cub::DeviceScan as a peer of the bare recurrence: it scans pairs (a, b) along contiguous memory,
// so steps are adjacent there, and by key where there are several rows.
#pragma once

#include <thrust/device_vector.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/transform_output_iterator.h>

#include <cub/device/device_scan.cuh>
#include <cuda/std/functional>

#include "fill.cuh"

namespace scanrnn::bench {

struct Pair {
  float a, b;
};
struct Compose {
  __host__ __device__ Pair operator()(const Pair& f, const Pair& g) const {
    return {g.a * f.a, fmaf(g.a, f.b, g.b)};
  }
};
struct PairAt {
  const float *a, *b;
  __host__ __device__ Pair operator()(Index i) const { return {a[i], b[i]}; }
};
struct StateOf {
  __host__ __device__ float operator()(const Pair& p) const { return p.b; }
};
struct RowOf {
  Index steps;
  __host__ __device__ Index operator()(Index i) const { return i / steps; }
};

// It reads a and b and writes h alone, as the library does.
class CubScan {
 public:
  CubScan(const float* a, const float* b, float* h, Index steps, Index rows, cudaStream_t stream)
      : pairs_{a, b}, h_(h), steps_(steps), rows_(rows), stream_(stream) {
    std::size_t bytes = 0;
    scan(nullptr, bytes);
    workspace_.resize(bytes);
  }
  const char* name() const {
    return rows_ == 1 ? "cub::DeviceScan::InclusiveScan" : "cub::DeviceScan::InclusiveScanByKey";
  }
  void operator()() {
    std::size_t bytes = workspace_.size();
    scan(raw(workspace_), bytes);
  }

 private:
  void scan(void* workspace, std::size_t& bytes) const {
    const auto counts = thrust::counting_iterator<Index>(0);
    const auto pairs = thrust::make_transform_iterator(counts, pairs_);
    const auto out = thrust::make_transform_output_iterator(h_, StateOf());
    if (rows_ == 1) {
      CHECK_CUDA(
          cub::DeviceScan::InclusiveScan(workspace, bytes, pairs, out, Compose(), steps_, stream_));
      return;
    }
    const auto keys = thrust::make_transform_iterator(counts, RowOf{steps_});
    CHECK_CUDA(cub::DeviceScan::InclusiveScanByKey(workspace, bytes, keys, pairs, out, Compose(),
                                                   steps_ * rows_, cuda::std::equal_to<>(),
                                                   stream_));
  }

  PairAt pairs_;
  float* h_;
  Index steps_, rows_;
  cudaStream_t stream_;
  thrust::device_vector<char> workspace_;
};

}  // namespace scanrnn::bench
