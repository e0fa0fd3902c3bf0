// SPDX-License-Identifier: Apache-2.0
// Arrays out: memory of one library for others to take by DLPack.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "calls.h"
#include "dlpack_type.h"
#include "exchange.h"
#include "scanrnn/memory.h"

namespace scanrnn {
namespace {

// It is safe to use on `stream`, and lives as long as anyone has it.
struct Exported {
  Tensor tensor;
  std::shared_ptr<void> owner;
  void* stream = nullptr;

  Exported(Tensor of, py::object kept, std::uintptr_t on)
      : tensor(std::move(of)), stream(reinterpret_cast<void*>(on)) {
    // The last one to let go may be any thread.
    owner = std::shared_ptr<void>(kept.release().ptr(), [](void* object) {
      if (!Py_IsInitialized()) return;
      const py::gil_scoped_acquire locked;
      Py_DECREF(static_cast<PyObject*>(object));
    });
  }
  std::pair<int, int> device() const {
    const Device on = tensor.view.device;
    return {on.kind == Device::Kind::cpu ? kDLCPU : kDLCUDA, on.index};
  }

  // What a capsule holds: the layout that its consumer reads, and the memory.
  template <class Managed>
  struct Held {
    Managed managed{};
    Tensor tensor;
    std::shared_ptr<void> owner;
  };

  template <class Managed>
  py::capsule capsule(const char* capsule_name) const {
    auto* held = new Held<Managed>{{}, tensor, owner};
    Managed& m = held->managed;
    TensorView& view = held->tensor.view;
    m.manager_ctx = held;
    m.deleter = [](Managed* self) { delete static_cast<Held<Managed>*>(self->manager_ctx); };
    const auto [type, id] = device();
    m.dl_tensor = {view.data,
                   {static_cast<DLDeviceType>(type), id},
                   view.rank,
                   dlpack_type(view.dtype),
                   view.sizes.data(),
                   view.strides.data(),
                   0};
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
      m.version = {DLPACK_MAJOR_VERSION, 0};  // of what is used here
    }
    return py::capsule(&m, capsule_name, [](PyObject* capsule) {
      const char* name = PyCapsule_GetName(capsule);  // begins with used_ once it was taken
      if (name[0] == 'u') return;
      auto* self = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
      self->deleter(self);
    });
  }

  py::capsule to_dlpack(const std::optional<std::intptr_t>& consumer,
                        const std::optional<std::pair<int, int>>& max_version,
                        const std::optional<std::pair<int, int>>& wanted,
                        const std::optional<bool>& copy) const {
    if ((wanted && *wanted != device()) || copy.value_or(false)) {
      throw py::buffer_error("__dlpack__: this array is given as it is: expected dl_device (" +
                             std::to_string(device().first) + ", " +
                             std::to_string(device().second) + ") or None, and no copy");
    }
    const Device on = tensor.view.device;
    if (on.kind == Device::Kind::cuda && consumer.value_or(1) != -1) {
      order_streams(context(on), stream, reinterpret_cast<void*>(consumer.value_or(1)));
    }
    return max_version && max_version->first >= 1
               ? capsule<DLManagedTensorVersioned>(kVersionedCapsule)
               : capsule<DLManagedTensor>(kLegacyCapsule);
  }
};

}  // namespace

void bind_export(py::module_& m) {
  using namespace py::literals;
  py::class_<Exported>(m, "Exported")
      .def(py::init<Tensor, py::object, std::uintptr_t>())
      .def("__dlpack_device__", &Exported::device)
      .def("__dlpack__", &Exported::to_dlpack, py::kw_only(), "stream"_a = py::none(),
           "max_version"_a = py::none(), "dl_device"_a = py::none(), "copy"_a = py::none());
}

}  // namespace scanrnn
