// SPDX-License-Identifier: Apache-2.0
// Other libraries' arrays in and out: DLPack, __cuda_array_interface__ and plain addresses.
#include "exchange.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "calls.h"
#include "dlpack.h"
#include "names.h"
#include "scanrnn/memory.h"

namespace scanrnn {
namespace {

namespace py = pybind11;

using Sizes64 = std::vector<std::int64_t>;
using MaybeTensor = std::optional<Tensor>;
using Tensors = std::vector<MaybeTensor>;  // of parameters, or of a state: h, and c of a pair

// A null pointer is an absent tensor, and a tensor of no elements is not absent.
alignas(256) char nothing[256];

TensorView make_view(const std::string& name, void* data, Dtype dtype, Device device,
                     const Sizes64& sizes, const std::optional<Sizes64>& strides) {
  if (sizes.size() > kMaxRank) {
    throw value_error(name + ": expected at most " + std::to_string(kMaxRank) + " axes, got " +
                      std::to_string(sizes.size()));
  }
  TensorView out;
  out.data = data ? data : nothing;
  out.dtype = dtype;
  out.device = device;
  std::int64_t packed = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    out.sizes[axis] = sizes[axis];
    out.strides[axis] = strides ? strides->at(axis) : packed;
    packed *= sizes[axis];
    if (out.strides[axis] < 0 && sizes[axis] > 1) {
      throw value_error(name + ": expected strides of at least 0, got " +
                        std::to_string(out.strides[axis]) + " on axis " + std::to_string(axis) +
                        ": pass a contiguous copy");
    }
  }
  out.rank = static_cast<int>(sizes.size());
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0) {
    throw value_error(name + ": expected an address in whole elements of " +
                      std::to_string(size_of(dtype)) + " bytes: pass a contiguous copy");
  }
  return out;
}

// ---- in

Dtype dtype_of(const std::string& name, dlpack::Type type) {
  const std::pair<int, Dtype> floats[] = {
      {64, Dtype::float64}, {32, Dtype::float32}, {16, Dtype::float16}};
  if (type.lanes == 1 && type.code == dlpack::kFloat) {
    for (const auto& [bits, dtype] : floats) {
      if (type.bits == bits) return dtype;
    }
  }
  if (type.lanes == 1 && type.code == dlpack::kBfloat && type.bits == 16) return Dtype::bfloat16;
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  std::string got = (type.code <= dlpack::kBool ? kinds[type.code]
                                                : "dtype code " + std::to_string(type.code) + ", ");
  got += std::to_string(type.bits);
  if (type.lanes != 1) got += "x" + std::to_string(type.lanes);
  const char* advice = ": convert it first, nothing is cast";
  if (type.code == dlpack::kComplex) advice = ": pass its real and imaginary parts";
  if (type.bits < 8) advice = ", which is less than a byte: unpack it into one of these first";
  throw type_error(name + ": expected one of " +
                   quoted(kDtypes, [](Dtype d) { return scanrnn::name(d); }) + ", got " + got +
                   advice);
}

Device device_of(const std::string& name, dlpack::Device device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      return Device::cpu();
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      return Device::cuda(device.id);
    default:
      throw type_error(name +
                       ": expected memory of the CPU or of a CUDA device, got DLPack device (" +
                       std::to_string(device.type) + ", " + std::to_string(device.id) + ")");
  }
}

TensorView view_of(const std::string& name, const dlpack::Tensor& t) {
  const auto rank = static_cast<std::size_t>(t.rank);
  std::optional<Sizes64> strides;
  if (t.strides) strides.emplace(t.strides, t.strides + rank);
  const Dtype dtype = dtype_of(name, t.dtype);
  void* data = t.data ? static_cast<char*>(t.data) + t.byte_offset : nullptr;
  return make_view(name, data, dtype, device_of(name, t.device), {t.sizes, t.sizes + rank},
                   strides);
}

// Takes what a capsule holds: its release runs when the last copy of the Tensor is gone.
template <class Managed>
Tensor take(const std::string& name, const py::capsule& capsule, const char* used) {
  auto* managed = capsule.get_pointer<Managed>();
  if (PyCapsule_SetName(capsule.ptr(), used) != 0) throw py::error_already_set();
  Tensor out;
  out.owner = std::shared_ptr<void>(managed, [](void* p) {
    auto* self = static_cast<Managed*>(p);
    if (self->release) self->release(self);
  });
  if constexpr (std::is_same_v<Managed, dlpack::Versioned>) {
    // Only release() lies where it always does when the major version is another.
    if (managed->major != dlpack::kMajor) {
      throw value_error(name + ": expected DLPack " + std::to_string(dlpack::kMajor) + ".x, got " +
                        std::to_string(managed->major) + "." + std::to_string(managed->minor) +
                        ": pass max_version=(1, 0) to __dlpack__");
    }
  }
  out.view = view_of(name, managed->tensor);
  return out;
}

