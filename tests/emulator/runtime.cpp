// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime for the emulator: one device, whose memory is the host's. Work of streams is done
// when somebody waits, in any order that streams and events allow: what relies on more shows.
#include "runtime.h"
#include "handles.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

namespace emulated {
namespace {

constexpr std::size_t kMostPending = 4096;

struct World {
  std::recursive_mutex mutex;
  std::vector<Step> pending;
  CUstream_st first;
  std::map<const char*, std::size_t> memory;
  std::map<const void*, int> shared;  // that a kernel is allowed
  std::mt19937 order{seed()};
  cudaError_t error = cudaSuccess;
  std::vector<CUgraph_st*> global;  // captures under way in the global mode
};
World& world() {
  static World& out = *new World;  // device memory may be freed at the very end
  return out;
}
CUstream_st& stream_of(cudaStream_t stream) { return stream ? *stream : world().first; }

Step add(CUstream_st& stream, std::function<void()> work) {
  auto step = std::make_shared<Node>();
  step->work = std::move(work);
  step->after = std::move(stream.awaited);
  stream.awaited.clear();
  if (stream.last) step->after.push_back(stream.last);
  stream.last = step;
  (stream.capture ? stream.capture->steps : world().pending).push_back(step);
  return step;
}

// All that is pending, in an order of its own.
void finish() {
  World& w = world();
  while (!w.pending.empty()) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < w.pending.size() && ready.size() < 16; ++i) {
      if (w.pending[i]->ready()) ready.push_back(i);
    }
    if (ready.empty()) {
      std::fprintf(stderr, "emulator: streams wait for one another\n");
      std::abort();
    }
    const std::size_t i = ready[w.order() % ready.size()];
    const Step step = w.pending[i];
    w.pending.erase(w.pending.begin() + static_cast<std::ptrdiff_t>(i));
    if (step->work) step->work();
    step->over = true;
    step->work = nullptr;
    step->after.clear();
  }
}

void* allocate(std::size_t bytes) {
  char* const out = static_cast<char*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256));
  if (!out) return nullptr;
  std::memset(out, 0xff, bytes);  // a NaN, and no index
  const std::lock_guard<std::recursive_mutex> lock(world().mutex);
  world().memory[out] = bytes;
  return out;
}
void release(void* p) {
  if (!p) return;
  const std::lock_guard<std::recursive_mutex> lock(world().mutex);
  const auto found = world().memory.find(static_cast<char*>(p));
  if (found == world().memory.end()) {
    std::fprintf(stderr, "emulator: memory freed that is not the device's\n");
    std::abort();
  }
  std::memset(p, 0xff, found->second);
  world().memory.erase(found);
  std::free(p);
}

cudaError_t failed(cudaError_t why) {
  world().error = why;
  return why;
}

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
// What gets memory, gives it back or waits for an event ends all captures in the global mode,
// unless its thread has said that it knows about them.
bool ends_captures() {
  const std::lock_guard<std::recursive_mutex> lock(world().mutex);
  if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
  for (CUgraph_st* graph : world().global) graph->valid = false;
  return !world().global.empty();
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard<std::recursive_mutex> lock(world().mutex);
  add(stream_of(stream), std::move(work));
  if (world().pending.size() > kMostPending) finish();
}
cudaError_t enqueue(const How& how, std::function<void()> thread) {
  const auto limit = [](unsigned n) { return n == 0 || n > 0x7fffffffu; };
  const unsigned threads = how.block.x * how.block.y * how.block.z;
  if (limit(how.grid.x) || how.grid.y == 0 || how.grid.z == 0 || threads == 0 || threads > 1024 ||
      how.shared > kSharedBytes) {
    return failed(cudaErrorInvalidConfiguration);
  }
  const unsigned blocks = how.grid.x * how.grid.y * how.grid.z;
  if (how.all_resident && blocks > 132) return failed(cudaErrorCooperativeLaunchTooLarge);
  enqueue(how.stream, [how, thread = std::move(thread)] { run_grid(how, thread); });
  return cudaSuccess;
}

}  // namespace emulated

