// SPDX-License-Identifier: Apache-2.0
// A problem with its tensors on a device, to be run, compared and timed with no Python in between:
// a layer or a bare scan.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "calls.h"
#include "names.h"
#include "platform.h"
#include "scanrnn/memory.h"

namespace scanrnn {

// Inputs are random multiples of a power of two that every dtype holds, so that workloads of one
// shape read the same numbers whatever their dtype.
class Workload {
 public:
  // A timed graph of a run under one plan, with memory of its own.
  struct Recorded {
    Workload& owner;
    dispatch::Plan plan;
    Buffer workspace, reserve;
    int calls;
    std::unique_ptr<TimedGraph> graph;

    double milliseconds() { return graph->milliseconds() / calls; }
    // The same with `times` calls in a row, whose mean milliseconds() gives.
    std::unique_ptr<Recorded> again(int times) { return owner.record(plan, times); }
    std::size_t bytes() const { return workspace.bytes() + reserve.bytes(); }
  };

  virtual ~Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  // Under the planner's own choice for `automatic`; `across_blocks` overrides how a parallel scan
  // splits time. Runs once, then makes a timed graph of it.
  std::unique_ptr<Recorded> record(Strategy strategy, std::optional<bool> across_blocks) {
    dispatch::Plan chosen = plan(strategy);
    if (across_blocks) chosen.across_blocks = *across_blocks;
    return record(chosen, 1);
  }
  std::unique_ptr<Recorded> record(const dispatch::Plan& plan, int calls) {
    const Sizes sizes = this->sizes(plan);
    auto out = std::make_unique<Recorded>(Recorded{*this,
                                                   plan,
                                                   Buffer(context_, sizes.workspace),
                                                   Buffer(context_, sizes.reserve),
                                                   calls,
                                                   {}});
    run(*out);
    synchronize(context_);
    Recorded& recorded = *out;
    out->graph = std::make_unique<TimedGraph>(context_, [this, &recorded] {
      for (int i = 0; i < recorded.calls; ++i) run(recorded);
    });
    return out;
  }

  // The last run's errors against a workload in float64: the output's largest error over its
  // largest value, and the largest of the gradients' RMS errors over their RMS. NaN counts as
  // infinite.
  std::pair<double, double> errors(Workload& exact) {
    const auto alike = [&](const Tensor& one, const Tensor& other) {
      return one.count == other.count && exact.dtype_ == Dtype::float64;
    };
    bool fits = alike(output_, exact.output_) && gradients_.size() <= exact.gradients_.size();
    for (std::size_t i = 0; i < gradients_.size() && fits; ++i) {
      fits = alike(gradients_[i], exact.gradients_[i]);
    }
    if (!fits) throw value_error("exact: expected a float64 workload of the same sizes");
    double of_gradients = 0;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      of_gradients = std::max(of_gradients, compare(gradients_[i], exact.gradients_[i]).second);
    }
    return {compare(output_, exact.output_).first, of_gradients};
  }

 protected:
  struct Tensor {
    Buffer memory;
    std::size_t count = 0;
    mutable std::unique_ptr<double[]> host = {};  // what is compared of an exact result, once asked
  };

  Workload(Dtype dtype, Device device, MatmulPrecision precision)
      : context_(where(device)), dtype_(dtype) {
    context_.set_matmul_precision(precision);
  }

  virtual dispatch::Plan plan(Strategy strategy) const = 0;
  virtual Sizes sizes(const dispatch::Plan& plan) const = 0;
  virtual void run(const Recorded& recorded) = 0;

  std::size_t bytes(std::size_t count) const { return count * size_of(dtype_); }
  Tensor empty(std::size_t count) { return {Buffer(context_, bytes(count)), count}; }

  // Multiples of 2^-7 in [-1, 1), or in [-1, 0] as logarithms of decays are, by 2^-shift.
  Tensor random(std::size_t count, int shift, bool negative = false) {
    constexpr std::size_t kPeriod = 1000003;  // a prime: no stride of a tensor meets it
    const std::size_t period = std::min(count, kPeriod);
    const std::unique_ptr<char[]> host(new char[bytes(period)]);
    std::uint64_t state = 0x9e3779b97f4a7c15ull * (count + 1 + (++made_ << 40));
    for (std::size_t i = 0; i < period; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const int unit = static_cast<int>(state >> 56) - 128;
      write(host.get() + bytes(i), std::ldexp(negative ? -std::abs(unit) : unit, -7 - shift));
    }
    Tensor out = empty(count);
    for (std::size_t at = 0; at < count; at += period) {
      out.memory.upload(host.get(), bytes(std::min(period, count - at)), bytes(at));
    }
    return out;
  }