Tensor from_dlpack(const std::string& name, const py::capsule& capsule, bool writable) {
  const char* kind = capsule.name();
  if (kind && std::string(kind) == dlpack::kVersioned) {
    const bool read_only = capsule.get_pointer<dlpack::Versioned>()->flags & dlpack::kReadOnly;
    if (writable && read_only)
      throw value_error(name + ": expected memory to write, got read-only");
    return take<dlpack::Versioned>(name, capsule, "used_dltensor_versioned");
  }
  if (kind && std::string(kind) == dlpack::kLegacy) {
    return take<dlpack::Legacy>(name, capsule, "used_dltensor");
  }
  throw type_error(name + ": expected a DLPack capsule that nobody has taken, got one named '" +
                   (kind ? kind : "") + "'");
}

// __cuda_array_interface__, version 3 and before:
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
Tensor from_interface(const std::string& name, const py::dict& interface) {
  const auto type = interface["typestr"].cast<std::string>();
  dlpack::Type dtype{dlpack::kInt, 0, 1};
  for (const auto& [letter, code] : {std::pair{'f', dlpack::kFloat},
                                     {'c', dlpack::kComplex},
                                     {'u', dlpack::kUInt},
                                     {'b', dlpack::kBool}}) {
    if (type.size() > 2 && type[1] == letter) dtype.code = code;
  }
  if (type.size() < 3 || type[0] == '>') {
    throw type_error(name + ": expected floating-point numbers in this machine's order of bytes, " +
                     "got '" + type + "'");
  }
  dtype.bits = static_cast<std::uint8_t>(8 * std::stoi(type.substr(2)));
  const Dtype element = dtype_of(name, dtype);
  if (interface.contains("mask") && !interface["mask"].is_none()) {
    throw type_error(name + ": expected an array without a mask");
  }
  const auto sizes = interface["shape"].cast<Sizes64>();
  std::optional<Sizes64> strides;
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    strides = interface["strides"].cast<Sizes64>();
    const auto bytes = static_cast<std::int64_t>(size_of(element));
    for (std::int64_t& stride : *strides) {
      if (stride % bytes != 0) {
        throw value_error(name + ": expected strides in whole elements of " +
                          std::to_string(bytes) + " bytes, got " + std::to_string(stride) +
                          " bytes: pass a contiguous copy");
      }
      stride /= bytes;
    }
  }
  const auto address = interface["data"].cast<std::pair<std::uintptr_t, bool>>().first;
  auto* data = reinterpret_cast<void*>(address);
  try {
    const Device device = data ? scanrnn::device_of(data) : Device::cuda();
    return {make_view(name, data, element, device, sizes, strides), {}};
  } catch (const type_error& e) {
    throw type_error(name + ": " + e.what());
  }
}

Tensor from_address(const std::string& name, std::uintptr_t address, const std::string& dtype,
                    Device device, const Sizes64& sizes, const std::optional<Sizes64>& strides) {
  return {
      make_view(name, reinterpret_cast<void*>(address), parse_dtype(dtype), device, sizes, strides),
      {}};
}

// ---- calls; the memory is the caller's to keep until they return, and everything is enqueued then

TensorView view_of(const MaybeTensor& tensor) { return tensor ? tensor->view : TensorView{}; }

State state_of(const Tensors& tensors) {
  return {tensors.size() > 0 ? view_of(tensors[0]) : TensorView{},
          tensors.size() > 1 ? view_of(tensors[1]) : TensorView{}};
}

std::vector<TensorView> views_of(const Tensors& tensors) {
  std::vector<TensorView> out;
  for (const MaybeTensor& tensor : tensors) out.push_back(view_of(tensor));
  return out;
}

// Address and number of bytes of memory to work in.
using Bytes = std::optional<std::pair<std::uintptr_t, std::size_t>>;

Span span_of(const Bytes& bytes) {
  if (!bytes) return {};
  return {reinterpret_cast<void*>(bytes->first), bytes->second};
}

void forward(const Layer& layer, const PlannedCall& call, std::uintptr_t stream,
             const Tensors& params, const Tensor& x, const Tensors& h_0, const Tensor& y,
             const Tensors& h_n, const Bytes& workspace, const Bytes& reserve, std::uint64_t seed,
             bool one_step) {
  ForwardArgs args;
  args.params = views_of(params);
  args.x = x.view;
  args.h0 = state_of(h_0);
  args.y = y.view;
  args.hn = state_of(h_n);
  args.workspace = span_of(workspace);
  args.reserve = span_of(reserve);
  args.seed = seed;
  const py::gil_scoped_release unlocked;
  Context& where = context(call.device, reinterpret_cast<void*>(stream));
  if (one_step) {
    layer.step(where, call.plan, args);
  } else {
    layer.forward(where, call.plan, args);
  }
}