using emulated::failed;
using emulated::world;
using Lock = std::lock_guard<std::recursive_mutex>;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(world().error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return world().error; }
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorInvalidConfiguration ? "invalid configuration" : "of the emulator";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  if (device != 0) return failed(cudaErrorInvalidDevice);
  *out = {};
  std::strcpy(out->name, "emulated");
  out->multiProcessorCount = 132;
  out->totalGlobalMem = std::size_t{4} << 30;
  out->sharedMemPerBlockOptin = emulated::kSharedBytes;
  out->major = 9;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  *out = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(world().mutex);
  emulated::finish();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(world().mutex);
  if (emulated::stream_of(stream).capture) return failed(cudaErrorStreamCaptureUnsupported);
  emulated::finish();
  return cudaSuccess;
}
// Work begins when somebody waits for it, or asks whether it is over.
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  emulated::enqueue(stream, [=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(world().mutex);
  emulated::finish();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Lock lock(world().mutex);
  CUstream_st& stream = emulated::stream_of(handle);
  if (event->capture && !stream.capture) {
    stream.capture = event->capture;
    stream.capture->streams.push_back(&stream);
    stream.last = nullptr;
  }
  if (event->step) stream.awaited.push_back(event->step);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const Lock lock(world().mutex);
  CUstream_st& stream = emulated::stream_of(handle);
  event->step = emulated::add(stream, nullptr);
  event->capture = stream.capture;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  if (emulated::ends_captures()) return failed(cudaErrorStreamCaptureUnsupported);
  return cudaDeviceSynchronize();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;  // time is not emulated
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, emulated::capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const Lock lock(world().mutex);
  CUstream_st& stream = emulated::stream_of(handle);
  emulated::finish();
  stream.capture = new CUgraph_st;
  stream.capture->streams.push_back(&stream);
  stream.last = nullptr;
  if (mode == cudaStreamCaptureModeGlobal) world().global.push_back(stream.capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  const Lock lock(world().mutex);
  *out = emulated::stream_of(handle).capture;
  for (CUstream_st* stream : (*out)->streams) {
    stream->capture = nullptr;
    stream->last = nullptr;
    stream->awaited.clear();
  }
  auto& global = world().global;
  global.erase(std::remove(global.begin(), global.end(), *out), global.end());
  if ((*out)->valid) return cudaSuccess;
  delete std::exchange(*out, nullptr);
  return failed(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* out) {
  *out = emulated::stream_of(handle).capture ? cudaStreamCaptureStatusActive
                                             : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new CUgraphExec_st{graph->steps};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  const Lock lock(world().mutex);
  CUstream_st& stream = emulated::stream_of(handle);
  const emulated::Step begin = emulated::add(stream, nullptr);
  std::map<const emulated::Node*, emulated::Step> copies;
  for (const emulated::Step& step : graph->steps) {
    auto copy = std::make_shared<emulated::Node>();
    copy->work = step->work;
    copy->after.push_back(begin);
    for (const emulated::Step& before : step->after) {
      const auto found = copies.find(before.get());
      if (found != copies.end()) copy->after.push_back(found->second);
    }
    copies[step.get()] = copy;
    world().pending.push_back(copy);
    stream.awaited.push_back(copy);
  }
  emulated::add(stream, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  if (emulated::ends_captures()) return failed(cudaErrorStreamCaptureUnsupported);
  const Lock lock(world().mutex);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  if (emulated::ends_captures()) return failed(cudaErrorStreamCaptureUnsupported);
  *out = emulated::allocate(bytes);
  return *out ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  cudaDeviceSynchronize();
  emulated::release(p);
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps*) {
  *out = new CUmemPoolHandle_st;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  if (bytes > std::size_t{4} << 30) return failed(cudaErrorMemoryAllocation);
  return cudaMalloc(out, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  if (emulated::ends_captures()) return failed(cudaErrorStreamCaptureUnsupported);
  emulated::enqueue(stream, [p] { emulated::release(p); });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  if (emulated::ends_captures()) return failed(cudaErrorStreamCaptureUnsupported);
  *out = std::malloc(bytes);
  return *out ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* p) {
  if (emulated::ends_captures()) return failed(cudaErrorStreamCaptureUnsupported);
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  emulated::enqueue(stream, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  cudaDeviceSynchronize();
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return failed(cudaErrorInvalidValue);
  emulated::enqueue(stream, [=] {
    for (std::size_t i = 0; i < height; ++i) {
      std::memmove(static_cast<char*>(to) + i * to_pitch,
                   static_cast<const char*>(from) + i * from_pitch, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) {
  emulated::enqueue(stream, [=] { std::memset(p, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* p, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  if (width > pitch) return failed(cudaErrorInvalidValue);
  emulated::enqueue(stream, [=] {
    for (std::size_t i = 0; i < height; ++i) {
      std::memset(static_cast<char*>(p) + i * pitch, value, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  const Lock lock(world().mutex);
  *out = {};
  auto next = world().memory.upper_bound(static_cast<const char*>(p));
  if (next == world().memory.begin()) return cudaSuccess;
  --next;
  if (static_cast<const char*>(p) < next->first + next->second) out->type = cudaMemoryTypeDevice;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* kernel) {
  const Lock lock(world().mutex);
  *out = {};
  out->ptxVersion = 90;
  out->maxDynamicSharedSizeBytes = world().shared.emplace(kernel, 48 * 1024).first->second;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const Lock lock(world().mutex);
  if (value > static_cast<int>(emulated::kSharedBytes)) return failed(cudaErrorInvalidValue);
  world().shared[kernel] = value;
  return cudaSuccess;
}

}  // extern "C"
