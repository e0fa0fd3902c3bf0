// SPDX-License-Identifier: Apache-2.0
// What lies beneath layer calls on one kind of processor: devices, memory, copies, waits, timed
// graphs, and the backends that run layers. There is one object for each kind; it has no state.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "scanrnn/timed_graph.h"
#include "stack/backend.h"

namespace scanrnn {

// A device by its number and, on CUDA, the stream on which things are ordered.
struct Place {
  int device = 0;
  void* stream = nullptr;
};

struct TimedGraph::Impl {
  virtual ~Impl() = default;
  virtual void run() = 0;
  virtual double milliseconds() = 0;
};

class Runtime {
 public:
  // How many devices can be used. Without a driver there are none, which is no error.
  virtual int count() const = 0;
  virtual DeviceInfo device(int index) const = 0;
  virtual std::string code() const = 0;  // what this build has for it, for build_info()

  // Throws cuda_error where the device is not there.
  virtual std::unique_ptr<Backend> make_backend(const ContextOptions& options) const = 0;
  // Needs no device and runs nothing: how sizes(plan) counts.
  virtual Backend& counting_backend() const = 0;

  // At least one byte, Arena::kAlignment aligned. Throws std::bad_alloc where there is not that
  // much.
  virtual void* allocate(Place place, std::size_t bytes) const = 0;
  virtual void release(Place place, void* data) const noexcept = 0;
  // Both return when the host's memory may be used again.
  virtual void upload(Place place, void* to, const void* host, std::size_t bytes) const = 0;
  virtual void download(Place place, void* host, const void* from, std::size_t bytes) const = 0;
  virtual std::unique_ptr<TimedGraph::Impl> timed_graph(Place place,
                                                        std::function<void()> work) const = 0;

  // The device whose memory this is, absent where the processor does not know of it.
  virtual std::optional<Device> device_of(const void* /*pointer*/) const { return {}; }
  // What comes on the stream `after` waits for what is on that of `before`; the host waits for
  // nothing. A processor without streams has nothing to order, and nothing to wait for.
  virtual void order(Place /*before*/, void* /*after*/) const {}
  virtual void synchronize(Place /*place*/) const {}

 protected:
  ~Runtime() = default;  // never by this type, so that one lives until the process ends
};

// Null where this build has none for that kind.
const Runtime* find_runtime(Device::Kind kind);

inline Place place_of(const Context& context) {
  return {context.options().device.index, context.options().stream};
}

}  // namespace scanrnn