void backward(const Layer& layer, const PlannedCall& call, std::uintptr_t stream,
              const Tensors& params, const Tensor& x, const Tensors& h_0, const Tensor& y,
              const MaybeTensor& dy, const Tensors& dh_n, const MaybeTensor& dx,
              const Tensors& dh_0, const Tensors& dparams, const Bytes& workspace,
              const Bytes& reserve, std::uint64_t seed) {
  BackwardArgs args;
  args.params = views_of(params);
  args.x = x.view;
  args.h0 = state_of(h_0);
  args.y = y.view;
  args.dy = view_of(dy);
  args.dhn = state_of(dh_n);
  args.dx = view_of(dx);
  args.dh0 = state_of(dh_0);
  args.dparams = views_of(dparams);
  args.workspace = span_of(workspace);
  args.reserve = span_of(reserve);
  args.seed = seed;
  const py::gil_scoped_release unlocked;
  layer.backward(context(call.device, reinterpret_cast<void*>(stream)), call.plan, args);
}

void scan(const PlannedCall& call, std::uintptr_t stream, const Tensor& a, const Tensor& b,
          const MaybeTensor& sign_b, const MaybeTensor& h_0, const Tensor& h,
          const Bytes& workspace, bool log_form, bool reverse) {
  ScanArgs args;
  args.a = a.view;
  args.b = b.view;
  args.sign_b = view_of(sign_b);
  args.h0 = view_of(h_0);
  args.h = h.view;
  args.workspace = span_of(workspace);
  args.log_form = log_form;
  args.reverse = reverse;
  const py::gil_scoped_release unlocked;
  linear_scan(context(call.device, reinterpret_cast<void*>(stream)), call.plan, args);
}

// ---- out

// Memory of one library for others to take by DLPack. It is safe to use on `stream`, and lives as
// long as anyone has it.
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
    return {on.kind == Device::Kind::cpu ? dlpack::kCpu : dlpack::kCuda, on.index};
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
    m.context = held;
    m.release = [](Managed* self) { delete static_cast<Held<Managed>*>(self->context); };
    const auto [type, id] = device();
    const bool brain = view.dtype == Dtype::bfloat16;
    m.tensor = {view.data,
                {type, id},
                view.rank,
                {brain ? dlpack::kBfloat : dlpack::kFloat,
                 static_cast<std::uint8_t>(8 * size_of(view.dtype)), 1},
                view.sizes.data(),
                view.strides.data(),
                0};
    if constexpr (std::is_same_v<Managed, dlpack::Versioned>) {
      m.major = dlpack::kMajor;
      m.minor = dlpack::kMinor;
    }
    return py::capsule(&m, capsule_name, [](PyObject* capsule) {
      const char* name = PyCapsule_GetName(capsule);  // begins with used_ once it was taken
      if (name[0] == 'u') return;
      auto* self = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
      self->release(self);
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
    return max_version && max_version->first >= 1 ? capsule<dlpack::Versioned>(dlpack::kVersioned)
                                                  : capsule<dlpack::Legacy>(dlpack::kLegacy);
  }
};

}  // namespace

void bind_exchange(py::module_& m) {
  using namespace py::literals;
  py::class_<Tensor>(m, "Tensor")
      .def_property_readonly("shape",
                             [](const Tensor& t) {
                               return py::tuple(py::cast(Sizes64(
                                   t.view.sizes.begin(), t.view.sizes.begin() + t.view.rank)));
                             })
      .def_property_readonly("strides",
                             [](const Tensor& t) {
                               return py::tuple(py::cast(Sizes64(
                                   t.view.strides.begin(), t.view.strides.begin() + t.view.rank)));
                             })
      .def_property_readonly("dtype", [](const Tensor& t) { return name(t.view.dtype); })
      .def_property_readonly("device", [](const Tensor& t) { return name(t.view.device); })
      .def_property_readonly(
          "address", [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.view.data); });
  m.def("from_dlpack", &from_dlpack);
  m.def("from_interface", &from_interface);
  m.def("from_address", &from_address);
  m.def("order_streams", [](Device device, std::uintptr_t before, std::uintptr_t after) {
    order_streams(context(device), reinterpret_cast<void*>(before), reinterpret_cast<void*>(after));
  });
  m.def("forward", &forward);
  m.def("backward", &backward);
  m.def("scan_tensors", &scan);

  py::class_<Exported>(m, "Exported")
      .def(py::init<Tensor, py::object, std::uintptr_t>())
      .def("__dlpack_device__", &Exported::device)
      .def("__dlpack__", &Exported::to_dlpack, py::kw_only(), "stream"_a = py::none(),
           "max_version"_a = py::none(), "dl_device"_a = py::none(), "copy"_a = py::none());
}

}  // namespace scanrnn
