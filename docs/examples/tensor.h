// SPDX-License-Identifier: Apache-2.0
// What the examples share: a float32 tensor in the memory of a context, on the CPU or a GPU.
#pragma once

#include <scanrnn/scanrnn.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

class Tensor {
 public:
  Tensor(scanrnn::Context& context, const std::vector<std::int64_t>& sizes) {
    for (std::int64_t size : sizes) view_.sizes[view_.rank++] = size;
    for (int axis = view_.rank - 1; axis >= 0; --axis) {
      view_.strides[axis] = count_;
      count_ *= view_.sizes[axis];
    }
    memory_ = scanrnn::Buffer(context, count_ * sizeof(float));
    view_.data = memory_.data();
    view_.device = context.options().device;
  }
  Tensor(scanrnn::Context& context, const std::vector<std::int64_t>& sizes,
         const std::vector<float>& values)
      : Tensor(context, sizes) {
    set(values);
  }

  const scanrnn::TensorView& view() const { return view_; }
  std::size_t count() const { return count_; }
  void set(const std::vector<float>& values) {
    memory_.upload(values.data(), count_ * sizeof(float));
  }
  std::vector<float> values() const {
    std::vector<float> out(count_);
    memory_.download(out.data(), count_ * sizeof(float));
    return out;
  }

 private:
  scanrnn::Buffer memory_;
  scanrnn::TensorView view_;
  std::size_t count_ = 1;
};

inline std::vector<float> uniform(std::mt19937& random, std::size_t count, float bound) {
  std::uniform_real_distribution<float> draw(-bound, bound);
  std::vector<float> out(count);
  for (float& value : out) value = draw(random);
  return out;
}

// The device that the program was started for: none or "cpu", or "cuda".
inline scanrnn::ContextOptions where(int argc, char** argv) {
  scanrnn::ContextOptions options;
  if (argc > 1 && std::string(argv[1]) == "cuda") options.device = scanrnn::Device::cuda();
  return options;
}
