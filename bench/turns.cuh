// SPDX-License-Identifier: Apache-2.0
// How the stand-alone benches take times: runs are recorded as graphs and take turns, so that all
// of a problem meet one clock, which is measured between them. A copy takes its turn, too.
#pragma once

#include <thrust/device_vector.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "fill.cuh"
#include "report.cuh"

namespace scanrnn::bench {

struct Timing {
  double ms, spread;
};

// Ticks of a multiprocessor and nanoseconds, over some 100 us.
__global__ void clock_kernel(unsigned long long* out) {
  const auto nanoseconds = [] {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
  };
  const unsigned long long begin = nanoseconds(), ticks = clock64();
  unsigned long long end = begin;
  while (end - begin < 100000) end = nanoseconds();
  out[0] = clock64() - ticks;
  out[1] = end - begin;
}

// Runs of one problem. Each is recorded with several calls in a row, which are given their index so
// that they can rotate their buffers; capturing also shows that they neither allocate nor wait.
class Turns {
 public:
  explicit Turns(cudaStream_t stream) : stream_(stream), ticks_(2) {
    CHECK_CUDA(cudaEventCreate(&begin_));
    CHECK_CUDA(cudaEventCreate(&end_));
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  ~Turns() {
    for (Entry& entry : entries_) cudaGraphExecDestroy(entry.graph);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  // The number by which time() knows it.
  int add(int calls, const std::function<void(int)>& call) {
    cudaGraph_t graph;
    Entry entry{};
    entry.calls = calls;
    CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i);
    CHECK_CUDA(cudaStreamEndCapture(stream_, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&entry.graph, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    entries_.push_back(entry);
    return static_cast<int>(entries_.size()) - 1;
  }

  void measure() {
    constexpr int kRounds = 11, kWarm = 2;
    for (int round = 0; round < kRounds; ++round) {
      for (Entry& entry : entries_) {
        CHECK_CUDA(cudaEventRecord(begin_, stream_));
        CHECK_CUDA(cudaGraphLaunch(entry.graph, stream_));
        CHECK_CUDA(cudaEventRecord(end_, stream_));
        CHECK_CUDA(cudaEventSynchronize(end_));
        float ms;
        CHECK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
        if (round >= kWarm) entry.times.push_back(ms / entry.calls);
      }
      clocks_.push_back(clock_mhz());
    }
    for (Entry& entry : entries_) std::sort(entry.times.begin(), entry.times.end());
    std::sort(clocks_.begin(), clocks_.end());
  }
  Timing time(int which) const {
    const std::vector<double>& times = entries_.at(static_cast<std::size_t>(which)).times;
    return {times[times.size() / 2], times.back() - times.front()};
  }
  // "sm_mhz" of a row: the lowest and the highest clock of the multiprocessors.
  std::string clocks() const {
    return format("\"sm_mhz\": [%.0f, %.0f]", clocks_.front(), clocks_.back());
  }

 private:
  struct Entry {
    cudaGraphExec_t graph;
    int calls;
    std::vector<double> times;
  };

  double clock_mhz() {
    clock_kernel<<<1, 1, 0, stream_>>>(raw(ticks_));
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    unsigned long long found[2];
    CHECK_CUDA(cudaMemcpy(found, raw(ticks_), sizeof found, cudaMemcpyDeviceToHost));
    return 1e3 * static_cast<double>(found[0]) / static_cast<double>(found[1]);
  }

  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  std::vector<Entry> entries_;
  thrust::device_vector<unsigned long long> ticks_;
  std::vector<double> clocks_;
};

// One run by itself.
inline Timing time_calls(cudaStream_t stream, int calls, const std::function<void(int)>& call) {
  Turns turns(stream);
  turns.add(calls, call);
  turns.measure();
  return turns.time(0);
}

__global__ void copy_kernel(const float4* from, float4* to, Index count) {
  const Index stride = Index{blockDim.x} * gridDim.x;
  Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = from[i + k * stride];
#pragma unroll
    for (int k = 0; k < 4; ++k) to[i + k * stride] = v[k];
  }
  for (; i < count; i += stride) to[i] = from[i];
}

// The fastest of what copies 2 GiB, to be timed beside what is compared with it.
class Copy {
 public:
  Copy(cudaStream_t stream, int units)
      : stream_(stream), from_(filled<float>(kBytes / 4, Fill::value, 7)), to_(kBytes / 4) {
    double best = HUGE_VAL;
    for (const int blocks : {0, 8 * units, 64 * units, static_cast<int>(kBytes / 16 / 512 / 4)}) {
      const int before = blocks_;
      blocks_ = blocks;
      const double ms = time_calls(stream, 2, [this](int i) { (*this)(i); }).ms;
      if (ms < best) {
        best = ms;
      } else {
        blocks_ = before;
      }
    }
    gbps_ = gbps({best, 0});
  }
  void operator()(int) const {
    const float* from = thrust::raw_pointer_cast(from_.data());
    float* to = const_cast<float*>(thrust::raw_pointer_cast(to_.data()));
    if (blocks_ == 0) {
      CHECK_CUDA(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream_));
    } else {
      copy_kernel<<<blocks_, 512, 0, stream_>>>(reinterpret_cast<const float4*>(from),
                                                reinterpret_cast<float4*>(to), kBytes / 16);
    }
  }
  // What it copies in this time, read and written bytes together.
  static double gbps(Timing time) { return 2.0 * kBytes / time.ms / 1e6; }
  double gbps() const { return gbps_; }  // when it was by itself

 private:
  static constexpr Index kBytes = Index{1} << 31;
  cudaStream_t stream_;
  thrust::device_vector<float> from_, to_;
  int blocks_ = 0;
  double gbps_ = 0;
};

}  // namespace scanrnn::bench
