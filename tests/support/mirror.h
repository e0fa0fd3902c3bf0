// SPDX-License-Identifier: Apache-2.0
// Contexts on the device of the tests, and its memory: what lies on the host as the device sees it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "scanrnn/scanrnn.h"
#include "support/device.h"
#include "support/tensor.h"

namespace scanrnn::test {

inline Context make_context(int threads) {
  ContextOptions options;
  options.device = test_device();
  options.threads = threads;
  return Context(options);
}

// What several tests use, to be made before main() begins. It ends with the tests: a static would
// end at exit, behind the libraries of CUDA, which are loaded later and so end earlier.
template <class T>
class Shared : public testing::Environment {
 public:
  static std::unique_ptr<T>& make() {
    const auto shared = new Shared;
    testing::AddGlobalTestEnvironment(shared);  // which GoogleTest deletes
    return shared->value_;
  }
  void TearDown() override { value_.reset(); }

 private:
  std::unique_ptr<T> value_;
};

// That of a case, made anew on the CPU; on CUDA one for all of them, since the driver takes its
// time.
inline std::unique_ptr<Context>& last_context = Shared<Context>::make();
inline Context& shared_context(int threads) {
  std::unique_ptr<Context>& context = last_context;
  if (!context || !on_cuda()) context = std::make_unique<Context>(make_context(threads));
  return *context;
}

// Host memory as a context's device sees it: the memory itself, or a copy that goes there, guards
// and all, and comes back. What is asked for twice is one copy.
class Mirror {
 public:
  explicit Mirror(Context& context) : context_(context) {}

  TensorView view(Tensor& tensor) {
    TensorView out = tensor.view();
    if (out.data) out.data = at(out.data, tensor.bytes());
    out.device = context_.options().device;
    return out;
  }
  Span span(Workspace& workspace) {
    const Span host = workspace.span();
    if (!host.data) return host;
    return {at(host.data, workspace.bytes()), host.bytes};
  }
  void bring_back() {
    for (const Copy& copy : copies_) {
      copy.buffer.download(copy.host->data(), copy.host->size(), copy.shift);
    }
  }

 private:
  struct Copy {
    std::vector<std::uint8_t>* host;
    Buffer buffer;
    std::size_t shift;
  };

  // Where `data`, which lies in `bytes`, lies on the device; as aligned as it is here.
  void* at(void* data, std::vector<std::uint8_t>& bytes) {
    if (context_.options().device.kind == Device::Kind::cpu) return data;
    const auto known = std::find_if(copies_.begin(), copies_.end(),
                                    [&](const Copy& copy) { return copy.host == &bytes; });
    const Copy& copy = known == copies_.end() ? add(bytes) : *known;
    return static_cast<std::uint8_t*>(copy.buffer.data()) + copy.shift +
           (static_cast<std::uint8_t*>(data) - bytes.data());
  }
  const Copy& add(std::vector<std::uint8_t>& bytes) {
    constexpr std::size_t kAlign = 256;
    const std::size_t shift = reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlign;
    copies_.push_back({&bytes, Buffer(context_, bytes.size() + kAlign), shift});
    copies_.back().buffer.upload(bytes.data(), bytes.size(), shift);
    return copies_.back();
  }

  Context& context_;
  std::vector<Copy> copies_;
};

// A contiguous tensor on the host as a context's device sees it: the tensor itself, or a copy.
class Uploaded {
 public:
  Uploaded(Context& context, const TensorView& host) : view_(host) {
    const Device device = context.options().device;
    if (device.kind == Device::Kind::cpu || !host) return;
    std::size_t bytes = size_of(host.dtype);
    for (int axis = 0; axis < host.rank; ++axis) {
      bytes *= static_cast<std::size_t>(host.sizes[static_cast<std::size_t>(axis)]);
    }
    memory_ = std::make_unique<Buffer>(context, std::max<std::size_t>(bytes, 1));
    memory_->upload(host.data, bytes);
    view_.data = memory_->data();
    view_.device = device;
  }
  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::unique_ptr<Buffer> memory_;
};

// Workspace of exactly so many bytes between guards, new and poisoned on the CPU. A GPU's is tens
// of MiB, so that there one serves all cases of a thread, with what the last one left in it.
class Scratch {
 public:
  Scratch(Context& context, std::size_t bytes) : bytes_(bytes), host_(on_cpu(context) ? bytes : 0) {
    if (on_cpu(context) || bytes == 0) return;
    thread_local std::unique_ptr<Buffer> shared;
    if (!shared || shared->bytes() < bytes + 2 * kGuard) {
      const std::vector<std::uint8_t> poison(bytes + 2 * kGuard, 0xFF);
      shared = std::make_unique<Buffer>(context, poison.size());
      shared->upload(poison.data(), poison.size());
    }
    device_ = shared.get();
    for (std::size_t guard : {std::size_t{0}, kGuard + bytes}) {
      device_->upload(poison().data(), kGuard, guard);
    }
  }
  Span span() {
    return device_ ? Span{static_cast<char*>(device_->data()) + kGuard, bytes_} : host_.span();
  }
  bool intact() const {
    bool out = host_.intact();
    for (std::size_t guard : {std::size_t{0}, kGuard + bytes_}) {
      std::vector<std::uint8_t> now(kGuard, 0xFF);
      if (device_) device_->download(now.data(), kGuard, guard);
      out = out && now == poison();
    }
    return out;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static bool on_cpu(const Context& context) {
    return context.options().device.kind == Device::Kind::cpu;
  }
  static const std::vector<std::uint8_t>& poison() {
    static const std::vector<std::uint8_t> guard(kGuard, 0xFF);
    return guard;
  }

  std::size_t bytes_;
  Workspace host_;
  Buffer* device_ = nullptr;
};

}  // namespace scanrnn::test
