// SPDX-License-Identifier: Apache-2.0
// Every CUDA status goes through here: a failure becomes a cuda_error with the call and the device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "scanrnn/error.h"

namespace scanrnn {

[[noreturn]] inline void fail(const char* call, const std::string& what) {
  int device = -1;
  cudaGetDevice(&device);
  throw cuda_error(std::string(call) + " failed on cuda:" + std::to_string(device) + ": " + what);
}

inline void check_status(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a launch error would be reported again by the next call
  std::string what = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorNoKernelImageForDevice) {
    what += " (this build has no code for the device; build_info() lists what it has)";
  }
  fail(call, what);
}

#define SCANRNN_CUDA(call) ::scanrnn::check_status((call), #call)

// Makes `device` current and gives back what was before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    SCANRNN_CUDA(cudaGetDevice(&before_));
    if (device != before_) SCANRNN_CUDA(cudaSetDevice(device));
  }
  ~DeviceGuard() { cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// Another stream may be captured into a graph, and a capture in CUDA's global mode ends with an
// error when any thread asks for memory, gives some back, as a garbage collector may at any time,
// or waits for an event. While this lives, the thread's calls end no capture of another stream.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace scanrnn
