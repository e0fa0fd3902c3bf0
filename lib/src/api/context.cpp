// SPDX-License-Identifier: Apache-2.0
// A context: the caller's choice of device, threads or stream, and the backend for it.
#include "scanrnn/context.h"

#include "api/check.h"
#include "cuda/device.h"
#include "stack/backend.h"

namespace scanrnn {
namespace {

std::unique_ptr<Backend> make_backend(const ContextOptions& options) {
  require(options.threads >= 0, [&] {
    return "threads: expected 0 for all or a positive number, got " +
           std::to_string(options.threads);
  });
  if (options.device.kind == Device::Kind::cpu) return make_cpu_backend(options);
#ifdef SCANRNN_WITH_CUDA
  return make_cuda_backend(options);
#else
  throw cuda_error("device: " + name(options.device) +
                   " was asked for, but this build has no CUDA");
#endif
}

}  // namespace

Backend& counting_backend(dispatch::Processor processor) {
#ifdef SCANRNN_WITH_CUDA
  if (processor == dispatch::Processor::cuda) return cuda_counting_backend();
#else
  static_cast<void>(processor);
#endif
  return cpu_counting_backend();
}

Context::Context(ContextOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->backend = make_backend(options);
  impl_->profile = impl_->backend->default_profile();
}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

const ContextOptions& Context::options() const { return impl_->options; }
const dispatch::DeviceLimits& Context::limits() const { return impl_->backend->limits(); }
const dispatch::Profile& Context::profile() const { return impl_->profile; }
void Context::set_stream(void* stream) {
  impl_->options.stream = stream;
  impl_->backend->set_stream(stream);
}
void Context::set_profile(const dispatch::Profile& profile) { impl_->profile = profile; }
void Context::set_matmul_precision(MatmulPrecision precision) {
  impl_->options.matmul_precision = precision;
  impl_->backend->set_matmul_precision(precision);
}

}  // namespace scanrnn