  TensorView view(const Tensor& tensor, std::initializer_list<std::int64_t> sizes) const {
    return TensorView::of(tensor.memory.data(), dtype_, sizes, context_.options().device);
  }

  Context context_;
  const Dtype dtype_;
  Tensor output_;
  std::vector<Tensor> gradients_;

 private:
  // A stream can be recorded that is not the default one; each thread has such a one already.
  static constexpr std::uintptr_t kThreadsOwnStream = 2;  // CUDA's cudaStreamPerThread

  static Context where(Device device) {
    ContextOptions options;
    options.device = device;
    options.matmul_precision = matmul_precision();
    if (device.kind == Device::Kind::cuda) {
      options.stream = reinterpret_cast<void*>(kThreadsOwnStream);
    }
    return Context(options);
  }

  // Numbers of the tensors' dtype at an address.
  void write(char* to, double value) const {
    const auto narrow = static_cast<float>(value);
    const auto put = [&](const auto& stored) { std::memcpy(to, &stored, sizeof stored); };
    std::uint32_t bits;
    switch (dtype_) {
      case Dtype::float64:
        return put(value);
      case Dtype::float32:
        return put(narrow);
      case Dtype::float16:
        return put(float_to_half(narrow));
      case Dtype::bfloat16:  // exact
        std::memcpy(&bits, &narrow, sizeof bits);
        return put(static_cast<std::uint16_t>(bits >> 16));
      default:
        throw type_error(std::string("dtype: no workload is of ") + name(dtype_));
    }
  }
  double read(const char* from) const {
    const auto get = [&](auto value) {
      std::memcpy(&value, from, sizeof value);
      return value;
    };
    switch (dtype_) {
      case Dtype::float64:
        return get(double());
      case Dtype::float32:
        return static_cast<double>(get(float()));
      case Dtype::float16:
        return static_cast<double>(half_to_float(get(std::uint16_t())));
      default:  // bfloat16
        break;
    }
    const std::uint32_t bits = std::uint32_t{get(std::uint16_t())} << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return static_cast<double>(out);
  }

  // A large tensor is compared at its beginning, in its middle and at its end.
  static constexpr std::size_t kCompared = std::size_t{1} << 22, kPieces = 3;
  static std::size_t compared(std::size_t count) { return std::min(count, kPieces * kCompared); }
  static void download(const Tensor& from, std::size_t element_bytes, void* to) {
    const std::size_t count = compared(from.count);
    const std::size_t pieces = count < from.count ? kPieces : 1, each = count / pieces;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::size_t first = pieces == 1 ? 0 : (from.count - each) / (pieces - 1) * piece;
      from.memory.download(static_cast<char*>(to) + piece * each * element_bytes,
                           each * element_bytes, first * element_bytes);
    }
  }

  std::pair<double, double> compare(const Tensor& got, const Tensor& exact) const {
    const std::size_t count = compared(got.count);
    if (!exact.host) {
      exact.host.reset(new double[count]);
      download(exact, sizeof(double), exact.host.get());
    }
    const std::unique_ptr<char[]> host(new char[bytes(count)]);
    download(got, size_of(dtype_), host.get());
    double largest = 0, worst = 0, squares = 0, off = 0;
#pragma omp parallel for reduction(max : largest, worst) reduction(+ : squares, off)
    for (std::size_t i = 0; i < count; ++i) {
      const double want = exact.host[i], error = std::abs(read(host.get() + bytes(i)) - want);
      largest = std::max(largest, std::abs(want));
      worst = std::max(worst, error);
      squares += want * want;
      off += error * error;
    }
    if (!(off < HUGE_VAL)) return {HUGE_VAL, HUGE_VAL};
    const double tiny = 1e-300;
    return {worst / (largest + tiny), std::sqrt(off / (squares + tiny))};
  }

  std::uint64_t made_ = 0;  // tensors: each has numbers of its own
};

}  // namespace scanrnn
