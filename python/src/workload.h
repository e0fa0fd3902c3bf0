// SPDX-License-Identifier: Apache-2.0
// A layer with its tensors on a device, to be run, compared and timed with no Python in between.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "convert.h"
#include "precision.h"

namespace scanrnn {

// Inputs and parameters are random multiples of a power of two that every dtype holds, so that
// workloads of one shape read the same numbers whatever their dtype.
class Workload {
 public:
  // A recorded pass under one plan, with memory of its own.
  struct Recorded {
    Workload& owner;
    dispatch::Plan plan;
    Buffer workspace, reserve;
    int calls;
    std::unique_ptr<Recording> recording;

    double milliseconds() { return recording->milliseconds() / calls; }
    // The same with `times` calls in a row, whose mean milliseconds() gives.
    std::unique_ptr<Recorded> again(int times) { return owner.record(plan, times); }
    std::size_t bytes() const { return workspace.bytes() + reserve.bytes(); }
  };

  Workload(const Layer& layer, Device device, std::int64_t steps, std::int64_t batch, bool training)
      : layer_(layer),
        context_(where(device)),
        steps_(steps),
        batch_(batch),
        mode_(training ? Mode::training : Mode::inference) {
    const LayerOptions& o = layer_.options();
    const auto tokens = static_cast<std::size_t>(steps * batch);
    const auto input = static_cast<std::size_t>(o.input_size);
    const auto output = static_cast<std::size_t>(layer_.directions() * o.hidden_size);
    x_ = random(tokens * input, 0);
    y_ = empty(tokens * output);
    // Weights of about 1 / sqrt(H), by the nearest power of two.
    int shift = 0;
    while (shift < 7 && (std::int64_t{2} << 2 * shift) <= o.hidden_size) ++shift;
    for (const ParameterInfo& parameter : layer_.parameters()) {
      std::size_t count = 1;
      for (std::int64_t size : parameter.sizes) count *= static_cast<std::size_t>(size);
      params_.push_back(random(count, shift));
      if (training) dparams_.push_back(empty(count));
    }
    if (training) {
      dy_ = random(tokens * output, 0);
      dx_ = empty(tokens * input);
    }
  }

  // Under the planner's own choice for `automatic`; `across_blocks` overrides how a parallel scan
  // splits time. Runs the pass once, then records it.
  std::unique_ptr<Recorded> record(Strategy strategy, std::optional<bool> across_blocks) {
    dispatch::Plan plan = layer_.plan(context_, steps_, batch_, mode_, strategy);
    if (across_blocks) plan.across_blocks = *across_blocks;
    return record(plan, 1);
  }
  std::unique_ptr<Recorded> record(const dispatch::Plan& plan, int calls) {
    const Sizes sizes = layer_.sizes(plan);
    auto out = std::make_unique<Recorded>(Recorded{*this,
                                                   plan,
                                                   Buffer(context_, sizes.workspace),
                                                   Buffer(context_, sizes.reserve),
                                                   calls,
                                                   {}});
    run(*out);
    synchronize(context_);
    Recorded& recorded = *out;
    out->recording = std::make_unique<Recording>(context_, [this, &recorded] {
      for (int i = 0; i < recorded.calls; ++i) run(recorded);
    });
    return out;
  }

  // Of the last run against that of a workload in float64: of y the largest error over the largest
  // value, and of each gradient's RMS error over its RMS the largest. NaN counts as infinite.
  std::pair<double, double> errors(Workload& exact) {
    const auto alike = [&](const Tensor& one, const Tensor& other) {
      return one.count == other.count && exact.layer_.options().dtype == Dtype::float64;
    };
    bool fits = alike(y_, exact.y_) && (mode_ == exact.mode_ || mode_ == Mode::inference);
    for (std::size_t i = 0; i < dparams_.size() && fits; ++i) {
      fits = alike(dparams_[i], exact.dparams_.at(i));
    }
    if (!fits) throw value_error("exact: expected a float64 workload of the same sizes");
    const double of_y = compare(y_, exact.y_).first;
    double of_gradients = 0;
    if (mode_ == Mode::training) {
      of_gradients = compare(dx_, exact.dx_).second;
      for (std::size_t i = 0; i < dparams_.size(); ++i) {
        of_gradients = std::max(of_gradients, compare(dparams_[i], exact.dparams_[i]).second);
      }
    }
    return {of_y, of_gradients};
  }

 private:
  // A stream can be recorded that is not the default one; each thread has such a one already.
  static constexpr std::uintptr_t kThreadsOwnStream = 2;  // CUDA's cudaStreamPerThread

  struct Tensor {
    Buffer memory;
    std::size_t count = 0;
    mutable std::unique_ptr<double[]> host = {};  // of an exact result, once it was asked for
  };

  static Context where(Device device) {
    ContextOptions options;
    options.device = device;
    options.matmul_precision = matmul_precision();
    if (device.kind == Device::Kind::cuda) {
      options.stream = reinterpret_cast<void*>(kThreadsOwnStream);
    }
    return Context(options);
  }

  std::size_t bytes(std::size_t count) const { return count * size_of(layer_.options().dtype); }
  Tensor empty(std::size_t count) { return {Buffer(context_, bytes(count)), count}; }

