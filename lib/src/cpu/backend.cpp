// SPDX-License-Identifier: Apache-2.0
// The CPU as a backend: conversions and dropout here, layers in cpu/linear.cpp.
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "cpu/kernels/table.h"
#include "cpu/linear.h"
#include "cpu/runtime.h"

namespace scanrnn {
namespace {

template <class T>
void drop(const TensorView& from, const TensorView& to, double share, std::uint64_t seed) {
  const std::uint64_t threshold = drop_threshold(share);
  const T scale = static_cast<T>(1.0 / (1.0 - share));
  for (Index i = 0; i < from.sizes[0]; ++i) {
    for (Index j = 0; j < from.sizes[1]; ++j) {
      const T* source =
          static_cast<const T*>(from.data) + i * from.strides[0] + j * from.strides[1];
      T* target = static_cast<T*>(to.data) + i * to.strides[0] + j * to.strides[1];
      const auto position = static_cast<std::uint64_t>((i * from.sizes[1] + j) * from.sizes[2]);
      for (Index k = 0; k < from.sizes[2]; ++k) {
        const bool dropped = mix(seed ^ mix(position + static_cast<std::uint64_t>(k))) < threshold;
        target[k] = dropped ? T(0) : source[k] * scale;
      }
    }
  }
}

// Calls use(element offset in a, in b, count) for each contiguous run of equal shapes.
template <class F>
void for_rows(const TensorView& a, const TensorView& b, F&& use) {
  const int last = a.rank - 1;
  const Index outer = last > 0 ? a.sizes[0] : 1, middle = last > 1 ? a.sizes[1] : 1;
  for (Index i = 0; i < outer; ++i) {
    for (Index j = 0; j < middle; ++j) {
      const auto offset = [&](const TensorView& v) {
        return (last > 0 ? i * v.strides[0] : 0) + (last > 1 ? j * v.strides[1] : 0);
      };
      use(offset(a), offset(b), a.sizes[static_cast<std::size_t>(last)]);
    }
  }
}

char* at(const TensorView& view, Index offset) {
  return static_cast<char*>(view.data) + offset * static_cast<Index>(size_of(view.dtype));
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(Index threads) {
    limits_.processor = dispatch::Processor::cpu;
    limits_.units = threads;
  }
  const dispatch::DeviceLimits& limits() const override { return limits_; }
  const dispatch::Profile& default_profile() const override {
    return dispatch::generic_cpu_profile();
  }
  Dtype inner_type(Dtype dtype) const override { return compute_type(dtype); }

  void forward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) override {
    (call.is_dense() ? cpu_dense_forward : cpu_forward)(plan, call, workspace);
  }
  void backward(const dispatch::Plan& plan, const LayerCall& call, Arena& workspace) override {
    (call.is_dense() ? cpu_dense_backward : cpu_backward)(plan, call, workspace);
  }
  void scan(const dispatch::Plan& plan, const ScanArgs& args, Arena& workspace) override {
    cpu_scan(plan, args, workspace);
  }
  void copy(const TensorView& from, const TensorView& to) override {
    for_rows(from, to, [&](Index a, Index b, Index count) {
      cpu_kernels().convert(at(from, a), from.dtype, at(to, b), to.dtype, count);
    });
  }
  void dropout(const TensorView& from, const TensorView& to, double share,
               std::uint64_t seed) override {
    (from.dtype == Dtype::float64 ? drop<double> : drop<float>)(from, to, share, seed);
  }

 private:
  dispatch::DeviceLimits limits_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const ContextOptions& options) {
  const int available = std::min(omp_get_max_threads(), omp_get_num_procs());
  return std::make_unique<CpuBackend>(options.threads > 0 ? options.threads : available);
}

Backend& cpu_counting_backend() {
  static CpuBackend cpu(1);
  return cpu;
}

}  // namespace scanrnn
