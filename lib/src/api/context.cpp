// SPDX-License-Identifier: Apache-2.0
// A context: the caller's choice of device, threads or stream, and the backend for it.
#include "scanrnn/context.h"

#include <utility>

#include "api/check.h"
#include "stack/runtime.h"

namespace scanrnn {
namespace {

constexpr int kMostThreads = 4096;

}  // namespace

Backend& counting_backend(dispatch::Processor processor) {
  const bool on_cuda = processor == dispatch::Processor::cuda;
  const Runtime* runtime = find_runtime(on_cuda ? Device::Kind::cuda : Device::Kind::cpu);
  return (runtime ? runtime : find_runtime(Device::Kind::cpu))->counting_backend();
}

Context::Context(ContextOptions options) : impl_(std::make_unique<Impl>()) {
  require(options.threads >= 0, [&] {
    return "threads: expected 0 for all or a positive number, got " +
           std::to_string(options.threads);
  });
  require(options.threads <= kMostThreads, [&] {
    return "threads: expected at most " + std::to_string(kMostThreads) + ", got " +
           std::to_string(options.threads);
  });
  require(options.device.kind != Device::Kind::cpu || options.device.index == 0, [&] {
    return "device: expected index 0 of the CPU, got " + std::to_string(options.device.index);
  });
  impl_->options = options;
  impl_->runtime = find_runtime(options.device.kind);
  if (!impl_->runtime) {
    throw cuda_error("device: " + name(options.device) +
                     " was asked for, but this build has no CUDA");
  }
  impl_->backend = impl_->runtime->make_backend(options);
  // A built-in profile lives as long as the library, so nothing owns it.
  impl_->profile = {std::shared_ptr<void>(), &impl_->backend->default_profile()};
}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

const ContextOptions& Context::options() const { return impl_->options; }
const dispatch::DeviceLimits& Context::limits() const { return impl_->backend->limits(); }
const dispatch::Profile& Context::profile() const { return *impl_->profile; }
void Context::set_stream(void* stream) {
  impl_->options.stream = stream;
  impl_->backend->set_stream(stream);
}
void Context::set_profile(const dispatch::Profile& profile) {
  check_profile(profile);
  impl_->profile = std::make_shared<const dispatch::Profile>(profile);
}
void Context::set_profile(std::shared_ptr<const dispatch::Profile> profile) {
  require(profile != nullptr, "profile: expected one, got a null pointer");
  check_profile(*profile);
  impl_->profile = std::move(profile);
}
void Context::set_matmul_precision(MatmulPrecision precision) {
  impl_->options.matmul_precision = precision;
  impl_->backend->set_matmul_precision(precision);
}

}  // namespace scanrnn