  // Multiples of 2^-7 in [-1, 1), and all of that by 2^-shift.
  Tensor random(std::size_t count, int shift) {
    constexpr std::size_t kPeriod = 1000003;  // a prime: no stride of a tensor meets it
    const std::unique_ptr<char[]> host(new char[bytes(count)]);
    const std::size_t period = std::min(count, kPeriod);
    std::uint64_t state = 0x9e3779b97f4a7c15ull * (count + 1);
    for (std::size_t i = 0; i < period; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const int unit = static_cast<int>(state >> 56) - 128;
      write(host.get() + bytes(i), std::ldexp(unit, -7 - shift));
    }
    for (std::size_t at = period; at < count; at += period) {
      std::memcpy(host.get() + bytes(at), host.get(), bytes(std::min(period, count - at)));
    }
    Tensor out = empty(count);
    out.memory.upload(host.get(), bytes(count));
    return out;
  }
  void write(char* to, double value) const {
    const auto narrow = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    const auto put = [&](const auto& stored) { std::memcpy(to, &stored, sizeof stored); };
    switch (layer_.options().dtype) {
      case Dtype::float64:
        return put(value);
      case Dtype::float32:
        return put(narrow);
      case Dtype::bfloat16:
        return put(static_cast<std::uint16_t>(bits >> 16));
      case Dtype::float16: {  // exact, and far from its smallest numbers
        const std::uint32_t magnitude = bits & 0x7fffffffu;
        const std::uint32_t half = magnitude ? (magnitude >> 13) - (112u << 10) : 0;
        return put(static_cast<std::uint16_t>(half | (bits >> 31 << 15)));
      }
    }
  }
  double read(const char* from) const {
    const auto get = [&](auto value) {
      std::memcpy(&value, from, sizeof value);
      return value;
    };
    switch (layer_.options().dtype) {
      case Dtype::float64:
        return get(double());
      case Dtype::float32:
        return static_cast<double>(get(float()));
      case Dtype::bfloat16: {
        const std::uint32_t bits = std::uint32_t{get(std::uint16_t())} << 16;
        float out;
        std::memcpy(&out, &bits, sizeof out);
        return static_cast<double>(out);
      }
      case Dtype::float16:
        break;
    }
    const std::uint32_t bits = get(std::uint16_t());
    const int exponent = static_cast<int>(bits >> 10 & 31u);
    const double fraction = static_cast<double>(bits & 1023u);
    const double size = exponent == 31  ? std::numeric_limits<double>::quiet_NaN()
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -size : size;
  }

  std::pair<double, double> compare(const Tensor& got, const Tensor& exact) const {
    if (!exact.host) {
      exact.host.reset(new double[exact.count]);
      exact.memory.download(exact.host.get(), exact.count * sizeof(double));
    }
    const std::unique_ptr<char[]> host(new char[bytes(got.count)]);
    got.memory.download(host.get(), bytes(got.count));
    double largest = 0, worst = 0, squares = 0, off = 0;
#pragma omp parallel for reduction(max : largest, worst) reduction(+ : squares, off)
    for (std::size_t i = 0; i < got.count; ++i) {
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

  TensorView tokens(const Tensor& tensor, std::int64_t width) const {
    const LayerOptions& o = layer_.options();
    return TensorView::of(tensor.memory.data(), o.dtype,
                          {o.batch_first ? batch_ : steps_, o.batch_first ? steps_ : batch_, width},
                          context_.options().device);
  }
  std::vector<TensorView> views(const std::vector<Tensor>& tensors) const {
    std::vector<TensorView> out;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      TensorView view = TensorView::of(tensors[i].memory.data(), layer_.options().dtype, {},
                                       context_.options().device);
      const auto& sizes = layer_.parameters()[i].sizes;
      view.rank = static_cast<int>(sizes.size());
      view.sizes = {sizes[0], sizes.size() > 1 ? sizes[1] : 0, 0};
      view.strides = {sizes.size() > 1 ? sizes[1] : 1, 1, 0};
      out.push_back(view);
    }
    return out;
  }

  void run(const Recorded& recorded) {
    const LayerOptions& o = layer_.options();
    const std::int64_t output = layer_.directions() * o.hidden_size;
    ForwardArgs forward;
    forward.params = views(params_);
    forward.x = tokens(x_, o.input_size);
    forward.y = tokens(y_, output);
    forward.workspace = recorded.workspace.span();
    forward.reserve = recorded.reserve.span();
    layer_.forward(context_, recorded.plan, forward);
    if (mode_ == Mode::inference) return;
    BackwardArgs backward;
    backward.params = forward.params;
    backward.dparams = views(dparams_);
    backward.x = forward.x;
    backward.y = forward.y;
    backward.dy = tokens(dy_, output);
    backward.dx = tokens(dx_, o.input_size);
    backward.workspace = forward.workspace;
    backward.reserve = forward.reserve;
    layer_.backward(context_, recorded.plan, backward);
  }

  Layer layer_;
  Context context_;
  std::int64_t steps_, batch_;
  Mode mode_;
  Tensor x_, y_, dy_, dx_;
  std::vector<Tensor> params_, dparams_;
};

}  // namespace scanrnn
